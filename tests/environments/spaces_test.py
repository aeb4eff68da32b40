"""Tests of the translation of spaces and dtypes."""

from cleanba_acme.environments import spaces
from dm_env import specs
from gymnasium import spaces as gym_spaces
import numpy as np
import pytest


@pytest.mark.parametrize('dtype, expected', [
    (np.float64, np.float32), (np.float32, np.float32),
    (np.float16, np.float32), (np.int64, np.int32), (np.int8, np.int32),
    (np.uint16, np.int32), (np.uint8, np.uint8), (bool, bool)])
def test_canonical_dtype(dtype, expected):
  assert spaces.canonical_dtype(dtype) == expected


@pytest.mark.parametrize('dtype', [object, str, complex])
def test_unsupported_dtype_raises(dtype):
  with pytest.raises(ValueError, match='not supported'):
    spaces.canonical_dtype(dtype)


@pytest.mark.parametrize('space, expected', [
    (gym_spaces.Box(-np.inf, np.inf, (3,), np.float64),
     specs.Array((3,), np.float32, 'observation')),
    (gym_spaces.Box(0, 255, (4, 5, 3), np.uint8),
     specs.BoundedArray((4, 5, 3), np.uint8, 0, 255, 'observation')),
    (gym_spaces.Box(-2, 9, (), np.int64),
     specs.BoundedArray((), np.int32, -2, 9, 'observation')),
    (gym_spaces.Discrete(7), specs.DiscreteArray(7, np.int32, 'observation')),
    (gym_spaces.MultiDiscrete([3, 2]),
     specs.BoundedArray((2,), np.int32, 0, [2, 1], 'observation')),
    (gym_spaces.MultiBinary(4),
     specs.BoundedArray((4,), np.int32, 0, 1, 'observation')),
    (gym_spaces.Dict(a=gym_spaces.Discrete(2),
                     b=gym_spaces.Tuple([gym_spaces.Discrete(3)])),
     {'a': specs.DiscreteArray(2, np.int32, 'observation/a'),
      'b': (specs.DiscreteArray(3, np.int32, 'observation/b/0'),)}),
])
def test_observation_spec(space, expected):
  assert spaces.observation_spec(space) == expected


@pytest.mark.parametrize('space, expected', [
    (gym_spaces.Discrete(7), specs.DiscreteArray(7, np.int32, 'action')),
    (gym_spaces.MultiDiscrete([3, 2]),
     specs.BoundedArray((2,), np.int32, 0, [2, 1], 'action')),
    (gym_spaces.Box(np.array([-1., 0.]), np.array([1., 3.]), dtype=np.float64),
     specs.BoundedArray((2,), np.float32, [-1, 0], [1, 3], 'action')),
])
def test_action_spec(space, expected):
  assert spaces.action_spec(space) == expected


@pytest.mark.parametrize('space', [
    gym_spaces.Discrete(7, start=1), gym_spaces.Text(3),
    gym_spaces.Sequence(gym_spaces.Discrete(2))])
def test_unsupported_observation_space_raises(space):
  with pytest.raises(ValueError, match='observation/x has the space'):
    spaces.observation_spec(gym_spaces.Dict(x=space))


@pytest.mark.parametrize('space', [
    gym_spaces.Discrete(7, start=1), gym_spaces.MultiDiscrete([[2, 2], [2, 2]]),
    gym_spaces.Box(-np.inf, np.inf, (3,)), gym_spaces.Box(0, 9, (3,), int),
    gym_spaces.Box(-1e300, 1e300, (3,), np.float64), gym_spaces.MultiBinary(2),
    gym_spaces.Dict(a=gym_spaces.Discrete(2))])
def test_unsupported_action_space_raises(space):
  with pytest.raises(ValueError, match='(?s)action space .* is not supported'):
    spaces.action_spec(space)


@pytest.mark.parametrize('action, dtype', [
    (np.array([0, 2]), np.int32), (np.array([0, 2], np.int32), np.int64)])
def test_checked_action(action, dtype):
  spec = specs.DiscreteArray(3)
  checked = spaces.checked_action(action, 2, spec, dtype)
  assert checked.dtype == dtype
  assert checked.tolist() == [0, 2]


@pytest.mark.parametrize('action', [np.array([0, 1, 2]), np.array([0., 1.])])
def test_wrong_action_raises(action):
  with pytest.raises(ValueError, match=r'expected actions of shape \(2,\)'):
    spaces.checked_action(action, 2, specs.DiscreteArray(3), np.int32)
