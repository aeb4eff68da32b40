"""The description of an environment that networks and channels are built from.
"""

from typing import Any, NamedTuple

from dm_env import specs

# The kinds of leaves an `EnvironmentSpec` is made of.
Array = specs.Array
BoundedArray = specs.BoundedArray
DiscreteArray = specs.DiscreteArray


class StackedFrames(BoundedArray):
  """A `BoundedArray` of the last frames `[..., num_frames * C]`, oldest first.

  It promises how the stack moves on, so that each frame needs to travel only
  once (`frames.py`): from step to step the oldest frame leaves and a new one
  comes. Where an episode starts, that holds too, or the stack is the new frame
  `num_frames` times.
  """
  __slots__ = ('_num_frames',)

  def __init__(self, shape, dtype, minimum, maximum, num_frames, name=None):
    """As `BoundedArray`, whose last axis holds `num_frames` frames."""
    super().__init__(shape, dtype, minimum, maximum, name)
    if num_frames < 1 or not shape or shape[-1] % num_frames:
      raise ValueError(
          f'num_frames={num_frames}: must divide the last axis of {shape}')
    self._num_frames = num_frames

  @property
  def num_frames(self) -> int:
    """Frames of the stack."""
    return self._num_frames

  def __eq__(self, other):
    return (isinstance(other, StackedFrames)
            and self.num_frames == other.num_frames and super().__eq__(other))

  def __reduce__(self):
    return StackedFrames, (self.shape, self.dtype, self.minimum, self.maximum,
                           self.num_frames, self.name)


class EnvironmentSpec(NamedTuple):
  """Specs of *one* environment: shapes carry no batch dimension.

  Attributes:
    observations: Tree of `dm_env.specs.Array`.
    actions: A `dm_env.specs.Array`; a `DiscreteArray` for discrete actions.
    rewards: Spec of the scalar training reward.
    discounts: Spec of the scalar discount.
  """
  observations: Any
  actions: Any
  rewards: specs.Array
  discounts: specs.BoundedArray
