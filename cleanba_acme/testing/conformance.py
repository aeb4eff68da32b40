"""Checks that a user's own parts keep this library's contract.

From one call, on a part of your own:

    conformance.check_environment(batch.DmEnvFactory(MyEnvironment))
    conformance.check_networks(make_my_networks(spec), spec)
    conformance.check_builder(MyBuilder(), make_my_networks, my_factory)

or as one pytest class, with a test per rule:

    class TestMyEnvironment(conformance.EnvironmentTests):

      def make_environment_factory(self):
        return batch.DmEnvFactory(MyEnvironment)

What breaks a rule is an `AssertionError` that names the rule, what was expected
and what was seen. Each check is a function of its own, too. They live in
`environment_conformance`, `network_conformance` and `builder_conformance`.
"""

# pylint: disable=g-importing-member
from cleanba_acme.testing.builder_conformance import (
    BuilderTests,
    NetworkFactory,
    check_actions_belong_to_environments,
    check_actor,
    check_builder,
    check_dummy_steps_do_not_matter,
    check_update,
    check_update_is_deterministic,
)
from cleanba_acme.testing.environment_conformance import (
    EnvironmentTests,
    check_environment,
    check_episodes,
    check_ignored_actions_do_not_matter,
    check_same_seed_same_stream,
    check_seeds_of_environments,
    check_stream_matches_spec,
)
from cleanba_acme.testing.network_conformance import (
    NetworkTests,
    check_first_forgets,
    check_gradients,
    check_networks,
    check_no_future,
    check_observe,
    check_outputs,
    check_rows_are_independent,
    check_unroll_equals_single_steps,
)
