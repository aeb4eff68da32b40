"""Turns an environment and an `ActorCore` into rollouts."""

import math
from typing import List, Optional, Sequence, Tuple

from cleanba_acme import actor_core as actor_core_lib
from cleanba_acme import frames
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

    unroller = Unroller(environment, spec, core, state, unroll_length=128)
    rollout, episodes = unroller.unroll(params)
    batch = join([rollout])

  Every row of a rollout, the bootstrap row included, is evaluated by the
  parameters given to that call. The bootstrap row is row 0 of the next rollout
  too, where it is evaluated again, by the parameters of that call.
  """

  def __init__(
      self,
      environment: environments.VectorEnvironment,
      spec: specs.EnvironmentSpec,
      core: actor_core_lib.ActorCore,
      state: actor_core_lib.ActorState,
      unroll_length: int,
      num_buffers: Optional[int] = None,
  ):
    """Resets the environment.

    Args:
      environment: `B` environments.
      spec: Spec of one of them.
      core: How to act; its `select_action` should be jitted, or compiled.
      state: The state to begin with, for the same `B` environments.
      unroll_length: `T`.
      num_buffers: How many rollouts to keep the memory of: each is overwritten
        by the one so many calls later. None makes every rollout a new one.
    """
    self._environment = environment
    self._spec = spec
    self._core = core
    self._state = state._replace(
        keys=_pad(state.keys), core_state=jax.tree.map(_pad, state.core_state))
    self._unroll_length = unroll_length
    self._buffers: List[types.Rollout] = []
    self._num_buffers = num_buffers
    self._check = _Check(spec, environment.num_envs)
    self._timestep = self._check(environment.reset())
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
      The rollout, its stacked frames as `frames.Frames` until it is joined,
      and the episodes that ended in it, in new arrays.
    """
    length = self._unroll_length
    rows = self._environment.num_envs
    core_state = jax.tree.map(
        lambda x: np.asarray(x)[:rows], self._state.core_state)
    buffer = self._take_buffer()
    episodes = types.Episodes(
        returns=np.zeros((length, rows), np.float32),
        length=np.zeros((length, rows), np.int32))

    previous = self._timestep
    for t in range(length + 1):
      timestep = self._timestep
      action, extras, state = self._core.select_action(
          params, jax.tree.map(_pad, timestep), self._state)
      action, extras = jax.tree.map(
          lambda x: np.asarray(x)[:rows], (action, extras))
      if buffer is None:
        buffer = self._make_buffer(action, extras)
      _write_row(buffer, t, timestep, previous, extras)
      if t == length:
        break  # This row is acted on in the next rollout, by its parameters.
      buffer.action[t] = action
      self._state = state
      previous = timestep
      self._timestep = self._check(self._environment.step(
          heads.to_environment(self._spec.actions, action)))
      self._count(t, episodes)
    return buffer._replace(core_state=core_state), episodes

  def _take_buffer(self) -> Optional[types.Rollout]:
    """Returns the oldest buffer, if there are as many as there may be."""
    if len(self._buffers) != self._num_buffers:
      return None
    self._buffers.append(self._buffers.pop(0))
    return self._buffers[-1]

  def _make_buffer(
      self, action: types.Array, extras: types.ArrayTree) -> types.Rollout:
    buffer = jax.tree.map(
        lambda leaf: np.empty(leaf.shape, leaf.dtype),
        make_spec(self._spec, self._unroll_length, action, extras))
    if self._num_buffers is not None:
      self._buffers.append(buffer)
    return buffer

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


def pad_rows(rows: int) -> int:
  """Returns how many rows `select_action` is given for so many environments."""
  return -(-rows // _ROWS_PER_TILE) * _ROWS_PER_TILE


def _pad(x: types.Array) -> types.Array:
  """Repeats the last of the `[B, ...]` rows to fill up the last tile."""
  padding = pad_rows(len(x)) - len(x)
  return np.concatenate([x, np.repeat(x[-1:], padding, 0)]) if padding else x


def make_spec(
    spec: specs.EnvironmentSpec,
    length: int,
    action: types.Array,
    extras: types.ArrayTree,
    core_state: types.ArrayTree = (),
) -> types.Rollout:
  """Returns the `jax.ShapeDtypeStruct`s of an actor's rollout.

  Args:
    spec: Spec of one environment.
    length: `T`.
    action: `[B, ...]`: an action, or the like of it with shape and dtype.
    extras: Likewise, a tree of `[B, ...]`.
    core_state: Likewise, a tree of `[B, ...]`.
  """
  rows = action.shape[0]

  def batched(leaf, steps=length + 1):
    return jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype)

  def observed(leaf):
    if isinstance(leaf, specs.StackedFrames):
      return frames.make_spec(leaf, length, rows)
    return jax.ShapeDtypeStruct((length + 1, rows, *leaf.shape), leaf.dtype)

  scalars = lambda dtype: jax.ShapeDtypeStruct((length + 1, rows), dtype)
  return types.Rollout(
      observation=jax.tree.map(observed, spec.observations),
      reward=scalars(np.float32),
      discount=scalars(np.float32),
      step_type=scalars(np.int32),
      action=batched(action, steps=length),
      extras=jax.tree.map(batched, extras),
      core_state=jax.tree.map(
          lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), core_state))


class _Check:
  """Checks every time step against the spec of the environments."""

  def __init__(self, spec: specs.EnvironmentSpec, rows: int):
    """Remembers what `rows` environments must show."""
    self._spec = spec
    self._structure = jax.tree.structure(spec.observations)
    # Name, shape and dtype of each array of a time step.
    self._columns = [
        ('step_type', (rows,), np.dtype(np.int32)),
        ('reward', (rows,), np.dtype(np.float32)),
        ('discount', (rows,), np.dtype(np.float32)),
        *[(f'observation{jax.tree_util.keystr(path)}', (rows, *leaf.shape),
           leaf.dtype)
          for path, leaf in jax.tree_util.tree_leaves_with_path(
              spec.observations)]]

  def __call__(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
    """Returns the time step.

    Raises:
      ValueError: A shape or a dtype is another one, or a number is not finite.
    """
    leaves, structure = jax.tree.flatten(timestep.observation)
    if structure != self._structure:
      raise ValueError(
          f'the environment\'s observation is a tree {timestep.observation!r}, '
          f'its spec says {self._spec.observations!r}')
    arrays = (timestep.step_type, timestep.reward, timestep.discount, *leaves)
    for (name, shape, dtype), array in zip(self._columns, arrays):
      if not isinstance(array, np.ndarray) or (
          array.shape != shape or array.dtype != dtype):
        raise ValueError(
            f'the environment\'s {name} must be an array of shape {shape} and '
            f'dtype {dtype} as in its spec, got shape {np.shape(array)} and '
            f'dtype {getattr(array, "dtype", type(array).__name__)}')
      # Faster than asking each number; a sum that overflows is no good either.
      if dtype.kind == 'f' and not math.isfinite(
          np.add.reduce(array, axis=None)):
        raise ValueError(
            f'the environment\'s {name} must be finite, got {array}')
    return timestep


def _is_frames(leaf: types.ArrayTree) -> bool:
  return isinstance(leaf, frames.Frames)


def _write_row(
    buffer: types.Rollout,
    t: int,
    timestep: dm_env.TimeStep,
    previous: dm_env.TimeStep,
    extras: types.ArrayTree,
) -> None:
  """Writes row `t`, all but its action."""
  buffer.step_type[t] = timestep.step_type
  buffer.reward[t] = timestep.reward
  buffer.discount[t] = timestep.discount
  for column, leaf in zip(
      jax.tree.leaves(buffer.extras), jax.tree.leaves(extras)):
    column[t] = leaf
  for column, leaf, before in zip(
      jax.tree.leaves(buffer.observation, is_leaf=_is_frames),
      jax.tree.leaves(timestep.observation),
      jax.tree.leaves(previous.observation)):
    if _is_frames(column):
      frames.write_row(column, t, leaf, before, timestep.step_type)
    else:
      column[t] = leaf


def join(
    rollouts: Sequence[types.Rollout],
    out: Optional[types.Rollout] = None,
) -> types.Rollout:
  """Joins the actors' rollouts `[T+1, B]` to the global batch `[T+1, N * B]`.

  Frames are stacked again. Where there is nothing to do, nothing is copied.

  Args:
    rollouts: One per actor, in actor order.
    out: What an earlier call returned for such rollouts, to be overwritten.
  """
  leaves = [
      jax.tree.leaves(rollout._replace(core_state=()), is_leaf=_is_frames)
      for rollout in rollouts]
  if len(rollouts) == 1 and not any(map(_is_frames, leaves[0])):
    return rollouts[0]
  structure = jax.tree.structure(
      rollouts[0]._replace(core_state=()), is_leaf=_is_frames)
  columns = (
      [None] * len(leaves[0]) if out is None
      else jax.tree.leaves(out._replace(core_state=())))
  joined = jax.tree.unflatten(
      structure, [_join(*pair) for pair in zip(zip(*leaves), columns)])
  return joined._replace(core_state=jax.tree.map(
      lambda *xs: np.concatenate(xs), *[r.core_state for r in rollouts]))


def _join(
    parts: Sequence[types.ArrayTree], out: Optional[np.ndarray]
) -> np.ndarray:
  """Joins arrays, or `frames.Frames`, along their second axis."""
  if not _is_frames(parts[0]):
    return np.concatenate(parts, axis=1, out=out)
  length, _, *shape = parts[0].stacked_shape
  rows = [part.stacked_shape[1] for part in parts]
  if out is None:
    out = np.empty((length, sum(rows), *shape), parts[0].frames.dtype)
  for part, end in zip(parts, np.cumsum(rows)):
    frames.restack(part, out[:, end - part.stacked_shape[1]:end])
  return out
