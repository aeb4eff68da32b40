"""Tests of the torsos: shapes, sizes and Cleanba's initialisation."""

from cleanba_acme.networks import torsos
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_KEY = jax.random.PRNGKey(0)


def _transform(make_torso):
  return hk.without_apply_rng(hk.transform(lambda x: make_torso()(x)))


def _num_params(params):
  return sum(x.size for x in jax.tree.leaves(params))


def _shapes(make_torso, *shape):
  """Returns the shapes of parameters and features, without computing."""
  network = _transform(make_torso)
  observation = jax.ShapeDtypeStruct(shape, jnp.float32)
  params = jax.eval_shape(network.init, _KEY, observation)
  return params, jax.eval_shape(network.apply, params, observation).shape


def test_resnet_has_the_size_of_cleanba():
  # Counted from Cleanba's Network for 84 x 84 x 4: a stage is one convolution
  # of its input and four of its own channels; 84 -> 42 -> 21 -> 11.
  stages = [(9 * i + 1) * o + 4 * (9 * o + 1) * o
            for i, o in [(4, 16), (16, 32), (32, 32)]]
  expected = sum(stages) + (11 * 11 * 32 + 1) * 256
  assert expected == 1_089_232
  params, shape = _shapes(torsos.ResNet, 5, 84, 84, 4)
  assert _num_params(params) == expected
  assert shape == (5, 256)


def test_nature_cnn_has_the_size_of_dqn():
  params, shape = _shapes(torsos.NatureCNN, 5, 84, 84, 4)
  assert _num_params(params) == 1_684_128
  assert shape == (5, 512)


@pytest.mark.parametrize('shape', [(42, 42, 4), (10, 5), (10, 5, 1), (1, 1)])
def test_conv_net_takes_small_images_and_boards(shape):
  _, features = _shapes(torsos.ConvNet, 3, *shape)
  assert features == (3, 256)


def test_conv_net_is_configurable():
  params, features = _shapes(
      lambda: torsos.ConvNet((4, 8), (5, 2), (1, 3), ()), 2, 10, 5)
  assert features == (2, 4 * 2 * 8)
  assert sorted(x.shape for x in jax.tree.leaves(params) if x.ndim == 4) == [
      (2, 2, 4, 8), (5, 5, 1, 4)]


def test_resnet_without_channels_is_an_mlp():
  params, features = _shapes(lambda: torsos.ResNet((), (64,)), 2, 6)
  assert features == (2, 64)
  assert _num_params(params) == (6 + 1) * 64


def test_vectors_join_the_image_features():
  network = _transform(lambda: torsos.ConvNet((8,), hiddens=(16,)))
  observation = {'image': jnp.ones((3, 4, 4, 1)), 'reward': jnp.zeros(3),
                 'vector': jnp.zeros((3, 5))}
  params = network.init(_KEY, observation)
  assert params['conv_net/mlp/linear']['w'].shape == (
      2 * 2 * 8 + 1 + 5, 16)
  before = network.apply(params, observation)
  for name in ('image', 'reward', 'vector'):
    changed = dict(observation)
    changed[name] = observation[name] + 1.
    assert np.any(network.apply(params, changed) != before), name


def test_mlp_flattens_and_concatenates():
  _, features = _shapes(torsos.MLP, 2, 10, 5)
  assert features == (2, 64)
  network = _transform(lambda: torsos.MLP((7,)))
  params = network.init(_KEY, (jnp.zeros((2, 3, 4)), jnp.zeros(2)))
  assert params['mlp/linear']['w'].shape == (13, 7)


def test_hidden_layers_are_orthogonal_with_the_gain_of_relu():
  network = _transform(lambda: torsos.MLP((32, 16)))
  params = network.init(_KEY, jnp.zeros((1, 64)))
  for layer in params.values():
    np.testing.assert_allclose(
        layer['w'].T @ layer['w'], 2. * np.eye(layer['w'].shape[1]), atol=1e-5)
    assert not layer['b'].any()


@pytest.mark.parametrize('make_torso, name', [
    (lambda: torsos.ConvNet((16,), hiddens=()), 'conv_net'),
    (lambda: torsos.NatureCNN((16, 8, 8), hiddens=()), 'nature_cnn')])
def test_plain_convolutions_are_orthogonal(make_torso, name):
  params = _transform(make_torso).init(_KEY, jnp.zeros((1, 36, 36, 4)))
  conv = params[f'{name}/~body/conv2_d']
  w = conv['w'].reshape(-1, 16)
  np.testing.assert_allclose(w.T @ w, 2. * np.eye(16), atol=1e-5)
  assert not conv['b'].any()


def test_convolutions_of_the_resnet_are_those_of_cleanba():
  network = _transform(lambda: torsos.ResNet((64,), hiddens=()))
  params = network.init(_KEY, jnp.zeros((1, 4, 4, 32)))
  conv = params['res_net/~body/conv2_d']
  # LeCun: variance 1 / fan-in. Truncated at two deviations of the normal
  # before truncation, whose own deviation is 0.8796 of it.
  np.testing.assert_allclose(conv['w'].var(), 1 / (9 * 32), rtol=0.05)
  np.testing.assert_allclose(
      np.abs(conv['w']).max(), 2 / 0.8796 / np.sqrt(9 * 32), rtol=0.02)
  assert not conv['b'].any()


@pytest.mark.parametrize(
    'make_torso', [torsos.NatureCNN, torsos.ConvNet, torsos.ResNet])
def test_image_torso_without_image_is_refused(make_torso):
  with pytest.raises(ValueError, match='needs an image'):
    _shapes(make_torso, 2, 6)


def test_image_too_small_for_nature_cnn_is_refused():
  with pytest.raises(ValueError, match=r'\(10, 5, 1\): too small'):
    _shapes(torsos.NatureCNN, 2, 10, 5)
