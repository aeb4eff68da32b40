"""Tests of the wrappers."""

import pickle

from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.environments import envpool_adapter
from cleanba_acme.environments import wrappers
import numpy as np
import pytest

_CATCH = batch.DmEnvFactory(catch.Catch)


@pytest.mark.parametrize('inner', [
    _CATCH,
    envpool_adapter.EnvPoolFactory('Pendulum-v1', {'max_episode_steps': 7}),
    envpool_adapter.EnvPoolFactory('MsPacman-v5', {'frame_skip': 6}),
], ids=['discrete', 'continuous', 'clipped'])
def test_shows_last_action_and_reward(inner):
  factory = wrappers.ObservationActionReward(inner)
  environment, bare = factory(3, 2), inner(3, 2)
  spec = factory.spec
  assert spec._replace(observations=inner.spec.observations) == inner.spec
  assert factory.frame_skip == inner.frame_skip
  assert environment.num_envs == 2
  timestep, expected = environment.reset(), bare.reset()
  action = np.zeros((2,) + spec.actions.shape, spec.actions.dtype)
  num_first = 0
  for step in range(30):
    for x, y in zip(timestep[:3], expected[:3]):
      np.testing.assert_array_equal(x, y)
    shown = timestep.observation
    np.testing.assert_array_equal(shown['observation'], expected.observation)
    np.testing.assert_array_equal(shown['reward'], expected.reward)
    first = expected.first()
    num_first += first.sum()
    assert (shown['action'][first] == 0).all()
    assert (shown['reward'][first] == 0).all()
    np.testing.assert_array_equal(shown['action'][~first], action[~first])
    np.testing.assert_array_equal(
        environment.unclipped_reward, bare.unclipped_reward)
    for name in ('observation', 'action', 'reward'):
      spec.observations[name].validate(shown[name][1])
    # Never zero, so that a forgotten reset shows.
    action = np.full_like(action, 1 + step % 2)
    timestep, expected = environment.step(action), bare.step(action)
  assert num_first >= 2
  environment.close()


def test_shown_action_is_a_copy():
  environment = wrappers.ObservationActionReward(_CATCH)(3, 2)
  environment.reset()
  action = np.array([1, 2], np.int32)
  timestep = environment.step(action)
  action[:] = 0
  assert timestep.observation['action'].tolist() == [1, 2]


def test_bad_action_raises():
  environment = wrappers.ObservationActionReward(_CATCH)(3, 2)
  environment.reset()
  with pytest.raises(ValueError, match='dtype float64'):
    environment.step(np.array([0.5, 1.]))


def test_factory_survives_pickling():
  factory = wrappers.ObservationActionReward(_CATCH)
  restored = pickle.loads(pickle.dumps(factory))
  assert restored == factory
  assert restored.spec == factory.spec
