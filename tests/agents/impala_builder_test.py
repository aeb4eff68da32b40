"""Tests of IMPALA's optimiser, and of how its builder composes an update."""

import functools

from cleanba_acme import builder as builder_lib
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory as network_factory
from cleanba_acme.testing import collect
from cleanba_acme.testing import compilation
import jax
import numpy as np
import optax
import pytest

# What PyTorch 2.13.0 prints for:
#
#   import torch
#   x = torch.nn.Parameter(torch.tensor([1., -2., .5], dtype=torch.float64))
#   optimizer = torch.optim.RMSprop([x], lr=6e-4, alpha=0.99, eps=0.01)
#   for i in range(1, 11):
#     x.grad = torch.tensor([.1 * i, -3. / i, .001 * (-1) ** i]).double()
#     optimizer.step()
#     print([float('%.12g' % value) for value in x.tolist()])
_PYTORCH = [
    [0.997, -1.99419354839, 0.500059405941],
    [0.993289230706, -1.99157777013, 0.500000240571],
    [0.989486663648, -1.98989760639, 0.500059224051],
    [0.985770919125, -1.98865936224, 0.500000391895],
    [0.982192074614, -1.98767770921, 0.500059092373],
    [0.97875846771, -1.98686347564, 0.500000509543],
    [0.975464301561, -1.98616701486, 0.500058985411],
    [0.972299341651, -1.98555787778, 0.500000608002],
    [0.969252515124, -1.98501605432, 0.500058893932],
    [0.966313246808, -1.98452769482, 0.500000693611],
]

_FACTORY = batch.DmEnvFactory(functools.partial(catch.Catch, rows=4, columns=3))
_NETWORKS = network_factory.make_networks(
    _FACTORY.spec, network_config.NetworkConfig(hiddens=(8,)))
_LENGTH = 6


@pytest.fixture(autouse=True, scope='module')
def _unoptimized():
  with compilation.unoptimized():
    yield


def _steps(config, gradients, params, num_updates=100):
  """Returns the parameters after every step of our optimiser."""
  optimizer = impala_builder.make_optimizer(config, num_updates)
  state = optimizer.init(params)
  history = []
  for gradient in gradients:
    updates, state = optimizer.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
    history.append(params)
  return np.stack(history)


def test_optimizer_is_pytorchs():
  gradients = [
      np.array([.1 * i, -3. / i, .001 * (-1) ** i], np.float32)
      for i in range(1, 11)]
  history = _steps(
      impala_config.IMPALAConfig(
          max_gradient_norm=1e6, anneal_learning_rate=False),
      gradients, np.array([1., -2., .5], np.float32))
  np.testing.assert_allclose(history, _PYTORCH, rtol=0, atol=1e-6)


def test_gradients_are_clipped_by_their_norm():
  gradient = np.array([3., 4.], np.float32)
  make = functools.partial(
      impala_config.IMPALAConfig, max_gradient_norm=0.5,
      anneal_learning_rate=False)
  params = np.zeros(2, np.float32)
  clipped = _steps(make(), [gradient], params)
  np.testing.assert_allclose(
      clipped, _steps(make(), [gradient / 10], params), rtol=1e-6)
  # Shorter ones are as they are.
  np.testing.assert_array_equal(
      _steps(make(), [gradient / 20], params),
      _steps(make(max_gradient_norm=1e6), [gradient / 20], params))


def test_learning_rate_falls_linearly_and_is_constant_within_an_update():
  # With the latest gradient as its only memory, a step is the learning rate.
  history = _steps(
      impala_config.IMPALAConfig(
          learning_rate=0.1, rmsprop_decay=0., rmsprop_epsilon=1e-12,
          num_minibatches=2),
      [np.ones((), np.float32)] * 8, np.zeros((), np.float32), num_updates=4)
  np.testing.assert_allclose(
      -np.diff(history, prepend=0),
      0.1 * np.array([1, 1, .75, .75, .5, .5, .25, .25]), rtol=1e-5)


def _make_learner(num_envs, num_minibatches=1):
  return impala_builder.IMPALABuilder(
      impala_config.IMPALAConfig(
          num_minibatches=num_minibatches, anneal_learning_rate=False)
  ).make_learner_core(
      _NETWORKS, builder_lib.RunSizes(_LENGTH, num_envs, num_updates=10))


@pytest.fixture(name='rollout', scope='module')
def _rollout():
  """A rollout of four environments, in which episodes end."""
  core = impala_builder.IMPALABuilder(
      impala_config.IMPALAConfig()).make_actor_core(_NETWORKS)
  rollout, = collect.collect(
      _FACTORY, core, _NETWORKS.init(jax.random.PRNGKey(1)), num_envs=4,
      unroll_length=_LENGTH)
  assert set(rollout.extras) == {'log_prob'}
  return rollout


def _environments(rollout, indices):
  return jax.tree.map(lambda x: x[:, np.array(indices)], rollout)


def _init(core):
  return core.init(jax.random.PRNGKey(0), jax.random.PRNGKey(2))


def test_loss_sums_over_the_global_batch(rollout):
  updates = {}
  for copies in (1, 3):
    core = _make_learner(num_envs=4 * copies)
    _, updates[copies] = core.update(
        _init(core), _environments(rollout, [0, 1, 2, 3] * copies))
  for name, value in updates[1].items():
    np.testing.assert_allclose(updates[3][name], 3 * value, rtol=1e-5)
  assert updates[1]['gradient_norm'] > 0
  # Of 6 steps, episodes of 3 steps and a dummy have 5.
  assert updates[1]['valid_steps'] == 4 * 5


def test_minibatches_are_environments_in_order(rollout):
  whole = _make_learner(num_envs=4, num_minibatches=2)
  state, metrics = whole.update(_init(whole), rollout)
  half = _make_learner(num_envs=2)
  expected, first = half.update(_init(half), _environments(rollout, [0, 1]))
  expected, second = half.update(
      expected, _environments(rollout, [2, 3]))
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
      state.params, expected.params)
  np.testing.assert_allclose(
      metrics['gradient_norm'],
      (first['gradient_norm'] + second['gradient_norm']) / 2, rtol=1e-5)
  other, _ = whole.update(
      _init(whole), _environments(rollout, [2, 3, 0, 1]))
  with pytest.raises(AssertionError):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        state.params, other.params)


def test_environments_must_divide_into_minibatches():
  with pytest.raises(ValueError, match='num_minibatches=3: must divide the 4'):
    _make_learner(num_envs=4, num_minibatches=3)
