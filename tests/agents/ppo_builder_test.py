"""Tests of PPO as a whole: what the real learner does to real parameters."""

from cleanba_acme import actor_core
from cleanba_acme import builder as builder_lib
from cleanba_acme import learner_core
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.losses import ppo
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import collect
from cleanba_acme.testing import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

FIRST, MID, LAST = 0, 1, 2
_SPEC = specs.EnvironmentSpec(
    specs.Array((2,), np.float32), specs.DiscreteArray(3, np.int32),
    specs.Array((), np.float32), specs.BoundedArray((), np.float32, 0, 1))
_ENDS = pytest.mark.parametrize('last_discount', [0., 1.])


def _make_networks(core='none', spec=_SPEC):
  return factory.make_networks(spec, network_config.NetworkConfig(
      hiddens=(8,), core=core, core_size=4))


def _make_rollout(networks, last_discount=0.):
  """Four environments; the first ends an episode in row 2, goes on in row 3."""
  rng = np.random.default_rng(0)
  normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
  step_type = np.full((6, 4), MID, np.int32)
  step_type[:4, 0] = [FIRST, MID, LAST, FIRST]
  discount = np.ones((6, 4), np.float32)
  discount[2, 0] = last_discount
  return types.Rollout(
      observation=normal(6, 4, 2),
      reward=normal(6, 4) * (step_type != FIRST),
      discount=discount,
      step_type=step_type,
      action=rng.integers(3, size=(5, 4)).astype(np.int32),
      extras={'log_prob': -1.1 + 0.1 * normal(6, 4), 'value': normal(6, 4)},
      core_state=jax.tree.map(np.asarray, networks.initial_state(4)))


def _change(rollout, row, **changes):
  """Returns a copy with other numbers for the first environment in a row."""
  rollout = jax.tree.map(np.copy, rollout)
  arrays = {**rollout._asdict(), **rollout.extras}
  for name, value in changes.items():
    assert not np.array_equal(arrays[name][row, 0], value)
    arrays[name][row, 0] = value
  return rollout


def _make_learner(networks, loss=ppo.ppo_loss, **config):
  # Nothing is clipped: every valid step has a gradient.
  settings = {'num_epochs': 2, 'num_minibatches': 2, 'learning_rate': 0.01,
              'clip_epsilon': 9.}
  return ppo_builder.PPOBuilder(
      ppo_config.PPOConfig(**{**settings, **config}), loss).make_learner_core(
          networks, builder_lib.RunSizes(5, 4, num_updates=10),
          learner_core.Execution())


def _update(learner, rollout):
  """Returns parameters before and after, and metrics, of a first update."""
  state = learner.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))
  after, metrics = learner.update(state, rollout)
  return state.params, after.params, metrics


def _same_bits(tree, other):
  return all(jax.tree.leaves(jax.tree.map(
      lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(),
      tree, other)))


class _Subject:
  """A network and its learner, which is compiled once."""

  def __init__(self, core):
    self._networks = _make_networks(core)
    self._learner = _make_learner(self._networks)

  def rollout(self, last_discount=0.):
    return _make_rollout(self._networks, last_discount)

  def notices(self, last_discount, row, **changes):
    """Whether the parameters after an update depend on these numbers."""
    rollout = self.rollout(last_discount)
    before, params, _ = _update(self._learner, rollout)
    assert not _same_bits(before, params)
    _, changed, _ = _update(self._learner, _change(rollout, row, **changes))
    return not _same_bits(params, changed)


@pytest.fixture(name='subject', scope='module', params=['none', 'gru'])
def _subject(request):
  return _Subject(request.param)


@_ENDS
def test_dummy_step_teaches_nothing(subject, last_discount):
  # The action that the environment ignored, and how likely it was, and what
  # came of it.
  taken = subject.rollout().action[2, 0]
  for action in {0, 1, 2} - {taken}:
    assert not subject.notices(last_discount, 2, action=action)
  assert not subject.notices(last_discount, 2, log_prob=-60.)
  assert not subject.notices(last_discount, 3, reward=9.)
  assert not subject.notices(last_discount, 3, discount=0.)


@_ENDS
def test_observation_of_the_last_row_is_not_trained_on(subject, last_discount):
  assert not subject.notices(last_discount, 2, observation=[3., -4.])


def test_steps_beside_the_dummy_step_are_learned(subject):
  for row in (0, 1, 3, 4):
    other = (subject.rollout().action[row, 0] + 1) % 3
    assert subject.notices(0., row, action=other)
    assert subject.notices(0., row, observation=[3., -4.])
  assert subject.notices(0., 2, reward=9.)
  # The value of row T bootstraps; its log-probability is nobody's.
  assert subject.notices(0., 5, value=9.)
  assert not subject.notices(0., 5, log_prob=-9.)


@_ENDS
def test_value_of_the_last_row_counts_in_a_truncation_only(
    subject, last_discount):
  is_truncation = last_discount == 1.
  assert subject.notices(last_discount, 2, value=9.) == is_truncation


def test_advantages_are_normalised_over_the_valid_steps_of_a_minibatch():
  def loss(log_prob, value, entropy, **kwargs):
    weight, advantage = kwargs['weight'], kwargs['advantage']
    result, _ = ppo.ppo_loss(log_prob, value, entropy, **kwargs)
    return result, {
        'weight': jnp.abs(jnp.sum(weight) - 1.),
        'unequal': jnp.max(weight) - jnp.min(jnp.where(weight > 0, weight, 1.)),
        'mean': jnp.abs(jnp.sum(weight * advantage)),
        'variance': jnp.abs(jnp.sum(weight * jnp.square(advantage)) - 1.),
        'dummies': jnp.sum(jnp.abs(jnp.where(weight > 0, 0., advantage))),
    }

  networks = _make_networks()
  rollout = _make_rollout(networks, last_discount=1.)
  # Absolute values: an average over minibatches is 0 only if each one is.
  for num_minibatches in (1, 5):
    _, _, metrics = _update(
        _make_learner(networks, loss, num_minibatches=num_minibatches), rollout)
    for name in ('weight', 'unequal', 'mean', 'variance', 'dummies'):
      assert abs(metrics[name]) < 1e-5, (name, num_minibatches)
  _, _, metrics = _update(
      _make_learner(networks, loss, normalize_advantage=False), rollout)
  assert metrics['mean'] > 0.01 and metrics['variance'] > 0.01


def test_minibatch_of_dummy_steps_alone_does_no_harm():
  networks = _make_networks()
  rollout = _make_rollout(networks)
  step_type = np.full((6, 4), LAST, np.int32)
  before, params, metrics = _update(
      _make_learner(networks), rollout._replace(step_type=step_type))
  assert _same_bits(before, params)
  assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize('anneal, rates', [
    (True, [0.01, 0.0075, 0.005, 0.0025]), (False, [0.01] * 4)])
def test_learning_rate_of_every_update(anneal, rates):
  config = ppo_config.PPOConfig(
      learning_rate=0.01, anneal_learning_rate=anneal, num_epochs=3,
      num_minibatches=2, max_gradient_norm=1e6, adam_epsilon=1e-12)
  optimizer = ppo_builder.make_optimizer(config, num_updates=4)
  params = {'x': jnp.zeros(2)}
  state = optimizer.init(params)
  # With gradients that are always the same, Adam moves by its learning rate.
  gradients = {'x': jnp.array([2., -2.])}
  for rate in rates:
    for _ in range(3 * 2):
      updates, state = optimizer.update(gradients, state, params)
      np.testing.assert_allclose(updates['x'], [-rate, rate], rtol=1e-3)


def test_large_gradients_are_scaled_down():
  config = ppo_config.PPOConfig(max_gradient_norm=0.5)
  optimizer = ppo_builder.make_optimizer(config, num_updates=4)
  state = optimizer.init(jnp.zeros(2))
  _, state = optimizer.update(jnp.array([30., 40.]), state)
  # The first moment after one step is a tenth of the gradient.
  moment = next(
      leaf for leaf in jax.tree.leaves(state) if leaf.shape == (2,))
  np.testing.assert_allclose(moment, [0.03, 0.04], rtol=1e-5)


def test_time_limit_does_not_lower_the_value():
  """Reward 1 for ever, limit 10, discount 0.9: every row is worth 10.

  Counting the limit as an end gives 4 to 4.5, the mean of what is left of an
  episode; training on dummy steps, or through them, gives other numbers than
  10 too. The measured value is 9.99 to 10.01.
  """
  environment_factory = batch.DmEnvFactory(fakes.Endless)
  networks = _make_networks(spec=environment_factory.spec)
  builder = ppo_builder.PPOBuilder(ppo_config.PPOConfig(
      discount=0.9, learning_rate=0.03, num_epochs=4, num_minibatches=2))
  num_updates = 80
  core = builder.make_learner_core(
      networks, builder_lib.RunSizes(16, 8, num_updates),
      learner_core.Execution())
  unroller = collect.make_unroller(
      environment_factory, builder.make_actor_core(networks), num_envs=8,
      unroll_length=16)
  state = core.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))
  for _ in range(num_updates):
    rollout, _ = unroller.unroll(state.params)
    state, _ = core.update(state, rollout)
  assert (rollout.step_type == LAST).any()
  value = np.asarray(rollout.extras[actor_core.VALUE])
  np.testing.assert_allclose(value, np.full_like(value, 10.), atol=0.5)
