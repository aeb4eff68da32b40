"""Tests of observation preprocessing."""

from cleanba_acme import specs
from cleanba_acme.networks import observations
from dm_env import specs as dm_specs
import numpy as np
import pytest


def test_each_kind_of_leaf():
  observation_specs = {
      'pixels': specs.BoundedArray((2, 2, 1), np.uint8, 0, 255),
      'memory': specs.BoundedArray((3,), np.uint8, 0, 255),
      'choice': specs.DiscreteArray(3),
      'counts': specs.BoundedArray((2,), np.int64, 0, 9),
      'vector': specs.Array((2,), np.float64),
      'flag': specs.Array((), bool),
  }
  observation = {
      'pixels': np.full((2, 2, 2, 1), 51, np.uint8),
      'memory': np.array([[0, 51, 255], [255, 0, 51]], np.uint8),
      'choice': np.array([2, 0]),
      'counts': np.array([[1, 9], [0, 3]]),
      'vector': np.array([[-1e3, 0.5], [2., 3.]]),
      'flag': np.array([True, False]),
  }
  outputs = observations.preprocess(observation_specs, observation)
  expected = {
      'pixels': np.full((2, 2, 2, 1), 0.2),
      'memory': [[0, 0.2, 1], [1, 0, 0.2]],
      'choice': [[0, 0, 1], [1, 0, 0]],
      'counts': [[1, 9], [0, 3]],
      'vector': [[-1e3, 0.5], [2., 3.]],
      'flag': [1, 0],
  }
  assert outputs.keys() == expected.keys()
  for name, value in expected.items():
    assert outputs[name].dtype == np.float32, name
    np.testing.assert_allclose(outputs[name], value, rtol=1e-6, err_msg=name)


def test_observation_of_other_shape_is_refused():
  with pytest.raises(AssertionError):
    observations.preprocess(specs.Array((3,), np.float32), np.zeros((2, 4)))


@pytest.mark.parametrize('observation_specs', [
    {},
    {'text': dm_specs.StringArray(())},
    {'vector': specs.Array((2,), np.float32), 'z': specs.Array((), complex)},
])
def test_unsupported_specs_are_refused(observation_specs):
  with pytest.raises(ValueError, match='Observation spec'):
    observations.check_specs(observation_specs)
