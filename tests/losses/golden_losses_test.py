"""The losses against numpy, written from the papers, episode by episode.

The references share nothing with the implementation: they cut every stream
into episodes first, know nothing of masks or traces, sum forwards in float64
with loops, and get gradients by finite differences.

The policy and the values are tables, `logits [T+1, B, A]` and `value [T+1, B]`,
so the gradient shows what each row learns.
"""

import chex
from cleanba_acme.losses import impala
from cleanba_acme.losses import masking
from cleanba_acme.losses import ppo
import distrax
import jax
import jax.experimental
import numpy as np
import pytest

FIRST, MID, LAST = 0, 1, 2
_T, _B, _A = 7, 3, 3
_GAMMA, _CLIP, _VALUE_COST, _ENTROPY_COST = 0.97, 0.2, 0.6, 0.05
# Of differences of float64 numbers of order 10, two epsilons apart.
_EPSILON, _TOLERANCE = 1e-6, 1e-7


def _make_streams(seed):
  """Random envpool-style streams: episodes of all lengths, ends of both kinds.

  About every third step ends an episode, so seeds 0 to 4 together have ends in
  the first and in the last row, right after one another, and of both kinds.
  """
  rng = np.random.default_rng(seed)
  step_type = np.zeros((_T + 1, _B), np.int32)
  discount = np.ones((_T + 1, _B))
  for b in range(_B):
    previous = rng.choice([FIRST, MID, LAST])
    for t in range(_T + 1):
      if previous == LAST:
        step_type[t, b] = FIRST
      else:
        step_type[t, b] = rng.choice([MID, LAST], p=[0.65, 0.35])
        # Environments may also discount within an episode.
        discount[t, b] = rng.choice([0., 1., 0.8])
        if step_type[t, b] == MID:
          discount[t, b] = max(discount[t, b], 0.8)
      previous = step_type[t, b]
  reward = rng.normal(size=(_T + 1, _B)) * (step_type != FIRST)
  return dict(
      step_type=step_type, discount=discount, reward=reward,
      action=rng.integers(_A, size=(_T, _B)),
      behaviour_logits=rng.normal(size=(_T + 1, _B, _A)),
      behaviour_value=rng.normal(size=(_T + 1, _B)))


def _make_params(seed):
  rng = np.random.default_rng(seed + 1000)
  return {'logits': rng.normal(size=(_T + 1, _B, _A)),
          'value': rng.normal(size=(_T + 1, _B))}


# -- The references. ----------------------------------------------------------


def _episodes(step_type):
  """Yields `(b, start, end)`: rows of one episode, as far as it was seen."""
  for b in range(_B):
    start = 0
    for t in range(_T + 1):
      if step_type[t, b] == LAST or t == _T:
        yield b, start, t
        start = t + 1


def _log_softmax(logits):
  shifted = logits - logits.max()
  return shifted - np.log(np.exp(shifted).sum())


def _steps(data):
  """Yields `(t, b, end)` of every step that belongs to an episode."""
  for b, start, end in _episodes(data['step_type']):
    for t in range(start, end):
      yield t, b, end


def _reference_gae(data, lambda_):
  """GAE, equation 16, as a sum over the rest of the episode."""
  reward, discount = data['reward'], _GAMMA * data['discount']
  value = data['behaviour_value']
  advantages = {}
  for t, b, end in _steps(data):
    total, weight = 0., 1.
    for k in range(t, end):
      delta = (reward[k + 1, b] + discount[k + 1, b] * value[k + 1, b]
               - value[k, b])
      total += weight * delta
      weight *= discount[k + 1, b] * lambda_
    advantages[t, b] = total
  return advantages


def _reference_ppo(params, data, lambda_):
  """PPO, equations 7 and 9, averaged over the steps of episodes."""
  advantages = _reference_gae(data, lambda_)
  mean = np.mean(list(advantages.values()))
  std = np.std(list(advantages.values()))
  total = 0.
  for (t, b), advantage in advantages.items():
    action = data['action'][t, b]
    log_policy = _log_softmax(params['logits'][t, b])
    behaviour = _log_softmax(data['behaviour_logits'][t, b])
    ratio = np.exp(log_policy[action] - behaviour[action])
    normalized = (advantage - mean) / (std + 1e-8)
    surrogate = min(
        ratio * normalized,
        min(max(ratio, 1 - _CLIP), 1 + _CLIP) * normalized)
    target = advantage + data['behaviour_value'][t, b]
    error = params['value'][t, b] - target
    entropy = -np.sum(np.exp(log_policy) * log_policy)
    total += (-surrogate + _VALUE_COST * 0.5 * error**2
              - _ENTROPY_COST * entropy)
  return total / len(advantages)


def _reference_vtrace(params, data, lambda_):
  """V-trace targets, equation 1, and policy gradient advantages, section 4.2.

  With lambda below 1, the policy gradient bootstraps from the same mixture of
  target and value that the traces use, as in RLax.
  """
  reward, discount = data['reward'], _GAMMA * data['discount']
  value = params['value']
  ratio = {}
  for t, b, _ in _steps(data):
    action = data['action'][t, b]
    ratio[t, b] = np.exp(
        _log_softmax(params['logits'][t, b])[action]
        - _log_softmax(data['behaviour_logits'][t, b])[action])
  targets = {}
  for t, b, end in _steps(data):
    total, weight = value[t, b], 1.
    for k in range(t, end):
      delta = min(1., ratio[k, b]) * (
          reward[k + 1, b] + discount[k + 1, b] * value[k + 1, b] - value[k, b])
      total += weight * delta
      weight *= discount[k + 1, b] * lambda_ * min(1., ratio[k, b])
    targets[t, b] = total
  advantages = {}
  for t, b, end in _steps(data):
    bootstrap = value[t + 1, b]
    if t + 1 < end:
      bootstrap = lambda_ * targets[t + 1, b] + (1 - lambda_) * bootstrap
    advantages[t, b] = min(1., ratio[t, b]) * (
        reward[t + 1, b] + discount[t + 1, b] * bootstrap - value[t, b])
  return targets, advantages


def _reference_impala(params, data, targets, advantages):
  """The sum of the three terms of section 4.2, for constant targets."""
  total = 0.
  for t, b, _ in _steps(data):
    log_policy = _log_softmax(params['logits'][t, b])
    entropy = -np.sum(np.exp(log_policy) * log_policy)
    total += (
        -advantages[t, b] * log_policy[data['action'][t, b]]
        + _VALUE_COST * 0.5 * (targets[t, b] - params['value'][t, b])**2
        - _ENTROPY_COST * entropy)
  return total


def _finite_differences(function, params):
  gradient = {}
  for name, table in params.items():
    gradient[name] = np.zeros(table.shape)
    for index in np.ndindex(table.shape):
      values = []
      for step in (_EPSILON, -_EPSILON):
        moved = {k: v.copy() for k, v in params.items()}
        moved[name][index] += step
        values.append(function(moved))
      gradient[name][index] = (values[0] - values[1]) / (2 * _EPSILON)
  return gradient


# -- What is tested. ----------------------------------------------------------


def _policy_terms(logits, action):
  policy = distrax.Categorical(logits[:-1])
  return policy.log_prob(action), policy.entropy()


def _ppo(params, data, lambda_):
  advantage, value_target = ppo.generalized_advantages(
      data['reward'], data['discount'], data['step_type'],
      data['behaviour_value'], gamma=_GAMMA, lambda_=lambda_)
  mask = masking.valid_steps(data['step_type'])
  log_prob, entropy = _policy_terms(params['logits'], data['action'])
  behaviour, _ = _policy_terms(data['behaviour_logits'], data['action'])
  loss, _ = ppo.ppo_loss(
      log_prob, params['value'][:-1], entropy, behaviour_log_prob=behaviour,
      advantage=masking.normalize(advantage, mask), value_target=value_target,
      weight=mask / mask.sum(), clip_epsilon=_CLIP,
      value_cost=_VALUE_COST, entropy_cost=_ENTROPY_COST)
  return loss


def _impala(params, data, lambda_):
  log_prob, entropy = _policy_terms(params['logits'], data['action'])
  behaviour, _ = _policy_terms(data['behaviour_logits'], data['action'])
  loss, _ = impala.impala_loss(
      log_prob, params['value'], entropy, behaviour_log_prob=behaviour,
      reward=data['reward'], discount=data['discount'],
      step_type=data['step_type'], gamma=_GAMMA, lambda_=lambda_,
      value_cost=_VALUE_COST, entropy_cost=_ENTROPY_COST)
  return loss


def _value_and_grad(loss, jit, params, data, lambda_):
  function = jax.value_and_grad(loss)
  function = jax.jit(function, static_argnums=2) if jit else function
  with jax.experimental.enable_x64():
    value, gradient = function(params, data, lambda_)
    assert value.dtype == np.float64
    return jax.tree.map(np.asarray, (value, gradient))


def test_streams_have_every_kind_of_end():
  step_type = np.concatenate(
      [_make_streams(seed)['step_type'] for seed in range(5)], axis=1)
  discount = np.concatenate(
      [_make_streams(seed)['discount'] for seed in range(5)], axis=1)
  assert (step_type[0] == LAST).any() and (step_type[-1] == LAST).any()
  assert ((step_type[:-2] == LAST) & (step_type[2:] == LAST)).any()
  assert set(discount[step_type == LAST]) == {0., 0.8, 1.}


@pytest.mark.parametrize('lambda_', [0.9, 1.])
@pytest.mark.parametrize('seed', range(5))
def test_generalized_advantages_equal_reference(seed, lambda_):
  data = _make_streams(seed)
  reference = _reference_gae(data, lambda_)
  with jax.experimental.enable_x64():
    advantages, targets = ppo.generalized_advantages(
        data['reward'], data['discount'], data['step_type'],
        data['behaviour_value'], gamma=_GAMMA, lambda_=lambda_)
  expected = np.zeros((_T, _B))
  for index, advantage in reference.items():
    expected[index] = advantage
  np.testing.assert_allclose(advantages, expected, atol=1e-12)
  np.testing.assert_allclose(
      targets, expected + data['behaviour_value'][:-1], atol=1e-12)


@pytest.mark.parametrize('seed', range(5))
def test_ppo_equals_reference(seed):
  data, params = _make_streams(seed), _make_params(seed)
  reference = lambda moved: _reference_ppo(moved, data, 0.9)
  expected = reference(params), _finite_differences(reference, params)
  for jit in (False, True):
    chex.assert_trees_all_close(
        _value_and_grad(_ppo, jit, params, data, 0.9), expected,
        atol=_TOLERANCE)


@pytest.mark.parametrize('lambda_', [0.9, 1.])
@pytest.mark.parametrize('seed', range(5))
def test_impala_equals_reference(seed, lambda_):
  data, params = _make_streams(seed), _make_params(seed)
  targets, advantages = _reference_vtrace(params, data, lambda_)
  reference = lambda moved: _reference_impala(moved, data, targets, advantages)
  expected = reference(params), _finite_differences(reference, params)
  for jit in (False, True):
    chex.assert_trees_all_close(
        _value_and_grad(_impala, jit, params, data, lambda_), expected,
        atol=_TOLERANCE)
