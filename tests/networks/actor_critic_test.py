"""Tests of the composed network: one `apply` for actor and learner."""

from cleanba_acme import specs
from cleanba_acme.networks import base
from cleanba_acme.networks import torsos
import chex
from dm_env import specs as dm_specs
import distrax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_KEY = jax.random.PRNGKey(0)
_T, _B = 7, 3
# The unroll and the single steps are different programs, compiled separately:
# the order of float32 sums differs, over seven steps of a contractive core.
_TOLERANCE = 1e-5


def _make_spec(observations=specs.Array((4,), np.float32),
               actions=specs.DiscreteArray(5)):
  return specs.EnvironmentSpec(
      observations, actions, specs.Array((), np.float32),
      specs.BoundedArray((), np.float32, 0., 1.))


def _make_networks(core, spec=_make_spec()):
  return base.make_actor_critic(spec, lambda: torsos.MLP((8,)), core)


_CORES = pytest.mark.parametrize(
    'core', [None, lambda: hk.LSTM(6), lambda: hk.GRU(6)],
    ids=['none', 'lstm', 'gru'])


def _make_inputs(seed=0):
  """Random observations; episodes start in the first row and in mid-rollout."""
  rng = np.random.default_rng(seed)
  observation = rng.normal(size=(_T, _B, 4)).astype(np.float32)
  is_first = np.zeros((_T, _B), bool)
  is_first[0, 0] = is_first[3, 1] = is_first[4, 1] = is_first[_T - 1, 2] = True
  return observation, is_first


def _make_state(networks):
  """Returns a state as in the middle of an episode: far from the initial."""
  return jax.tree.map(
      lambda x: x + jax.random.normal(_KEY, x.shape),
      networks.initial_state(_B))


@_CORES
def test_shapes(core):
  networks = _make_networks(core)
  params = networks.init(_KEY)
  state = networks.initial_state(_B)
  observation, is_first = _make_inputs()
  for apply in (networks.apply, jax.jit(networks.apply)):
    policy, value, next_state = apply(params, observation, is_first, state)
    assert isinstance(policy, distrax.Categorical)
    chex.assert_shape(policy.logits, (_T, _B, 5))
    chex.assert_shape(value, (_T, _B))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, next_state)
  if core is None:
    assert state == ()


@_CORES
def test_unroll_equals_single_steps(core):
  networks = _make_networks(core)
  params = networks.init(_KEY)
  observation, is_first = _make_inputs()
  apply = jax.jit(networks.apply)
  state = _make_state(networks)
  policy, value, last_state = apply(params, observation, is_first, state)
  for t in range(_T):
    step_policy, step_value, state = apply(
        params, observation[t:t + 1], is_first[t:t + 1], state)
    np.testing.assert_allclose(
        step_policy.logits[0], policy.logits[t], atol=_TOLERANCE)
    np.testing.assert_allclose(step_value[0], value[t], atol=_TOLERANCE)
  chex.assert_trees_all_close(state, last_state, atol=_TOLERANCE)


@_CORES
def test_episode_starts_forget_the_past(core):
  networks = _make_networks(core)
  params = networks.init(_KEY)
  observation, is_first = _make_inputs()
  values = lambda observation, state: np.asarray(
      networks.apply(params, observation, is_first, state)[1])
  before = values(observation, _make_state(networks))

  # Environment 0 starts in row 0, 1 in rows 3 and 4, 2 in the last row only.
  after = values(observation, networks.initial_state(_B))
  np.testing.assert_array_equal(before[:, 0], after[:, 0])
  np.testing.assert_array_equal(before[3:, 1], after[3:, 1])
  np.testing.assert_array_equal(before[-1, 2], after[-1, 2])
  if core is not None:
    assert (before[:3, 1] != after[:3, 1]).all()
    assert (before[:-1, 2] != after[:-1, 2]).all()

  # What happened before a start, row 3, does not matter after another, row 4.
  changed = observation.copy()
  changed[3] += 1.
  after = values(changed, _make_state(networks))
  assert (before[3] != after[3]).all()
  np.testing.assert_array_equal(before[4:, 1], after[4:, 1])
  if core is not None:
    assert (before[4:, 0] != after[4:, 0]).all()


@_CORES
def test_rows_do_not_mix(core):
  networks = _make_networks(core)
  params = networks.init(_KEY)
  observation, is_first = _make_inputs()
  state = _make_state(networks)
  before = networks.apply(params, observation, is_first, state)[1]
  changed = observation.copy()
  changed[:, 1] += 1.
  after = networks.apply(params, changed, is_first, state)[1]
  np.testing.assert_array_equal(before[:, [0, 2]], after[:, [0, 2]])
  assert (before[:, 1] != after[:, 1]).all()


@_CORES
def test_no_loop_where_none_is_needed(core):
  networks = _make_networks(core)
  params = networks.init(_KEY)
  observation, is_first = _make_inputs()
  has_loop = lambda steps: 'scan[' in str(jax.make_jaxpr(networks.apply)(
      params, observation[:steps], is_first[:steps],
      networks.initial_state(_B)))
  assert not has_loop(1)
  assert has_loop(_T) == (core is not None)


def test_dictionary_of_observation_last_action_and_reward():
  action_spec = specs.DiscreteArray(5)
  spec = _make_spec(
      {'observation': specs.BoundedArray((6, 6, 1), np.uint8, 0, 255),
       'action': action_spec, 'reward': specs.Array((), np.float32)},
      action_spec)
  networks = base.make_actor_critic(
      spec, lambda: torsos.ConvNet((8,), hiddens=(16,)))
  params = networks.init(_KEY)
  observation = {
      'observation': np.full((_T, _B, 6, 6, 1), 100, np.uint8),
      'action': np.ones((_T, _B), np.int32),
      'reward': np.ones((_T, _B), np.float32)}
  is_first = np.zeros((_T, _B), bool)
  before = networks.apply(params, observation, is_first, ())[1]
  chex.assert_shape(before, (_T, _B))
  for name, leaf in observation.items():
    after = networks.apply(
        params, {**observation, name: 2 * leaf}, is_first, ())[1]
    assert (before != after).all(), name


def test_own_torso_and_own_head():
  def torso():
    return lambda observation: hk.Linear(3)(observation['a'])

  def policy_head(features):
    return distrax.Bernoulli(hk.Linear(1)(features)[..., 0])

  networks = base.make_actor_critic(
      _make_spec({'a': specs.DiscreteArray(4)}), torso,
      policy_head=policy_head)
  policy, value, _ = networks.apply(
      networks.init(_KEY), {'a': np.zeros((2, 3), np.int32)},
      np.zeros((2, 3), bool), ())
  assert policy.batch_shape == (2, 3)
  chex.assert_shape(value, (2, 3))


def test_one_key_gives_one_network():
  networks = _make_networks(lambda: hk.LSTM(6))
  chex.assert_trees_all_equal(networks.init(_KEY), jax.jit(networks.init)(_KEY))
  assert any(jax.tree.leaves(jax.tree.map(
      lambda x, y: jnp.any(x != y), networks.init(_KEY),
      networks.init(jax.random.PRNGKey(1)))))


def test_wrong_inputs_are_refused():
  networks = _make_networks(None)
  params = networks.init(_KEY)
  observation, is_first = _make_inputs()
  for bad in [
      (observation[0], is_first),
      (observation, is_first[0]),
      (observation, is_first.astype(np.float32)),
      (observation[1:], is_first),
      (observation[..., 1:], is_first),
  ]:
    with pytest.raises(AssertionError):
      networks.apply(params, *bad, ())
  with pytest.raises(AssertionError):  # Features must be [N, F].
    base.make_actor_critic(
        _make_spec(), lambda: lambda x: x[..., None]).init(_KEY)


def test_unsupported_specs_are_refused_at_once():
  with pytest.raises(ValueError, match='Observation spec'):
    _make_networks(None, _make_spec(dm_specs.StringArray(())))
  with pytest.raises(ValueError, match='Action spec'):
    _make_networks(None, _make_spec(actions=specs.Array((2,), np.float32)))
