"""How an agent acts: pure functions over a batch of environments."""

from typing import Callable, NamedTuple, Sequence, Tuple

from cleanba_acme import seeding
from cleanba_acme import types
from cleanba_acme.networks import base as networks_lib
from cleanba_acme.networks import heads
import dm_env
import jax
import jax.numpy as jnp

# What `make_actor_core` can keep beside each action.
LOG_PROB = 'log_prob'
VALUE = 'value'


class ActorState(NamedTuple):
  """What an actor carries from step to step.

  Attributes:
    keys: `[B, 2]` uint32, one key per environment; they never change.
    step: int32 scalar, how many steps were taken in this run so far.
    core_state: Tree of `[B, ...]`, the network's recurrent state.
  """
  keys: types.PRNGKey
  step: types.Array
  core_state: types.ArrayTree


class ActorCore(NamedTuple):
  """Pure functions that define how an agent acts.

  Attributes:
    init: `(key, environment_indices [B]) -> state`. The indices are global
      over the run, see `seeding`.
    select_action: `(params, timestep [B], state) -> action, extras, state`:
      `action` is `[B, ...]`, `extras` a dict of `[B, ...]` that travels with
      the rollout to the learner.
  """
  init: Callable[[types.PRNGKey, Sequence[int]], ActorState]
  select_action: Callable[
      [types.Params, dm_env.TimeStep, ActorState],
      Tuple[types.Array, types.ArrayTree, ActorState]]


def make_actor_core(
    networks: networks_lib.ActorCritic,
    extras: Sequence[str],
    evaluation: bool = False,
) -> ActorCore:
  """Makes an `ActorCore` that samples from (or takes the mode of) the policy.

  Args:
    networks: The networks; their `apply` is called with `T = 1`.
    extras: Which of `LOG_PROB` and `VALUE` the learner needs.
    evaluation: Whether to act greedily.
  """

  def init(key: types.PRNGKey, indices: Sequence[int]) -> ActorState:
    return ActorState(
        keys=seeding.environment_keys(key, indices),
        step=jnp.zeros((), jnp.int32),
        core_state=networks.initial_state(len(indices)))

  def select_action(params, timestep: dm_env.TimeStep, state: ActorState):
    is_first = timestep.step_type == dm_env.StepType.FIRST
    observation, is_first = jax.tree.map(
        lambda x: x[None], (timestep.observation, is_first))
    distribution, value, core_state = networks.apply(
        params, observation, is_first, state.core_state)
    distribution, value = jax.tree.map(lambda x: x[0], (distribution, value))

    if evaluation:
      action = distribution.mode()
    else:
      keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(
          state.keys, state.step)
      action = heads.sample(distribution, keys)
    available = {LOG_PROB: distribution.log_prob(action), VALUE: value}
    return (action, {name: available[name] for name in extras},
            state._replace(step=state.step + 1, core_state=core_state))

  return ActorCore(init, select_action)
