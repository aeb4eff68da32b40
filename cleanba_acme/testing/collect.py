"""Rollouts of real environments, for tests of what learns from them."""

from typing import Any, List

from cleanba_acme import actor_core
from cleanba_acme import rollout
from cleanba_acme import types
from cleanba_acme.environments import base
import jax


def make_unroller(
    factory: base.EnvironmentFactory,
    core: actor_core.ActorCore,
    num_envs: int,
    unroll_length: int,
    seed: int = 0,
    first: int = 0,
) -> rollout.Unroller:
  """Makes an unroller of the environments `[first, first + num_envs)` of a run.

  Args:
    factory: Makes the environments.
    core: How to act.
    num_envs: `B`.
    unroll_length: `T`.
    seed: Of the environments and the actions.
    first: Index of the first environment.
  """
  return rollout.Unroller(
      factory(seed + first, num_envs), factory.spec,
      core._replace(select_action=jax.jit(core.select_action)),
      core.init(jax.random.PRNGKey(seed), range(first, first + num_envs)),
      unroll_length)


def collect(
    factory: base.EnvironmentFactory,
    core: actor_core.ActorCore,
    params: types.Params,
    num_rollouts: int = 1,
    **sizes: Any,
) -> List[types.Rollout]:
  """Returns successive rollouts, all acted with `params`.

  Args:
    factory: Makes the environments.
    core: How to act.
    params: Network parameters.
    num_rollouts: How many.
    **sizes: Further arguments of `make_unroller`.
  """
  unroller = make_unroller(factory, core, **sizes)
  return [
      rollout.join([unroller.unroll(params)[0]]) for _ in range(num_rollouts)]
