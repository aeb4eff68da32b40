"""The checks of environments accept our own and find planted faults."""

import functools

from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.environments import registry
from cleanba_acme.environments import wrappers
from cleanba_acme.testing import bandit
from cleanba_acme.testing import conformance
from cleanba_acme.testing import fakes
import numpy as np
import pytest

_CATCH = batch.DmEnvFactory(functools.partial(catch.Catch, rows=4, columns=3))


@pytest.mark.parametrize('make, time_limit', [
    (lambda: _CATCH, None),
    (lambda: wrappers.ObservationActionReward(_CATCH), None),
    (lambda: batch.DmEnvFactory(bandit.Bandit), None),
    (lambda: batch.DmEnvFactory(fakes.Endless), 10),
    (lambda: registry.make_factory('catch'), None),
    (lambda: registry.make_factory('Catch-v0'), None),
    (lambda: registry.make_factory('CartPole-v1', max_episode_steps=20), 20),
    (lambda: registry.make_factory('Pendulum-v1', max_episode_steps=20), 20),
    (lambda: registry.make_factory(
        'gymnasium:CartPole-v1', max_episode_steps=20), 20),
    (lambda: registry.make_factory('Breakout-v5', max_episode_steps=20), 20),
], ids=['catch', 'last_action', 'bandit', 'endless', 'registry', 'catch_v0',
        'cartpole', 'pendulum', 'gymnasium', 'breakout'])
def test_our_environments_conform(make, time_limit):
  conformance.check_environment(make(), num_steps=90, time_limit=time_limit)


class TestCatch(conformance.EnvironmentTests):

  def make_environment_factory(self):
    return _CATCH


class _Faulty:
  """Passes on what an environment does, but for the one fault."""

  def __init__(self, environment):
    self._environment = environment
    self._step = 0

  def __getattr__(self, name):
    return getattr(self._environment, name)

  def reset(self):
    return self.change(self._environment.reset())

  def step(self, action):
    self._step += 1
    return self.change(self._environment.step(action))

  def change(self, timestep):
    return timestep


class _WrongType(_Faulty):

  def change(self, timestep):
    return timestep._replace(
        observation=timestep.observation.astype(np.float64))


class _OutOfBounds(_Faulty):

  def change(self, timestep):
    return timestep._replace(observation=2 * timestep.observation)


class _Infinite(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=timestep.reward / np.float32(0.))


class _TruncatedByHalf(_Faulty):

  def change(self, timestep):
    return timestep._replace(discount=np.where(
        timestep.last(), np.float32(.5), timestep.discount))


class _RewardInFirst(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=timestep.reward + timestep.first())


class _NoFirst(_Faulty):

  def change(self, timestep):
    return timestep._replace(
        step_type=np.maximum(timestep.step_type, int(self._step > 0)))


class _OneBuffer(_Faulty):

  def change(self, timestep):
    if not self._step:
      self._buffer = timestep.reward.copy()
    self._buffer[:] = timestep.reward
    return timestep._replace(reward=self._buffer)


class _OwnRandomness(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=timestep.reward + np.where(
        timestep.first(), 0, np.random.random(3)[:len(timestep.reward)]
    ).astype(np.float32))


class _LooksAtOthers(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=np.where(
        timestep.first(), np.float32(0), timestep.reward.mean()))


class _TakesDummyActions(_Faulty):

  def __init__(self, environment):
    super().__init__(environment)
    self._sum = 0

  def step(self, action):
    self._sum = self._sum + action
    return super().step(action)

  def change(self, timestep):
    return timestep._replace(reward=np.where(
        timestep.first(), 0, self._sum).astype(np.float32))


class _FaultyFactory:
  """Makes environments with a fault."""
  frame_skip = 1

  def __init__(self, fault, factory=_CATCH):
    self.spec = factory.spec
    self._factory = factory
    self._fault = fault

  def __call__(self, seed, num_envs):
    return self._fault(self._factory(seed, num_envs))


@pytest.mark.parametrize('fault, message', [
    (_WrongType, 'observation of step 0: expected shape .* and dtype float32'),
    (_OutOfBounds, 'observation of step 0: breaks its spec'),
    (_Infinite, 'reward of step 0: expected finite numbers'),
    (_TruncatedByHalf, r'discount of LAST: expected 0 \(terminated\) or 1'),
    (_RewardInFirst, 'reward of FIRST: expected 0, saw 1'),
    (_NoFirst, r'step_type: expected FIRST \(0\)'),
    (_OneBuffer, 'kept by the caller until the end'),
    (_OwnRandomness, 'second environment of the same seed'),
    (_LooksAtOthers, 'must be as environment 0 at seed'),
    (_TakesDummyActions, 'with other actions after LAST'),
])
def test_faulty_environments_are_found(fault, message):
  with np.errstate(all='ignore'):
    with pytest.raises(AssertionError, match=message):
      conformance.check_environment(_FaultyFactory(fault))


def test_environments_of_one_seed_are_found():
  class SameSeed(_FaultyFactory):

    def __call__(self, seed, num_envs):
      return batch.BatchedEnvironment(
          [catch.Catch(seed, 4, 3) for _ in range(num_envs)])

  with pytest.raises(AssertionError, match='environment 1 of 3 at seed 0'):
    conformance.check_environment(SameSeed(None))


def test_time_limits_that_terminate_are_found():
  class Terminates(_Faulty):

    def change(self, timestep):
      return timestep._replace(discount=np.where(
          timestep.last(), np.float32(0), timestep.discount))

  factory = _FaultyFactory(Terminates, batch.DmEnvFactory(fakes.Endless))
  with pytest.raises(AssertionError, match='truncated in 200 steps'):
    conformance.check_environment(factory, time_limit=10)
  with pytest.raises(AssertionError, match='the time limit is 12'):
    conformance.check_environment(
        batch.DmEnvFactory(fakes.Endless), time_limit=12)
  with pytest.raises(AssertionError, match='LAST at the time limit 8'):
    conformance.check_environment(
        batch.DmEnvFactory(fakes.Endless), time_limit=8)


def test_episodes_must_end():
  with pytest.raises(AssertionError, match='raise num_steps'):
    conformance.check_environment(_CATCH, num_steps=2)
