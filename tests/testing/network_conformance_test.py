"""The checks of networks accept our own and find planted faults."""

import functools

from cleanba_acme import specs
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory as network_factory
from cleanba_acme.testing import compilation
from cleanba_acme.testing import conformance
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(autouse=True, scope='module')
def _unoptimized():
  with compilation.unoptimized():
    yield


def _make_networks(spec, **fields):
  return network_factory.make_networks(
      spec, network_config.NetworkConfig(**{'hiddens': (8,), **fields}))


def _make_spec(observations, actions=specs.DiscreteArray(3)):
  return specs.EnvironmentSpec(
      observations, actions, specs.Array((), np.float32),
      specs.BoundedArray((), np.float32, 0., 1.))


_VECTOR = _make_spec(specs.Array((5,), np.float32))
_PIXELS = _make_spec({
    'image': specs.BoundedArray((12, 12, 2), np.uint8, 0, 255),
    'vector': specs.Array((2,), np.float32)})


@pytest.mark.parametrize('spec, fields', [
    (_VECTOR, {}),
    (_VECTOR, {'core': 'lstm', 'core_size': 8}),
    (_VECTOR, {'core': 'gru', 'core_size': 8, 'normalize_observations': True}),
    (_PIXELS, {'torso': 'conv', 'channels': (4,)}),
    (_make_spec(_VECTOR.observations,
                specs.BoundedArray((2,), np.int32, 1, [2, 5])), {}),
    (_make_spec(_VECTOR.observations,
                specs.BoundedArray((2,), np.float32, -2., 1.)), {}),
    (_make_spec(_VECTOR.observations,
                specs.BoundedArray((2,), np.float32, -2., 1.)),
     {'continuous_policy': 'clipped'}),
], ids=['mlp', 'lstm', 'gru', 'conv', 'multidiscrete', 'tanh', 'clipped'])
def test_our_networks_conform(spec, fields):
  conformance.check_networks(_make_networks(spec, **fields), spec)


class TestMLP(conformance.NetworkTests):

  def make_networks(self, spec):
    return _make_networks(spec)

  def make_spec(self):
    return _VECTOR


def _change_apply(change, **fields):
  networks = _make_networks(_VECTOR, **fields)
  return networks._replace(apply=functools.partial(change, networks.apply))


def _forget_never(apply, params, observation, is_first, state):
  return apply(params, observation, jnp.zeros_like(is_first), state)


def _reset_a_row_late(apply, params, observation, is_first, state):
  return apply(params, observation, jnp.roll(is_first, 1, axis=0), state)


def _lose_state(apply, params, observation, is_first, state):
  policy, value, _ = apply(params, observation, is_first, state)
  return policy, value, state


def _normalize_over_environments(apply, params, observation, is_first, state):
  observation = observation - jnp.mean(observation, axis=1, keepdims=True)
  return apply(params, observation, is_first, state)


def _look_ahead(apply, params, observation, is_first, state):
  return apply(params, jnp.cumsum(observation[::-1], 0)[::-1], is_first, state)


def _keep_axis(apply, params, observation, is_first, state):
  policy, value, state = apply(params, observation, is_first, state)
  return policy, value[..., None], state


def _explode(apply, params, observation, is_first, state):
  policy, value, state = apply(params, observation, is_first, state)
  return policy, value / 0., state


def _root_of_zero(apply, params, observation, is_first, state):
  policy, value, state = apply(params, observation, is_first, state)
  return policy, value + jnp.sqrt(0. * value), state


@pytest.mark.parametrize('change, fields, message', [
    (_forget_never, {'core': 'gru'}, 'outputs after is_first'),
    (_reset_a_row_late, {'core': 'gru'}, 'of a single step at row'),
    (_lose_state, {'core': 'lstm'}, 'of a single step at row'),
    (_normalize_over_environments, {}, 'beside other environments'),
    (_look_ahead, {}, 'of a single step at row 0'),
    (_keep_axis, {}, r'value: expected shape \(3, 4\) and dtype float32, saw'),
    (_explode, {}, 'value: expected finite numbers, saw'),
    (_root_of_zero, {}, 'gradient of .*: expected finite numbers'),
])
def test_faulty_networks_are_found(change, fields, message):
  with pytest.raises(AssertionError, match=message):
    conformance.check_networks(_change_apply(change, **fields), _VECTOR)


def test_look_ahead_is_found_by_its_own_check():
  with pytest.raises(AssertionError, match='before other later rows'):
    conformance.check_no_future(_change_apply(_look_ahead), _VECTOR)


def test_faulty_observe_is_found():
  networks = _make_networks(_VECTOR)._replace(
      observe=lambda params, observation: (params, observation))
  with pytest.raises(AssertionError, match='after observe'):
    conformance.check_networks(networks, _VECTOR)
