"""What a loss may learn at the ends of episodes, on streams small enough to
compute by hand; and what the parts of a batch have to do with the whole.
"""

import chex
from cleanba_acme.losses import impala
from cleanba_acme.losses import masking
from cleanba_acme.losses import ppo
import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

FIRST, MID, LAST = 0, 1, 2


def _column(*numbers):
  return np.array(numbers, np.float32)[:, None]


def _step_types(*step_types):
  return np.array(step_types, np.int32)[:, None]


def _ppo(params, data, weight=None):
  """PPO's loss of tables, prepared from the values that acted."""
  advantage, value_target = ppo.generalized_advantages(
      data['reward'], data['discount'], data['step_type'],
      data['behaviour_value'], gamma=0.9, lambda_=0.8)
  mask = masking.valid_steps(data['step_type'])
  if weight is None:
    advantage = masking.normalize(advantage, mask)
    weight = mask / jnp.sum(mask)
  policy = distrax.Categorical(params['logits'][:-1])
  return ppo.ppo_loss(
      policy.log_prob(data['action']), params['value'][:-1], policy.entropy(),
      behaviour_log_prob=data['behaviour_log_prob'], advantage=advantage,
      value_target=value_target, weight=weight, clip_epsilon=0.2,
      value_cost=0.5, entropy_cost=0.01)


def _impala(params, data):
  """IMPALA's loss of tables."""
  policy = distrax.Categorical(params['logits'][:-1])
  return impala.impala_loss(
      policy.log_prob(data['action']), params['value'], policy.entropy(),
      reward=data['reward'], discount=data['discount'],
      step_type=data['step_type'],
      behaviour_log_prob=data['behaviour_log_prob'], gamma=0.9, lambda_=0.8,
      value_cost=0.5, entropy_cost=0.01)


_LOSSES = pytest.mark.parametrize('loss', [_ppo, _impala])


def _make_example(last_discount):
  """Two environments; the first ends an episode in row 2, goes on in row 3."""
  rng = np.random.default_rng(0)
  step_type = np.array(
      [[FIRST, MID, LAST, FIRST, MID], [MID] * 5], np.int32).T
  discount = np.ones((5, 2), np.float32)
  discount[2, 0] = last_discount
  normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
  data = dict(
      step_type=step_type, discount=discount,
      reward=normal(5, 2) * (step_type != FIRST),
      action=rng.integers(3, size=(4, 2)),
      behaviour_value=normal(5, 2), behaviour_log_prob=-np.abs(normal(4, 2)))
  return {'logits': normal(5, 2, 3), 'value': normal(5, 2)}, data


def _with_row(tree, row, **changes):
  """Returns a copy with other numbers for the first environment in `row`."""
  tree = {name: array.copy() for name, array in tree.items()}
  for name, value in changes.items():
    assert not np.array_equal(tree[name][row, 0], value)
    tree[name][row, 0] = value
  return tree


def _value_and_grad(loss, jit, params, data):
  function = jax.value_and_grad(loss, has_aux=True)
  return (jax.jit(function) if jit else function)(params, data)


@pytest.mark.parametrize('jit', [False, True])
@pytest.mark.parametrize('last_discount', [0., 1.])
@_LOSSES
def test_ignored_action_is_not_learned(loss, last_discount, jit):
  params, data = _make_example(last_discount)
  before = _value_and_grad(loss, jit, params, data)
  after = _value_and_grad(
      loss, jit, _with_row(params, 2, logits=[-1., 9., 5.]),
      # So unlikely an action that its importance ratio overflows.
      _with_row(data, 2, action=2 - data['action'][2, 0] // 2,
                behaviour_log_prob=-1e4))
  chex.assert_trees_all_equal(before, after)
  gradient = before[1]
  assert not gradient['logits'][2, 0].any()
  assert not gradient['value'][2, 0].any()
  # The first action of the next episode is learned.
  assert gradient['logits'][3, 0].any() and gradient['value'][3, 0].any()


@_LOSSES
def test_value_of_terminal_row_is_ignored(loss):
  params, data = _make_example(last_discount=0.)
  before = _value_and_grad(loss, True, params, data)
  after = _value_and_grad(
      loss, True, _with_row(params, 2, value=7.),
      _with_row(data, 2, behaviour_value=7.))
  chex.assert_trees_all_equal(before, after)


@_LOSSES
def test_value_of_truncated_row_bootstraps(loss):
  params, data = _make_example(last_discount=1.)
  before = _value_and_grad(loss, True, params, data)
  after = _value_and_grad(
      loss, True, _with_row(params, 2, value=7.),
      _with_row(data, 2, behaviour_value=7.))
  assert before[0][0] != after[0][0]


@pytest.mark.parametrize('last_discount', [0., 1.])
@_LOSSES
def test_nothing_of_the_next_episode_leaks_back(loss, last_discount):
  params, data = _make_example(last_discount)
  # Normalisation couples all steps, so compare sums without it.
  if loss is _ppo:
    loss = lambda p, d: _ppo(p, d, masking.valid_steps(d['step_type']))
  before = _value_and_grad(loss, True, params, data)[1]
  params = _with_row(params, 3, value=7.)
  data = _with_row(data, 3, behaviour_value=7.)
  data = _with_row(data, 4, reward=-8.)
  after = _value_and_grad(loss, True, params, data)[1]
  first_episode = lambda gradient: jax.tree.map(lambda x: x[:2, 0], gradient)
  chex.assert_trees_all_equal(first_episode(before), first_episode(after))
  assert (before['value'][3, 0] != after['value'][3, 0]).all()


def _both_advantages(step_type, discount, reward, value):
  """Advantages by GAE, and by V-trace on policy, for gamma 0.5, lambda 1."""
  gae, _ = ppo.generalized_advantages(
      reward, discount, step_type, value, gamma=0.5, lambda_=1.)
  _, v_trace = impala.vtrace(
      reward, discount, step_type, value, np.zeros_like(value[1:]), gamma=0.5)
  np.testing.assert_allclose(gae, v_trace, atol=1e-6)
  return gae[:, 0]


def test_advantages_of_a_terminated_episode():
  # From row 1: 8 - 4. From row 0: 2 + 0.5 * 8 - 6. The dummy: 0. The rollout
  # ends within the next episode: 6 + 0.5 * 10 - 1.
  advantages = _both_advantages(
      _step_types(FIRST, MID, LAST, FIRST, MID), _column(1, 1, 0, 1, 1),
      _column(0, 2, 8, 0, 6), _column(6, 4, 100, 1, 10))
  np.testing.assert_allclose(advantages, [0., 4., 0., 10.])


def test_advantages_of_a_truncated_episode():
  # From row 1: 8 + 0.5 * 100 - 4. From row 0: 2 + 0.5 * (8 + 0.5 * 100) - 6.
  advantages = _both_advantages(
      _step_types(FIRST, MID, LAST, FIRST, MID), _column(1, 1, 1, 1, 1),
      _column(0, 2, 8, 0, 6), _column(6, 4, 100, 1, 10))
  np.testing.assert_allclose(advantages, [25., 54., 0., 10.])


def test_advantages_of_episodes_of_one_step():
  # The rollout starts in a last row; a termination and a truncation follow.
  # From row 1: 3 - 2. From row 3: 3 + 0.5 * 8 - 4.
  advantages = _both_advantages(
      _step_types(LAST, FIRST, LAST, FIRST, LAST), _column(0, 1, 0, 1, 1),
      _column(9, 0, 3, 0, 3), _column(50, 2, 70, 4, 8))
  np.testing.assert_allclose(advantages, [0., 1., 0., 3.])


def _make_endless_game(length, num_steps, num_envs):
  """Reward 1 a step and a time limit, environments at different times."""
  position = (np.arange(num_steps + 1)[:, None]
              + 4 * np.arange(num_envs)) % (length + 1)
  step_type = np.where(
      position == 0, FIRST, np.where(position == length, LAST, MID))
  reward = (position > 0).astype(np.float32)
  return step_type.astype(np.int32), reward, np.ones_like(reward)


def _gae_error(reward, discount, step_type, value):
  advantages, _ = ppo.generalized_advantages(
      reward, discount, step_type, value, gamma=0.9, lambda_=0.95)
  return advantages


def _vtrace_error(reward, discount, step_type, value):
  errors, _ = impala.vtrace(
      reward, discount, step_type, value, jnp.zeros_like(reward[1:]), gamma=0.9)
  return errors


@pytest.mark.parametrize('error', [_gae_error, _vtrace_error])
def test_time_limit_does_not_lower_the_value(error):
  # Reward 1 for ever is worth 1 / (1 - 0.9); counting the limit of 10 steps as
  # a termination gives 4 to 4.5.
  step_type, reward, discount = _make_endless_game(10, 50, 3)
  mask = masking.valid_steps(step_type)

  @jax.jit
  def iterate(_, value):
    errors = error(
        reward, discount, step_type, jnp.full(reward.shape, value))
    return value + masking.masked_mean(errors, mask)

  value = jax.lax.fori_loop(0, 100, iterate, 0.)
  np.testing.assert_allclose(value, 10., atol=1e-3)


def _make_exact_values():
  """Several episodes of random rewards, and the exact value of every row."""
  rng = np.random.default_rng(1)
  step_type, reward, discount = _make_endless_game(6, 30, 5)
  reward *= rng.normal(size=reward.shape).astype(np.float32)
  # Every other episode terminates; the others are cut off by the limit.
  is_last = step_type == LAST
  discount[is_last] = np.arange(is_last.sum()) % 2
  value = rng.normal(size=reward.shape).astype(np.float32)
  for t in reversed(range(len(value) - 1)):
    exact = reward[t + 1] + 0.9 * discount[t + 1] * value[t + 1]
    value[t] = np.where(is_last[t], value[t], exact)
  return step_type, reward, discount, value


def test_exact_values_have_no_errors():
  step_type, reward, discount, value = _make_exact_values()
  log_rho = np.random.default_rng(2).normal(
      size=value[1:].shape).astype(np.float32)
  errors, advantages = impala.vtrace(
      reward, discount, step_type, value, log_rho, gamma=0.9)
  np.testing.assert_allclose(errors, 0., atol=1e-6)
  np.testing.assert_allclose(advantages, 0., atol=1e-6)
  np.testing.assert_allclose(
      _gae_error(reward, discount, step_type, value), 0., atol=1e-6)


def _split(tree, axis):
  halves = [jax.tree.map(lambda x: np.split(x, 2, axis)[i], tree)
            for i in range(2)]
  return halves


def _assert_sums(loss, whole, parts):
  whole = jax.value_and_grad(loss, has_aux=True)(*whole)
  parts = [jax.value_and_grad(loss, has_aux=True)(*part) for part in parts]
  chex.assert_trees_all_close(
      whole[0], jax.tree.map(np.add, parts[0][0], parts[1][0]), rtol=1e-5)
  chex.assert_trees_all_close(
      whole[1],
      jax.tree.map(lambda x, y: np.concatenate([x, y], 1),
                   parts[0][1], parts[1][1]), rtol=1e-5)


def test_parts_of_a_batch_add_up():
  params, data = _make_example(last_discount=1.)
  parts = list(zip(_split(params, 1), _split(data, 1)))
  _assert_sums(_impala, (params, data), parts)

  mask = masking.valid_steps(data['step_type'])
  weight = np.asarray(mask / mask.sum())
  parts = [(p, d, w) for (p, d), w in zip(parts, np.split(weight, 2, 1))]
  _assert_sums(_ppo, (params, data, weight), parts)


def test_ppo_metrics():
  ratio = np.array([1., 1.5, 0.7, 1.1], np.float32)
  behaviour = np.full(4, -1., np.float32)
  loss, metrics = jax.jit(
      ppo.ppo_loss, static_argnames='clip_epsilon')(
          behaviour + np.log(ratio),
          np.array([1., 2., 3., 4.], np.float32),
          np.array([0.5, 0.6, 0.7, 0.8], np.float32),
          behaviour_log_prob=behaviour,
          advantage=np.array([1., 1., -1., 2.], np.float32),
          value_target=np.zeros(4, np.float32),
          weight=np.array([0.5, 0.25, 0.25, 0.], np.float32),
          clip_epsilon=0.2, value_cost=2., entropy_cost=3.)
  expected = {
      'policy_loss': -(0.5 * 1. + 0.25 * 1.2 + 0.25 * -0.8),
      'value_loss': 0.5 * (0.5 * 1. + 0.25 * 4. + 0.25 * 9.),
      'entropy': 0.5 * 0.5 + 0.25 * 0.6 + 0.25 * 0.7,
      'approx_kl': (0.25 * (0.5 - np.log(1.5)) + 0.25 * (-0.3 - np.log(0.7))),
      'clip_fraction': 0.5,
  }
  assert metrics.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
  np.testing.assert_allclose(
      loss, expected['policy_loss'] + 2. * expected['value_loss']
      - 3. * expected['entropy'], rtol=1e-5)


def test_impala_metrics_are_sums_over_valid_steps():
  params, data = _make_example(last_discount=1.)
  params['logits'] = np.zeros_like(params['logits'])
  loss, metrics = _impala(params, data)
  assert metrics['valid_steps'] == 7.
  np.testing.assert_allclose(metrics['entropy'], 7. * np.log(3.), rtol=1e-6)
  np.testing.assert_allclose(
      loss, metrics['policy_loss'] + 0.5 * metrics['value_loss']
      - 0.01 * metrics['entropy'], rtol=1e-6)


@_LOSSES
def test_wrong_inputs_are_refused(loss):
  params, data = _make_example(last_discount=1.)
  for name, bad in [
      ('reward', data['reward'][1:]),
      ('discount', data['discount'].astype(np.int32)),
      ('step_type', data['step_type'].astype(np.float32)),
      ('behaviour_log_prob', data['behaviour_log_prob'][:, :1]),
  ]:
    with pytest.raises(AssertionError):
      loss(params, {**data, name: bad})
