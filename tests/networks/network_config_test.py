"""Tests of `NetworkConfig`: every field counts, and bad ones are refused."""

import dataclasses
import os
import subprocess
import sys

from cleanba_acme import specs
from cleanba_acme.networks import config as config_lib
from cleanba_acme.networks import factory
import jax
import numpy as np
import pytest

_VECTOR = specs.Array((4,), np.float32)
_PIXELS = specs.BoundedArray((20, 20, 2), np.uint8, 0, 255)
_BOX = specs.BoundedArray((2,), np.float32, -1., 1.)


def _make_spec(observations, actions=specs.DiscreteArray(3)):
  return specs.EnvironmentSpec(
      observations, actions, specs.Array((), np.float32),
      specs.BoundedArray((), np.float32, 0., 1.))


def _program(spec, **fields):
  """Returns the text of what a config's network computes, and its start."""
  networks = factory.make_networks(spec, config_lib.NetworkConfig(**fields))
  key = jax.random.PRNGKey(0)
  params = jax.eval_shape(networks.init, key)
  observation = jax.tree.map(
      lambda leaf: np.zeros((2, 3) + leaf.shape, leaf.dtype), spec.observations)

  def apply(params, observation):
    policy, value, state = networks.apply(
        params, observation, np.zeros((2, 3), bool), networks.initial_state(3))
    return policy.log_prob(policy.mode()), value, state

  return str((jax.make_jaxpr(networks.init)(key),
              jax.make_jaxpr(apply)(params, observation)))


_BASE = {'torso': 'conv', 'channels': (4, 4)}
# For each field: a spec, a base config, and a value other than the base's.
_CHANGES = {
    'torso': (_make_spec(_PIXELS), {}, 'mlp'),
    'channels': (_make_spec(_PIXELS), {'torso': 'resnet'}, (4, 4)),
    'kernels': (_make_spec(_PIXELS), _BASE, (3, 2)),
    'strides': (_make_spec(_PIXELS), _BASE, (2, 1)),
    'hiddens': (_make_spec(_VECTOR), {}, (64, 32)),
    'core': (_make_spec(_VECTOR), {'core': 'gru'}, 'lstm'),
    'core_size': (_make_spec(_VECTOR), {'core': 'gru'}, 8),
    'continuous_policy': (_make_spec(_VECTOR, _BOX), {}, 'clipped'),
    'initial_log_std': (_make_spec(_VECTOR, _BOX), {}, -1.),
    'separate_value_torso': (_make_spec(_VECTOR), {}, False),
    'normalize_observations': (_make_spec(_VECTOR), {}, True),
}


@pytest.mark.parametrize(
    'field', dataclasses.fields(config_lib.NetworkConfig), ids=lambda f: f.name)
def test_every_field_changes_the_network(field):
  spec, fields, value = _CHANGES[field.name]
  before = _program(spec, **fields)
  assert before == _program(spec, **fields)
  assert before != _program(spec, **{**fields, field.name: value})
  assert field.metadata['help'].endswith('.')


@pytest.mark.parametrize('observations, torso', [
    (_PIXELS, 'resnet'), (_VECTOR, 'mlp'),
    (specs.Array((10, 5), np.float32), 'mlp'),
    ({'image': _PIXELS, 'vector': _VECTOR}, 'resnet')])
def test_auto_chooses_by_observation(observations, torso):
  spec = _make_spec(observations)
  assert _program(spec) == _program(spec, torso=torso)


@pytest.mark.parametrize('torso', ['nature', 'resnet', 'conv'])
def test_torsos_work_on_pixels(torso):
  spec = _make_spec(specs.BoundedArray((42, 42, 2), np.uint8, 0, 255))
  assert 'conv_general_dilated' in _program(spec, torso=torso)


def test_defaults_are_those_of_cleanba():
  spec = _make_spec(specs.BoundedArray((84, 84, 4), np.uint8, 0, 255),
                    specs.DiscreteArray(18))
  params = jax.eval_shape(
      factory.make_networks(spec).init, jax.random.PRNGKey(0))
  # 1,089,232 of the ResNet, and two heads of its 256 features.
  assert sum(x.size for x in jax.tree.leaves(params)) == (
      1_089_232 + 257 * 18 + 257)


def test_lists_become_tuples():
  config = config_lib.NetworkConfig(torso='conv', channels=[8, 8])
  assert config.channels == (8, 8)
  assert hash(config) == hash(
      config_lib.NetworkConfig(torso='conv', channels=(8, 8)))


@pytest.mark.parametrize('fields, message', [
    ({'torso': 'cnn'}, "torso='cnn': must be one of auto, mlp, nature"),
    ({'core': None}, 'core=None: must be of type str'),
    ({'continuous_policy': 'beta'}, "continuous_policy='beta': must be one of"),
    ({'hiddens': (64, 0)}, 'hiddens=0: must be a positive integer'),
    ({'hiddens': (6.5,)}, 'hiddens=6.5: must be a positive integer'),
    ({'core_size': -1}, 'core_size=-1: must be at least 1'),
    ({'initial_log_std': 3.}, 'initial_log_std=3.0: must be at most 2'),
    ({'initial_log_std': float('nan')}, 'initial_log_std=nan: must be finite'),
    ({'channels': (8,)}, r"channels=\(8,\): torso='auto' takes none"),
    ({'torso': 'mlp', 'channels': ()}, "torso='mlp' takes none"),
    ({'torso': 'nature', 'channels': (8, 8)}, 'has exactly 3 layers'),
    ({'torso': 'resnet', 'kernels': (3, 3, 3)}, "only torso='conv' takes"),
    ({'torso': 'conv', 'strides': (1, 1)}, r'strides=\(1, 1\): must have one'),
    ({'torso': 'conv', 'channels': (8, 8), 'kernels': (3,)},
     r'kernels=\(3,\): must have one number per layer'),
])
def test_bad_fields_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    config_lib.NetworkConfig(**fields)


def test_config_imports_nothing_heavy():
  code = ('import sys; import cleanba_acme.networks.config; '
          'assert not {"jax", "numpy", "haiku"} & set(sys.modules)')
  subprocess.run(
      [sys.executable, '-c', code], check=True, timeout=60,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
