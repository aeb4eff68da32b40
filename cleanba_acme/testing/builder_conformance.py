"""What an agent must keep to; see `conformance`.

Shape letters: T, time; B, environments.
"""

from typing import Any, Callable, List, Optional

from cleanba_acme import builder as builder_lib
from cleanba_acme import learner_core
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base as environments
from cleanba_acme.networks import base as networks_lib
from cleanba_acme.testing import collect
from cleanba_acme.testing import expect
import dm_env
import jax
import jax.numpy as jnp
import numpy as np

NetworkFactory = Callable[[specs.EnvironmentSpec], networks_lib.ActorCritic]


def check_builder(
    builder: builder_lib.Builder,
    network_factory: NetworkFactory,
    environment_factory: environments.EnvironmentFactory,
    *,
    num_envs: int = 8,
    unroll_length: int = 8,
    seed: int = 0,
) -> None:
  """Checks an agent on rollouts of an environment.

  Args:
    builder: The agent.
    network_factory: `(environment_spec) -> ActorCritic`.
    environment_factory: Makes an environment whose episodes end within two
      rollouts.
    num_envs: `B`, which the agent's minibatches must divide.
    unroll_length: `T`.
    seed: Of everything.

  Raises:
    AssertionError: A rule is broken.
  """
  case = _BuilderCase(
      builder, network_factory, environment_factory, num_envs, unroll_length,
      seed)
  check_actor(case)
  check_actions_belong_to_environments(case)
  check_update(case)
  check_update_is_deterministic(case)
  check_dummy_steps_do_not_matter(case)


class BuilderTests:
  """One pytest class for an agent: override the three methods.

  Attributes:
    num_envs: See `check_builder`.
    unroll_length: See `check_builder`.
    seed: See `check_builder`.
  """
  num_envs: int = 8
  unroll_length: int = 8
  seed: int = 0

  def make_builder(self) -> builder_lib.Builder:
    """Returns what is to be checked."""
    raise NotImplementedError

  def make_networks(
      self, spec: specs.EnvironmentSpec) -> networks_lib.ActorCritic:
    """Returns networks for it."""
    raise NotImplementedError

  def make_environment_factory(self) -> environments.EnvironmentFactory:
    """Returns an environment for it."""
    raise NotImplementedError

  def _make_case(self):
    return _BuilderCase(
        self.make_builder(), self.make_networks,
        self.make_environment_factory(), self.num_envs, self.unroll_length,
        self.seed)

  def test_actor(self):
    check_actor(self._make_case())

  def test_actions_belong_to_environments(self):
    check_actions_belong_to_environments(self._make_case())

  def test_update(self):
    check_update(self._make_case())

  def test_update_is_deterministic(self):
    check_update_is_deterministic(self._make_case())

  def test_dummy_steps_do_not_matter(self):
    check_dummy_steps_do_not_matter(self._make_case())


class _BuilderCase:
  """A builder with what it needs, and rollouts to learn from.

  Attributes:
    factory: Makes the environments.
    actor: The actor core, not jitted.
    evaluator: The greedy one.
    learner: The learner core.
    state: The training state before the first update.
    rollouts: Two successive rollouts by its parameters.
    num_envs: `B`.
    seed: Of everything.
  """

  def __init__(
      self,
      builder: builder_lib.Builder,
      network_factory: NetworkFactory,
      factory: environments.EnvironmentFactory,
      num_envs: int,
      unroll_length: int,
      seed: int,
  ):
    self.factory = factory
    self.num_envs = num_envs
    self.seed = seed
    networks = network_factory(factory.spec)
    self.actor = builder.make_actor_core(networks)
    self.evaluator = builder.make_actor_core(networks, evaluation=True)
    arguments = (networks, builder_lib.RunSizes(
        unroll_length, num_envs, num_updates=4), learner_core.Execution())
    self.learner = builder.make_learner_core(*arguments)
    self.state = self.learner.init(*jax.random.split(jax.random.PRNGKey(seed)))
    self.rollouts = collect.collect(
        factory, self.actor, self.state.params, num_rollouts=2,
        num_envs=num_envs, unroll_length=unroll_length, seed=seed)

  def update(self, rollouts: Optional[List[types.Rollout]] = None):
    """Returns the states after the updates, and the last metrics."""
    states = [self.state]
    for rollout in rollouts or self.rollouts:
      # Actors keep no rollout: a learner may do with it what it likes.
      try:
        state, metrics = self.learner.update(
            states[-1], jax.tree.map(np.array, rollout))
      except KeyError as error:
        raise AssertionError(
            f'update: the learner needs {error}, which is not among the '
            f'actor\'s extras {sorted(rollout.extras)}') from error
      states.append(state)
    return states, metrics


def check_actor(case: _BuilderCase) -> None:
  """Actions fit the spec; extras are arrays per environment."""
  for rollout in case.rollouts:
    expect.that(isinstance(rollout.extras, dict), 'extras', 'a dict',
                rollout.extras)
    for name, value in rollout.extras.items():
      for leaf in jax.tree.leaves(value):
        expect.that(
            leaf.shape[1:2] == (case.num_envs,), f'extras[{name!r}]',
            f'[{case.num_envs}, ...] per step', leaf.shape[1:])
        expect.finite(leaf, f'extras[{name!r}]')
  greedy = [
      case.evaluator.select_action(
          case.state.params, _first_row(case), case.evaluator.init(
              jax.random.PRNGKey(seed), range(case.num_envs)))[0]
      for seed in (0, 1)]
  expect.same(greedy[1], greedy[0],
              'greedy actions with another key, which must not matter')


def check_actions_belong_to_environments(case: _BuilderCase) -> None:
  """An environment's actions depend on its index, not on its place."""
  key = jax.random.PRNGKey(case.seed)
  half = case.num_envs // 2
  timestep = _first_row(case)
  select_action = jax.jit(case.actor.select_action)

  def act(indices: range) -> List[Any]:
    state = case.actor.init(key, indices)
    rows = jax.tree.map(lambda x: x[np.array(indices)], timestep)
    actions = []
    for _ in range(8):
      action, extras, state = select_action(case.state.params, rows, state)
      actions.append((action, extras))
    return actions

  whole = act(range(case.num_envs))
  for step, (one, other) in enumerate(zip(
      whole, act(range(half, case.num_envs)))):
    expect.same(
        other, jax.tree.map(lambda x: x[half:], one),
        f'step {step} of environments {half} to {case.num_envs - 1} as a batch '
        'of their own', expect.TOLERANCE)


def check_update(case: _BuilderCase) -> None:
  """An update takes the actor's rollouts and changes finite parameters."""
  before = jax.tree.map(np.array, case.state)
  states, metrics = case.update()
  expect.same(case.state, before, 'the state given to update, afterwards')
  shapes = lambda tree: jax.tree.map(
      lambda x: (jnp.shape(x), jnp.result_type(x)), tree)
  for update, state in enumerate(states[1:], start=1):
    expect.equal(shapes(state), shapes(states[0]),
                 f'shapes and types of the state after update {update}')
    expect.equal(int(state.num_updates), update,
                 f'num_updates after update {update}')
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
      expect.finite(leaf, f'parameter {jax.tree_util.keystr(path)} after '
                    f'update {update}')
    expect.that(not _is_same(state.params, states[update - 1].params),
                f'parameters after update {update}', 'others than before',
                'the same')
  for name, value in metrics.items():
    expect.equal(jnp.shape(value), (), f'shape of the metric {name!r}')
    expect.finite(value, f'metric {name!r}')


def check_update_is_deterministic(case: _BuilderCase) -> None:
  """The same state and rollouts give the same parameters, bit for bit."""
  (*_, one), _ = case.update()
  (*_, other), _ = case.update()
  expect.same(other, one, 'state after the same updates')


def check_dummy_steps_do_not_matter(case: _BuilderCase) -> None:
  """Of the ignored actions after `LAST` nothing is learned."""
  rng = np.random.default_rng(case.seed)
  changed, num_dummies = [], 0
  for rollout in case.rollouts:
    rollout = jax.tree.map(np.array, rollout)
    is_last = rollout.step_type[:-1] == dm_env.StepType.LAST
    num_dummies += is_last.sum()
    # The place of another action that the policy could have taken.
    for t, i in np.argwhere(is_last):
      source = rng.integers(len(rollout.action)), rng.integers(case.num_envs)
      rollout.action[t, i] = rollout.action[source]
    changed.append(rollout)
  expect.that(num_dummies > 0, 'episodes that ended in two rollouts',
              'at least one; raise unroll_length', 0)
  expect.that(
      any((a.action != b.action).any()
          for a, b in zip(changed, case.rollouts)),
      'random actions', 'some that differ', 'only equal ones')
  (*_, one), _ = case.update()
  (*_, other), _ = case.update(changed)
  expect.same(
      other.params, one.params,
      'parameters after updates with other actions after LAST',
      expect.TOLERANCE)


def _first_row(case: _BuilderCase) -> dm_env.TimeStep:
  rollout = case.rollouts[0]
  return jax.tree.map(lambda x: x[0], dm_env.TimeStep(
      rollout.step_type, rollout.reward, rollout.discount, rollout.observation))


def _is_same(one: Any, other: Any) -> bool:
  return all(np.array_equal(x, y) for x, y in zip(
      jax.tree.leaves(one), jax.tree.leaves(other)))
