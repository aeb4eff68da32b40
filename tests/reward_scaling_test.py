"""Tests of reward scaling against a loop per environment."""

from cleanba_acme import learner_core
from cleanba_acme import reward_scaling
from cleanba_acme import types
import dm_env
import jax
import numpy as np
import pytest

_DISCOUNT = 0.9
_LENGTH, _ENVS = 7, 3
FIRST, MID, LAST = (int(kind) for kind in dm_env.StepType)


class _Recorder:
  """A learner core that keeps the rewards it is given."""

  def __init__(self):
    self.rewards = []
    self.core = learner_core.LearnerCore(self._init, self._update)

  def _init(self, init_key, shuffling_key):
    del init_key
    return types.TrainingState((), (), np.int32(0), shuffling_key)

  def _update(self, state, rollout):
    self.rewards.append(np.asarray(rollout.reward))
    return state._replace(num_updates=state.num_updates + 1), {'metric': 1.}


def _make_stream(seed, length, scale=3.):
  """Returns step types and rewards `[length, B]` of envpool-like episodes."""
  rng = np.random.default_rng(seed)
  step_type = np.empty((length, _ENVS), np.int32)
  step_type[0] = FIRST
  for t, e in np.ndindex(length - 1, _ENVS):
    goes_on = rng.choice([MID, LAST], p=[.7, .3])
    step_type[t + 1, e] = FIRST if step_type[t, e] == LAST else goes_on
  reward = rng.normal(1., scale, step_type.shape).astype(np.float32)
  return step_type, np.where(step_type == FIRST, np.float32(0), reward)


def _cut(step_type, reward):
  """Cuts a stream into rollouts, of which one's last row is the next's first.
  """
  return [
      types.Rollout(
          observation=(), reward=reward[t:t + _LENGTH + 1], discount=(),
          step_type=step_type[t:t + _LENGTH + 1], action=(), extras=(),
          core_state=())
      for t in range(0, len(reward) - 1, _LENGTH)]


def _scale(rollouts):
  """Returns the rewards that a learner sees, round by round, and its state."""
  recorder = _Recorder()
  core = reward_scaling.scale_rewards(recorder.core, _DISCOUNT, _ENVS)
  state = core.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))
  for rollout in rollouts:
    state, metrics = core.update(state, rollout)
    assert metrics == {'metric': 1.}
  assert state.num_updates == len(rollouts)
  return recorder.rewards, state


def _reference(streams):
  """Computes the same, one environment and one step after the other.

  Args:
    streams: Pairs of step types and rewards, one per stretch between restarts.
  """
  seen, scaled = [], []
  for step_type, reward in streams:
    returns = [0.] * _ENVS
    for start in range(0, len(reward) - 1, _LENGTH):
      for t in range(start + 1, start + _LENGTH + 1):
        for e in range(_ENVS):
          if step_type[t, e] == FIRST:
            returns[e] = 0.
          else:
            returns[e] = _DISCOUNT * returns[e] + float(reward[t, e])
            seen.append(returns[e])
      rows = reward[start:start + _LENGTH + 1].astype(np.float64)
      scaled.append(np.clip(rows / np.std(seen), -10, 10))
  return scaled


@pytest.mark.parametrize('num_restarts', [0, 2])
def test_equals_a_loop_per_environment(num_restarts):
  streams = [
      _make_stream(seed, 3 * _LENGTH + 1) for seed in range(num_restarts + 1)]
  # Restarts happen in the midst of episodes.
  assert (streams[0][0][-1] == MID).any()
  rollouts = [rollout for stream in streams for rollout in _cut(*stream)]
  scaled, _ = _scale(rollouts)
  expected = _reference(streams)
  assert len(scaled) == len(expected) == 3 * (num_restarts + 1)
  for rewards, expected_rewards in zip(scaled, expected):
    np.testing.assert_allclose(rewards, expected_rewards, rtol=1e-4, atol=1e-6)


def test_far_rewards_are_clipped():
  step_type, reward = _make_stream(0, 20 * _LENGTH + 1)
  t, e = np.argwhere(step_type == MID)[-1]
  reward[t, e] = -1e6
  scaled, _ = _scale(_cut(step_type, reward))
  assert scaled[-1][t - 19 * _LENGTH, e] == -10
  assert np.abs(scaled[-2]).max() < 10


def test_units_of_the_reward_do_not_matter():
  step_type, reward = _make_stream(0, 2 * _LENGTH + 1)
  scaled, _ = _scale(_cut(step_type, reward))
  other, _ = _scale(_cut(step_type, 1000 * reward))
  for rewards, other_rewards in zip(scaled, other):
    np.testing.assert_allclose(rewards, other_rewards, rtol=1e-4)


def test_environments_in_other_order_have_the_same_statistics():
  step_type, reward = _make_stream(0, 2 * _LENGTH + 1)
  _, state = _scale(_cut(step_type, reward))
  _, other = _scale(_cut(step_type[:, ::-1], reward[:, ::-1]))
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5),
      state.reward_statistics.moments, other.reward_statistics.moments)
  np.testing.assert_allclose(
      state.reward_statistics.returns, other.reward_statistics.returns[::-1])
