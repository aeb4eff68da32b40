"""Stacked frames in a rollout, each frame kept once: `K` times fewer bytes.

An observation of `K` stacked frames shows each frame to `K` steps in turn. On
the way from actor to learner a rollout holds the frames themselves; the learner
stacks them again, to the same bits.
"""

from typing import NamedTuple, Tuple

from cleanba_acme import specs
import dm_env
import jax
import numpy as np


class Frames(NamedTuple):
  """The observations `[T+1, B, ..., K * C]` of a rollout, each frame once.

  Attributes:
    frames: `[T+K, B, ..., C]`: the `K` frames of row 0, oldest first, then the
      newest frame of each further row.
    restarts: `[T+1, B]` bool: rows whose stack is their newest frame `K` times,
      and not the stack of the row before, moved on by one.
  """
  frames: np.ndarray
  restarts: np.ndarray

  @property
  def num_frames(self) -> int:
    """`K`."""
    return self.frames.shape[0] - self.restarts.shape[0] + 1

  @property
  def stacked_shape(self) -> Tuple[int, ...]:
    """`(T+1, B, ..., K * C)`."""
    shape = self.frames.shape[2:]
    return (*self.restarts.shape, *shape[:-1], self.num_frames * shape[-1])


def make_spec(spec: specs.StackedFrames, length: int, rows: int) -> Frames:
  """Returns the `jax.ShapeDtypeStruct`s of a rollout's frames.

  Args:
    spec: Of one observation.
    length: `T`.
    rows: `B`.
  """
  shape = (*spec.shape[:-1], spec.shape[-1] // spec.num_frames)
  return Frames(
      jax.ShapeDtypeStruct(
          (length + spec.num_frames, rows, *shape), spec.dtype),
      jax.ShapeDtypeStruct((length + 1, rows), np.bool_))


def write_row(
    buffer: Frames,
    t: int,
    observation: np.ndarray,
    previous: np.ndarray,
    step_type: np.ndarray,
) -> None:
  """Writes one row of a rollout, in place.

  Args:
    buffer: Arrays of `make_spec`.
    t: Which row; rows are written in order.
    observation: `[B, ..., K * C]`, of this row.
    previous: Likewise, of the row before.
    step_type: `[B]`, of this row.

  Raises:
    ValueError: The frames don't move on as `specs.StackedFrames` promises. Of
      rows within an episode only the last one is checked.
  """
  frames, restarts = buffer
  channels, num_frames = frames.shape[-1], buffer.num_frames
  restarts[t] = False
  if t == 0:
    for j in range(num_frames):
      frames[j] = observation[..., j * channels:(j + 1) * channels]
    return
  frames[t + num_frames - 1] = observation[..., -channels:]
  if t + 1 == len(restarts):
    suspects = np.arange(len(observation))
  else:
    suspects = np.flatnonzero(step_type == dm_env.StepType.FIRST)
  for i in suspects:
    stack = observation[i]
    if np.array_equal(stack[..., :-channels], previous[i][..., channels:]):
      continue
    newest = np.concatenate([stack[..., -channels:]] * num_frames, axis=-1)
    if (step_type[i] != dm_env.StepType.FIRST
        or not np.array_equal(stack, newest)):
      raise ValueError(
          f'environment {i} of the actor: its observation is no stack of '
          f'{num_frames} frames that follows on the one before, as its spec '
          'says (specs.StackedFrames)')
    restarts[t, i] = True


def restack(buffer: Frames, out: np.ndarray) -> None:
  """Writes the observations `[T+1, B, ..., K * C]` to `out`."""
  frames, restarts = buffer
  length, channels, num_frames = (
      len(restarts), frames.shape[-1], buffer.num_frames)
  for j in range(num_frames):
    out[..., j * channels:(j + 1) * channels] = frames[j:j + length]
  # In order of time, as a later restart overrules an earlier one.
  for t, i in np.argwhere(restarts):
    newest = frames[t + num_frames - 1, i]
    for row in range(t, min(t + num_frames - 1, length)):
      older = num_frames - 1 - (row - t)
      for j in range(older):
        out[row, i, ..., j * channels:(j + 1) * channels] = newest
