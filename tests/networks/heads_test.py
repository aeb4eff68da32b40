"""Tests of policies and values against scipy, enumeration and integration."""

from cleanba_acme import specs
from cleanba_acme.networks import heads
import chex
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate
from scipy import stats

_KEY = jax.random.PRNGKey(0)
_DISCRETE = specs.DiscreteArray(5)
_SCALAR = specs.BoundedArray((), np.int64, -1, 1)
_MULTI = specs.BoundedArray((3,), np.int32, [0, 1, -1], [1, 4, -1])
_BOX = specs.BoundedArray((2,), np.float32, [-2., 0.], [2., 10.])
_ALL = pytest.mark.parametrize('spec, kind', [
    (_DISCRETE, 'tanh'), (_SCALAR, 'tanh'), (_MULTI, 'tanh'), (_BOX, 'tanh'),
    (_BOX, 'clipped')])


def _make_policy(spec, kind='tanh', scale=50., batch_shape=(4,), **kwargs):
  """Returns a policy with parameters far from uniform, over random features."""
  head = heads.make_policy_head(spec, kind, **kwargs)
  network = hk.without_apply_rng(hk.transform(head))
  features = scale * jax.random.normal(_KEY, batch_shape + (8,))
  return network.apply(network.init(_KEY, features), features)


@_ALL
def test_shapes_and_dtypes(spec, kind):
  policy = _make_policy(spec, kind, batch_shape=(3, 4))
  assert policy.batch_shape == (3, 4)
  assert policy.event_shape == spec.shape
  row = jax.tree.map(lambda x: x[1], policy)
  assert row.batch_shape == (4,)
  action = heads.sample(row, jax.random.split(_KEY, 4))
  chex.assert_shape([action, row.mode()], (4,) + spec.shape)
  log_prob, entropy = row.log_prob(action), row.entropy()
  chex.assert_shape([log_prob, entropy], (4,))
  chex.assert_tree_all_finite((log_prob, entropy))
  np.testing.assert_allclose(entropy, policy.entropy()[1], rtol=1e-6)


@_ALL
def test_sample_of_a_row_depends_on_its_key_alone(spec, kind):
  policy = _make_policy(spec, kind, scale=1.)
  keys = jax.random.split(_KEY, 4)
  sample = jax.jit(heads.sample)
  action = sample(policy, keys)
  other = keys.at[0].set(jax.random.PRNGKey(7))
  np.testing.assert_array_equal(sample(policy, other)[1:], action[1:])
  order = np.array([2, 0, 3, 1])
  np.testing.assert_array_equal(
      sample(jax.tree.map(lambda x: x[order], policy), keys[order]),
      action[order])
  # The same row with many keys is not always the same action.
  same = jax.tree.map(lambda x: jnp.repeat(x[:1], 64, axis=0), policy)
  actions = sample(same, jax.random.split(_KEY, 64))
  assert len(np.unique(actions, axis=0)) > 1


def test_categorical_equals_softmax():
  policy = _make_policy(_DISCRETE)
  logits = np.asarray(policy.logits, np.float64)
  probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  for action in range(5):
    np.testing.assert_allclose(
        policy.log_prob(jnp.full(4, action)), np.log(probs[:, action]),
        rtol=1e-5)
  np.testing.assert_allclose(
      policy.entropy(), stats.entropy(probs, axis=-1), rtol=1e-5)
  np.testing.assert_array_equal(policy.mode(), probs.argmax(-1))


def test_multi_discrete_is_a_joint_of_all_combinations():
  policy = _make_policy(_MULTI)
  combinations = np.stack(
      np.meshgrid(range(2), range(4), range(1)), -1).reshape(-1, 3)
  log_probs = np.stack([
      policy.log_prob(jnp.tile(combination, (4, 1)))
      for combination in combinations]).astype(np.float64)  # [8, 4]
  np.testing.assert_allclose(np.exp(log_probs).sum(0), 1., rtol=1e-5)
  np.testing.assert_allclose(
      policy.entropy(), stats.entropy(np.exp(log_probs)), rtol=1e-4)
  np.testing.assert_array_equal(
      policy.mode(), combinations[log_probs.argmax(0)])


def test_multi_discrete_never_leaves_its_dimensions():
  policy = _make_policy(_MULTI, scale=0., batch_shape=(500,))
  action = heads.sample(policy, jax.random.split(_KEY, 500))
  np.testing.assert_array_equal(action.max(0), [1, 3, 0])
  np.testing.assert_array_equal(action.min(0), [0, 0, 0])
  np.testing.assert_allclose(policy.entropy(), np.log(2 * 4), rtol=1e-6)


def test_multi_discrete_gradients_are_finite():
  head = hk.without_apply_rng(hk.transform(heads.make_policy_head(_MULTI)))
  features = jnp.ones((4, 8))
  params = head.init(_KEY, features)

  def loss(params):
    policy = head.apply(params, features)
    return jnp.sum(policy.entropy() + policy.log_prob(policy.mode()))

  chex.assert_tree_all_finite(jax.grad(loss)(params))
  assert params['policy']['w'].shape == (8, 2 + 4 + 1)


def test_clipped_policy_is_a_gaussian_in_the_units_of_the_spec():
  policy = _make_policy(_BOX, 'clipped', initial_log_std=-0.5)
  mean = np.asarray(policy.mode())
  std = np.exp(-0.5) * np.array([2., 5.])
  action = np.array([[-9., 12.], [0., 0.], [1., 3.], [2., 10.]], np.float32)
  np.testing.assert_allclose(
      policy.log_prob(action), stats.norm(mean, std).logpdf(action).sum(-1),
      rtol=1e-4)
  np.testing.assert_allclose(
      policy.entropy(), stats.norm(mean, std).entropy().sum(-1), rtol=1e-5)
  # Samples leave the bounds; only the environment sees them clipped.
  samples = heads.sample(
      _make_policy(_BOX, 'clipped', batch_shape=(100,)),
      jax.random.split(_KEY, 100))
  assert np.any(samples > _BOX.maximum) and np.any(samples < _BOX.minimum)


def test_mean_starts_in_the_middle():
  for kind in ('tanh', 'clipped'):
    np.testing.assert_allclose(
        _make_policy(_BOX, kind, scale=0.).mode(), [[0., 5.]] * 4)


@pytest.mark.parametrize('loc', [0., 0.4, -2.])
@pytest.mark.parametrize('scale', [0.3, 1., 2.])
def test_tanh_normal_integrates_to_one(loc, scale):
  center, radius = 5., 5.
  policy = heads.TanhNormal(*map(jnp.float32, (loc, scale, center, radius)))

  # Integrate over the Gaussian, where the density is smooth.
  x = np.linspace(loc - 8 * scale, loc + 8 * scale, 4001)
  x = x[np.abs(x) < 5.]  # Beyond, float32 knows too little of the action.
  action = center + radius * np.tanh(x)
  log_prob = np.asarray(policy.log_prob(action.astype(np.float32)), np.float64)
  density = np.exp(log_prob) * radius / np.cosh(x)**2
  inside = stats.norm(loc, scale).cdf(5.) - stats.norm(loc, scale).cdf(-5.)
  np.testing.assert_allclose(
      integrate.trapezoid(density, x), inside, atol=2e-3)
  np.testing.assert_allclose(
      density, stats.norm(loc, scale).pdf(x), rtol=5e-3, atol=1e-6)


@pytest.mark.parametrize('loc', [0., 0.4, -2.])
@pytest.mark.parametrize('scale, tolerance', [(0.3, 1e-5), (1., 1e-5),
                                              (2., 1e-3)])
def test_tanh_normal_entropy_is_the_integral(loc, scale, tolerance):
  radius = 3.
  policy = heads.TanhNormal(*map(jnp.float32, (loc, scale, -1., radius)))

  def integrand(x):
    log_derivative = 2 * (np.log(2.) - np.logaddexp(x, -x)) + np.log(radius)
    return stats.norm(loc, scale).pdf(x) * log_derivative

  mean_log_derivative, _ = integrate.quad(
      integrand, loc - 10 * scale, loc + 10 * scale, points=[0.])
  np.testing.assert_allclose(
      policy.entropy(),
      stats.norm(loc, scale).entropy() + mean_log_derivative, atol=tolerance)


def test_tanh_normal_is_finite_at_saturation():
  loc = jnp.array([-60., -8., 8., 60.])
  ones = jnp.ones(4)

  def log_prob(loc, action):
    return heads.TanhNormal(loc, ones, 5. * ones, 5. * ones).log_prob(action)

  policy = heads.TanhNormal(loc, ones, 5. * ones, 5. * ones)
  action = heads.sample(policy, jax.random.split(_KEY, 4))
  np.testing.assert_allclose(action, [0., 0., 10., 10.], atol=1e-4)
  chex.assert_tree_all_finite((
      log_prob(loc, action), policy.entropy(),
      jax.vmap(jax.grad(lambda l, a: heads.TanhNormal(
          l, 1., 5., 5.).log_prob(a)))(loc, action)))
  # The bounds themselves, and what rounding puts past them, are as likely as
  # the closest actions within.
  edge = log_prob(loc, jnp.array([-1e-3, 0., 10., 10. + 1e-3]))
  chex.assert_tree_all_finite(edge)


def test_tanh_normal_sample_and_log_prob_agree():
  policy = _make_policy(_BOX, scale=1., batch_shape=(64,))
  action, log_prob = jax.vmap(
      lambda row, key: row.sample_and_log_prob(seed=key))(
          policy, jax.random.split(_KEY, 64))
  np.testing.assert_array_equal(
      action, heads.sample(policy, jax.random.split(_KEY, 64)))
  np.testing.assert_allclose(log_prob, policy.log_prob(action), atol=1e-3)


def test_policy_starts_almost_uniform():
  head = hk.without_apply_rng(hk.transform(heads.make_policy_head(_DISCRETE)))
  params = head.init(_KEY, jnp.zeros((1, 8)))['policy']
  np.testing.assert_allclose(
      params['w'].T @ params['w'], 1e-4 * np.eye(5), atol=1e-8)
  assert not params['b'].any()


def test_value_head():
  head = hk.without_apply_rng(hk.transform(heads.value_head))
  params = head.init(_KEY, jnp.zeros((1, 8)))
  np.testing.assert_allclose(
      jnp.linalg.norm(params['value']['w']), 1., rtol=1e-5)
  chex.assert_shape(head.apply(params, jnp.zeros((2, 3, 8))), (2, 3))


def test_to_environment():
  np.testing.assert_array_equal(
      heads.to_environment(_MULTI, np.array([[0, 0, 0], [1, 3, 0]])),
      [[0, 1, -1], [1, 4, -1]])
  np.testing.assert_array_equal(
      heads.to_environment(_SCALAR, np.array([0, 2])), [-1, 1])
  np.testing.assert_array_equal(
      heads.to_environment(_BOX, np.array([[-3., 3.], [1., 11.]])),
      [[-2., 3.], [1., 10.]])
  for spec in (_MULTI, _SCALAR, _DISCRETE, _BOX):
    action = np.zeros((4,) + spec.shape, np.float32)
    for row in heads.to_environment(spec, action):
      spec.validate(row)


@pytest.mark.parametrize('spec', [
    specs.Array((2,), np.float32),
    specs.BoundedArray((2,), np.float32, -np.inf, np.inf),
    specs.BoundedArray((2,), np.float32, 0., [0., 1.]),
    specs.BoundedArray((2,), bool, False, True),
    {'arm': _BOX},
])
def test_unsupported_specs_are_refused(spec):
  with pytest.raises(ValueError, match='Action spec .* is not supported'):
    heads.make_policy_head(spec)
