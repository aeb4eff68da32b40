"""Turns an environment and an `ActorCore` into rollouts."""

from typing import Sequence, Tuple

from cleanba_acme import actor_core as actor_core_lib
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base as environments
from cleanba_acme.networks import heads
import dm_env
import jax
import numpy as np

# XLA:CPU computes so many rows at a time, and those left over with other
# kernels, hence other bits. An environment's numbers must not depend on how
# many are beside it, so all programs see full tiles. (Padding inside a program
# doesn't do: XLA moves it to where it pleases.)
_ROWS_PER_TILE = 8


class Unroller:
  """Steps a batch of environments, one rollout of `T` steps at a time.

  Usage:

    unroller = Unroller(
        environment, spec.actions, core, state, unroll_length=128)
    rollout, episodes = unroller.unroll(params)

  Every row of a rollout, the bootstrap row included, is evaluated by the
  parameters given to that call. The bootstrap row is row 0 of the next rollout
  too, where it is evaluated again, by the parameters of that call.
  """

  def __init__(
      self,
      environment: environments.VectorEnvironment,
      action_spec: specs.BoundedArray,
      core: actor_core_lib.ActorCore,
      state: actor_core_lib.ActorState,
      unroll_length: int,
  ):
    """Resets the environment.

    Args:
      environment: `B` environments.
      action_spec: Their action spec.
      core: How to act; its `select_action` should be jitted.
      state: The state to begin with, for the same `B` environments.
      unroll_length: `T`.
    """
    self._environment = environment
    self._action_spec = action_spec
    self._core = core
    self._state = state._replace(
        keys=_pad(state.keys), core_state=jax.tree.map(_pad, state.core_state))
    self._unroll_length = unroll_length
    self._timestep = environment.reset()
    self._returns = np.zeros(environment.num_envs, np.float32)
    self._lengths = np.zeros(environment.num_envs, np.int32)

  @property
  def keys(self) -> np.ndarray:
    """Key and step `[B, 3]` that the next rollout's first actions draw with."""
    keys = np.asarray(self._state.keys)[:self._environment.num_envs]
    step = np.full((len(keys), 1), self._state.step, keys.dtype)
    return np.concatenate([keys, step], axis=1)

  def unroll(
      self, params: types.Params) -> Tuple[types.Rollout, types.Episodes]:
    """Acts for `T` steps with `params`.

    Args:
      params: Network parameters.

    Returns:
      The rollout and the episodes that ended in it, all fresh numpy arrays.
    """
    length = self._unroll_length
    rows = self._environment.num_envs
    core_state = jax.tree.map(
        lambda x: np.asarray(x)[:rows], self._state.core_state)
    timesteps = jax.tree.map(
        lambda x: np.empty((length + 1, *x.shape), x.dtype), self._timestep)
    extras = actions = None
    episodes = types.Episodes(
        returns=np.zeros((length, rows), np.float32),
        length=np.zeros((length, rows), np.int32))

    for t in range(length + 1):
      _write_row(timesteps, t, self._timestep)
      action, extra, state = self._core.select_action(
          params, jax.tree.map(_pad, self._timestep), self._state)
      action, extra = jax.tree.map(
          lambda x: np.asarray(x)[:rows], (action, extra))
      if extras is None:
        extras = jax.tree.map(
            lambda x: np.empty((length + 1, *x.shape), x.dtype), extra)
        actions = np.empty((length, *action.shape), action.dtype)
      _write_row(extras, t, extra)
      if t == length:
        break  # This row is acted on in the next rollout, by its parameters.
      actions[t] = action
      self._state = state
      self._timestep = self._environment.step(
          heads.to_environment(self._action_spec, actions[t]))
      self._count(t, episodes)

    rollout = types.Rollout(
        observation=timesteps.observation,
        reward=timesteps.reward,
        discount=timesteps.discount,
        step_type=timesteps.step_type,
        action=actions,
        extras=extras,
        core_state=core_state)
    return rollout, episodes

  def _count(self, t: int, episodes: types.Episodes) -> None:
    """Adds the step just taken to its episodes; notes those that ended."""
    is_first = self._timestep.step_type == dm_env.StepType.FIRST
    is_last = self._timestep.step_type == dm_env.StepType.LAST
    self._returns += self._environment.unclipped_reward
    self._lengths += 1
    # The step into a FIRST row is a dummy: it belongs to no episode.
    self._returns[is_first] = 0
    self._lengths[is_first] = 0
    episodes.returns[t, is_last] = self._returns[is_last]
    episodes.length[t, is_last] = self._lengths[is_last]


def _pad(x: types.Array) -> types.Array:
  """Repeats the last of the `[B, ...]` rows to fill up the last tile."""
  padding = -len(x) % _ROWS_PER_TILE
  return np.concatenate([x, np.repeat(x[-1:], padding, 0)]) if padding else x


def _write_row(buffers: types.ArrayTree, t: int, row: types.ArrayTree) -> None:
  for buffer, leaf in zip(jax.tree.leaves(buffers), jax.tree.leaves(row)):
    buffer[t] = leaf


def concatenate(rollouts: Sequence[types.Rollout]) -> types.Rollout:
  """Joins the actors' rollouts `[T+1, B]` to the global batch `[T+1, N * B]`.
  """
  if len(rollouts) == 1:
    return rollouts[0]
  joined = jax.tree.map(lambda *xs: np.concatenate(xs, axis=1), *[
      rollout._replace(core_state=()) for rollout in rollouts])
  return joined._replace(core_state=jax.tree.map(
      lambda *xs: np.concatenate(xs), *[r.core_state for r in rollouts]))
