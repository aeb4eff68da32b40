"""Translates gymnasium's spaces and numpy's dtypes to what networks see.

Whatever its source, an environment delivers float32 for real numbers, int32
for integers, and uint8 and bool as they are: the types JAX computes with.
"""

from typing import Any, Tuple

from cleanba_acme import specs
from cleanba_acme import types
import numpy as np


def canonical_dtype(dtype: np.dtype) -> np.dtype:
  """Returns the dtype in which data of `dtype` is delivered.

  Args:
    dtype: The dtype in which an environment has its data.

  Returns:
    float32 for floats, int32 for integers, uint8 and bool unchanged.

  Raises:
    ValueError: If `dtype` is none of these, for example an object or a string.
  """
  dtype = np.dtype(dtype)
  if dtype == np.uint8 or dtype == np.bool_:
    return dtype
  if np.issubdtype(dtype, np.floating):
    return np.dtype(np.float32)
  if np.issubdtype(dtype, np.integer):
    return np.dtype(np.int32)
  raise ValueError(f'data of dtype {dtype} is not supported; supported are '
                   'floats, integers and booleans')


def reward_spec() -> specs.Array:
  """Returns the spec of every reward: a float32 scalar."""
  return specs.Array((), np.float32, name='reward')


def discount_spec() -> specs.BoundedArray:
  """Returns the spec of every discount: a float32 scalar between 0 and 1."""
  return specs.BoundedArray((), np.float32, 0., 1., name='discount')


def observation_spec(space: Any, path: Tuple[str, ...] = ()) -> Any:
  """Converts a gymnasium observation space to a tree of specs.

  A `Dict` becomes a dict and a `Tuple` a tuple. The bounds of floats are
  dropped: many environments state wrong ones (envpool's dm_control ids claim
  that no position is negative) and no network needs them.

  Args:
    space: A `gymnasium.Space`.
    path: Where `space` lies within the whole observation.

  Returns:
    A tree of `dm_env.specs.Array`.

  Raises:
    ValueError: If a space can't be given to a network as an array.
  """
  from gymnasium import spaces
  name = '/'.join(('observation',) + path)
  if isinstance(space, spaces.Dict):
    return {key: observation_spec(child, path + (str(key),))
            for key, child in space.spaces.items()}
  if isinstance(space, spaces.Tuple):
    return tuple(observation_spec(child, path + (str(i),))
                 for i, child in enumerate(space.spaces))
  if isinstance(space, spaces.Discrete) and space.start == 0:
    return specs.DiscreteArray(int(space.n), np.int32, name)
  if isinstance(space, spaces.MultiDiscrete) and not np.any(space.start):
    return specs.BoundedArray(space.shape, np.int32, 0, space.nvec - 1, name)
  if isinstance(space, spaces.MultiBinary):
    return specs.BoundedArray(space.shape, np.int32, 0, 1, name)
  if isinstance(space, spaces.Box):
    dtype = canonical_dtype(space.dtype)
    if np.issubdtype(dtype, np.floating):
      return specs.Array(space.shape, dtype, name)
    return specs.BoundedArray(
        space.shape, dtype, space.low.min(), space.high.max(), name)
  raise ValueError(
      f'{name} has the space {space}, which is not supported; supported are '
      'Box, Discrete, MultiDiscrete (these two starting at 0), MultiBinary, '
      'and Dict and Tuple of these')


def action_spec(space: Any) -> specs.Array:
  """Converts a gymnasium action space to a spec.

  Args:
    space: A `gymnasium.Space`.

  Returns:
    A `DiscreteArray` for a `Discrete`; an int32 `BoundedArray` `[K]` for `K`
    discrete choices; a float32 `BoundedArray` for a `Box`.

  Raises:
    ValueError: If the space is of another kind, or a `Box` has no finite
      bounds: a policy is squashed or clipped to them.
  """
  from gymnasium import spaces
  if isinstance(space, spaces.Discrete) and space.start == 0:
    return specs.DiscreteArray(int(space.n), np.int32, 'action')
  if (isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1
      and not np.any(space.start)):
    return specs.BoundedArray(
        space.shape, np.int32, 0, space.nvec - 1, 'action')
  if (isinstance(space, spaces.Box)
      and np.issubdtype(space.dtype, np.floating)):
    with np.errstate(over='ignore'):  # The largest float64 means infinity.
      low = space.low.astype(np.float32)
      high = space.high.astype(np.float32)
    if np.all(np.isfinite(low)) and np.all(np.isfinite(high)):
      return specs.BoundedArray(space.shape, np.float32, low, high, 'action')
  raise ValueError(
      f'the action space {space} is not supported; supported are Discrete and '
      '1-dimensional MultiDiscrete starting at 0, and Box of floats with '
      'finite bounds')


def checked_action(action: types.Array, num_envs: int, spec: specs.Array,
                   dtype: np.dtype) -> np.ndarray:
  """Returns a batch of actions as numpy array of `dtype`.

  Args:
    action: `[B, ...]`.
    num_envs: `B`.
    spec: Spec of the action of one environment.
    dtype: The type that the environments expect.

  Raises:
    ValueError: If the shape is not that of the spec with `B` in front, or the
      action is of another kind of number.
  """
  action = np.asarray(action)
  expected_shape = (num_envs,) + spec.shape
  if (action.shape != expected_shape
      or not np.can_cast(action.dtype, spec.dtype, 'same_kind')):
    raise ValueError(
        f'expected actions of shape {expected_shape} and dtype {spec.dtype}, '
        f'got shape {action.shape} and dtype {action.dtype}')
  return action.astype(dtype)
