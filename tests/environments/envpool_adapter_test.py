"""Tests of the envpool adapter, and of what it takes for granted of envpool."""

import os
import pickle
import subprocess
import sys

from cleanba_acme import specs
from cleanba_acme.environments import envpool_adapter
import dm_env
import envpool
import numpy as np
import pytest
import tree

_FIRST, _MID, _LAST = (int(t) for t in dm_env.StepType)

# A limit of 10 steps, which a pole left alone by alternating pushes survives.
_SHORT_CARTPOLE = envpool_adapter.EnvPoolFactory(
    'CartPole-v1', {'max_episode_steps': 10})


def _random_actions(spec, num_steps, num_envs, seed=0):
  """Returns actions `[T, B, ...]`."""
  random = np.random.RandomState(seed)
  shape = (num_steps, num_envs) + spec.actions.shape
  if np.issubdtype(spec.actions.dtype, np.integer):
    return random.randint(spec.actions.num_values, size=shape)
  return random.uniform(spec.actions.minimum, spec.actions.maximum, shape)


def _run(factory, actions, seed=3):
  """Returns the time steps `[T+1, B, ...]` of a fresh pool."""
  environment = factory(seed, actions.shape[1])
  timesteps = [environment.reset()] + [environment.step(a) for a in actions]
  environment.close()
  return tree.map_structure(lambda *x: np.stack(x), *timesteps)


def _assert_equal(x, y):
  tree.map_structure(np.testing.assert_array_equal, x, y)


@pytest.mark.parametrize('task_id', [
    'CartPole-v1', 'Acrobot-v1', 'Pendulum-v1', 'MountainCar-v0',
    'FrozenLake-v1', 'Taxi-v3', 'Catch-v0', 'Blackjack-v1', 'LunarLander-v2',
    'HalfCheetah-v4', 'CheetahRun-v1', 'FingerSpin-v1', 'Breakout-v5',
    'CoinrunEasy-v0'])
def test_data_match_spec(task_id):
  factory = envpool_adapter.EnvPoolFactory(task_id)
  timestep = _run(factory, _random_actions(factory.spec, 30, 2))

  def check(spec, values):
    assert values.shape == (31, 2) + spec.shape
    assert values.dtype == spec.dtype
    for value in values.reshape((-1,) + spec.shape):
      spec.validate(value)

  tree.map_structure(check, factory.spec.observations, timestep.observation)
  check(factory.spec.rewards, timestep.reward)
  check(factory.spec.discounts, timestep.discount)
  assert timestep.step_type.dtype == np.int32
  first = timestep.step_type == _FIRST
  assert first[0].all()
  assert (timestep.reward[first] == 0).all()
  assert (timestep.discount[first] == 1).all()
  # A FIRST follows every LAST and nothing else.
  np.testing.assert_array_equal(first[1:], timestep.step_type[:-1] == _LAST)


def test_time_limit_truncates():
  actions = np.tile([[0], [1]], (8, 2))  # [16, 2]
  timestep = _run(_SHORT_CARTPOLE, actions)
  expected = [_FIRST] + 9 * [_MID] + [_LAST, _FIRST] + 5 * [_MID]
  for i in range(2):
    assert timestep.step_type[:, i].tolist() == expected
  assert (timestep.discount == 1).all()
  np.testing.assert_array_equal(
      timestep.reward, timestep.step_type != _FIRST)
  # The last observation is the one that a longer episode has there, and what
  # follows belongs to another episode.
  longer = _run(envpool_adapter.EnvPoolFactory('CartPole-v1'), actions)
  _assert_equal(timestep.observation[:11], longer.observation[:11])
  assert (np.abs(timestep.observation[11]) < 0.05).all()
  assert not (timestep.observation[11] == longer.observation[11]).any()


def test_default_time_limits():
  factory = envpool_adapter.EnvPoolFactory('Pendulum-v1')
  timestep = _run(factory, np.zeros((201, 1, 1)))
  assert timestep.step_type[199:, 0].tolist() == [_MID, _LAST, _FIRST]
  assert timestep.discount[200] == 1


def test_failure_terminates():
  factory = envpool_adapter.EnvPoolFactory('CartPole-v1')
  timestep = _run(factory, np.ones((30, 4), int))
  last = timestep.step_type == _LAST
  assert last.sum() >= 8
  assert (timestep.discount[last] == 0).all()
  assert (timestep.discount[~last] == 1).all()


def test_action_after_last_is_ignored():
  actions = np.tile([[0], [1]], (8, 2))
  changed = actions.copy()
  changed[10] = 1 - changed[10]  # Row 10 is a LAST.
  _assert_equal(_run(_SHORT_CARTPOLE, actions), _run(_SHORT_CARTPOLE, changed))
  changed[11] = 1 - changed[11]
  assert not np.array_equal(_run(_SHORT_CARTPOLE, actions).observation,
                            _run(_SHORT_CARTPOLE, changed).observation)


def test_catch_has_no_time_limit():
  factory = envpool_adapter.EnvPoolFactory('Catch-v0')
  timestep = _run(factory, np.ones((40, 8), int))
  last = timestep.step_type == _LAST
  assert last[9].all() and last.sum() == 8 * 4
  np.testing.assert_array_equal(timestep.discount == 0, last)
  assert set(timestep.reward[last]) == {-1., 1.}
  with pytest.raises(ValueError, match='no option \'max_episode_steps\''):
    envpool_adapter.EnvPoolFactory('Catch-v0', {'max_episode_steps': 3})


@pytest.mark.parametrize('task_id, options, num_steps', [
    ('CartPole-v1', {}, 100),
    ('Catch-v0', {}, 50),
    ('Breakout-v5', {}, 60),
])
def test_stream_depends_on_seed_of_environment_alone(
    task_id, options, num_steps):
  factory = envpool_adapter.EnvPoolFactory(task_id, options)
  actions = _random_actions(factory.spec, num_steps, 4)
  timestep = _run(factory, actions, seed=7)
  _assert_equal(_run(factory, actions, seed=7), timestep)
  with_threads = envpool_adapter.EnvPoolFactory(
      task_id, {**options, 'num_threads': 3})
  _assert_equal(_run(with_threads, actions, seed=7), timestep)
  for i in (0, 2):
    _assert_equal(_run(factory, actions[:, i:i + 1], seed=7 + i),
                  tree.map_structure(lambda x, i=i: x[:, i:i + 1], timestep))
  other = _run(factory, actions, seed=107)
  assert not np.array_equal(other.observation, timestep.observation)


def test_arrays_are_not_reused():
  environment = envpool_adapter.EnvPoolFactory('CartPole-v1')(1, 4)
  timesteps = [environment.reset()]
  copies = [tree.map_structure(np.copy, timesteps[0])]
  for _ in range(500):
    timesteps.append(environment.step(np.ones(4, int)))
    copies.append(tree.map_structure(np.copy, timesteps[-1]))
  _assert_equal(timesteps, copies)


class TestAtari:

  def test_protocol_is_in_effect(self):
    factory = envpool_adapter.EnvPoolFactory('Breakout-v5')
    environment = factory(seed=1, num_envs=2)
    config = environment._pool.config  # pylint: disable=protected-access
    expected = dict(
        num_envs=2, seed=1, num_threads=1, frame_skip=4, stack_num=4,
        img_height=84, img_width=84, gray_scale=True, episodic_life=False,
        full_action_space=True, max_episode_steps=27_000, noop_max=1,
        repeat_action_probability=0.25, reward_clip=True, use_fire_reset=True)
    assert {key: config[key] for key in expected} == expected
    assert factory.spec.actions.num_values == 18
    assert factory.frame_skip == 4

  def test_options_change_it(self):
    factory = envpool_adapter.EnvPoolFactory('Breakout-v5', {
        'img_height': 42, 'img_width': 40, 'stack_num': 2, 'frame_skip': 3,
        'full_action_space': False, 'repeat_action_probability': 0,
        'max_episode_steps': 5})
    assert factory.spec.observations.shape == (42, 40, 2)
    assert factory.spec.actions.num_values == 4
    assert factory.frame_skip == 3
    timestep = _run(factory, np.zeros((6, 1), int))
    assert timestep.observation.shape == (7, 1, 42, 40, 2)
    assert timestep.step_type[5:, 0].tolist() == [_LAST, _FIRST]
    assert timestep.discount[5] == 1

  def test_images_are_envpools_with_channels_last(self):
    factory = envpool_adapter.EnvPoolFactory('Breakout-v5')
    actions = _random_actions(factory.spec, 20, 3)
    timestep = _run(factory, actions)
    pool = envpool.make_gymnasium(
        'Breakout-v5', num_envs=3, seed=3, num_threads=1,
        repeat_action_probability=0.25, full_action_space=True, noop_max=1,
        reward_clip=True)
    images = [pool.reset()[0]] + [pool.step(a)[0] for a in actions]
    np.testing.assert_array_equal(
        timestep.observation, np.moveaxis(np.stack(images), 2, -1))
    # The newest frame is the last channel.
    np.testing.assert_array_equal(
        timestep.observation[10, ..., 3], timestep.observation[11, ..., 2])
    assert timestep.observation.flags.c_contiguous

  def test_reward_is_clipped_but_reported_unclipped(self):
    # Every pellet pays 10 points.
    factory = envpool_adapter.EnvPoolFactory('MsPacman-v5')
    actions = _random_actions(factory.spec, 150, 2)
    raw_factory = envpool_adapter.EnvPoolFactory(
        'MsPacman-v5', {'reward_clip': False})
    environment, raw_environment = factory(3, 2), raw_factory(3, 2)
    environment.reset()
    raw_environment.reset()
    assert not environment.unclipped_reward.any()
    rewards = []
    for action in actions:
      timestep = environment.step(action)
      raw_timestep = raw_environment.step(action)
      np.testing.assert_array_equal(
          timestep.reward, np.sign(raw_timestep.reward))
      np.testing.assert_array_equal(
          environment.unclipped_reward, raw_timestep.reward)
      np.testing.assert_array_equal(
          raw_environment.unclipped_reward, raw_timestep.reward)
      assert environment.unclipped_reward.dtype == np.float32
      rewards.append(raw_timestep.reward)
    assert np.max(rewards) >= 10

  def test_game_over_on_the_limit_step_terminates(self):
    options = {'img_height': 16, 'img_width': 16}
    actions = np.ones((400, 1), int)  # FIRE: serve and miss.
    timestep = _run(
        envpool_adapter.EnvPoolFactory('Breakout-v5', options), actions)
    length = int(np.argmax(timestep.step_type[:, 0] == _LAST))
    assert length > 50
    assert timestep.discount[length] == 0
    for limit, discount in ((length, 0), (length - 1, 1)):
      factory = envpool_adapter.EnvPoolFactory(
          'Breakout-v5', {**options, 'max_episode_steps': limit})
      limited = _run(factory, actions[:limit + 1])
      assert limited.step_type[limit:, 0].tolist() == [_LAST, _FIRST]
      assert limited.discount[limit] == discount

  def test_loss_of_life_ends_no_episode_unless_asked_for(self):
    options = {'img_height': 16, 'img_width': 16}
    actions = np.ones((120, 1), int)
    timestep = _run(
        envpool_adapter.EnvPoolFactory('Breakout-v5', options), actions)
    episodic = _run(envpool_adapter.EnvPoolFactory(
        'Breakout-v5', {**options, 'episodic_life': True}), actions)
    ends = np.flatnonzero(episodic.step_type[:, 0] == _LAST)
    assert len(ends) > 1
    assert (episodic.step_type[ends + 1, 0] == _FIRST).all()
    assert (episodic.discount[ends] == 0).all()
    assert (timestep.step_type[1:ends[0] + 2] == _MID).all()


def test_limit_step_outside_atari_counts_as_truncation():
  # Not what we would like, but envpool tells no more: see the module.
  actions = np.ones((30, 1), int)
  timestep = _run(envpool_adapter.EnvPoolFactory('CartPole-v1'), actions)
  length = int(np.argmax(timestep.step_type[:, 0] == _LAST))
  limited = _run(envpool_adapter.EnvPoolFactory(
      'CartPole-v1', {'max_episode_steps': length}), actions)
  assert timestep.discount[length] == 0
  assert limited.step_type[length] == _LAST
  assert limited.discount[length] == 1


@pytest.mark.parametrize('task_id, options, message', [
    ('CartPol-v1', {}, 'no id \'CartPol-v1\'; did you mean CartPole-v'),
    ('breakout', {}, 'did you mean Breakout-v5'),
    ('Xyzzy', {}, 'no id \'Xyzzy\'. All ids: python -c'),
    ('CartPole-v1', {'stack_num': 2},
     'no option \'stack_num\'; its options are max_episode_steps, num_threads'),
    ('CartPole-v1', {'num_envs': 2}, 'no option \'num_envs\''),
    ('Pong-v5', {'task': 'breakout'}, 'no option \'task\''),
    ('Pong-v5', {'zero_discount_on_life_loss': True}, 'no option'),
    ('CliffWalking-v0', {'max_episode_steps': 3}, 'no option'),
    ('CoinrunEasy-v0', {'max_episode_steps': 3}, 'no option'),
    ('Pong-v5', {'img_height': 0}, '\'img_height\'.* at least 1, got 0'),
    ('Pong-v5', {'num_threads': 0}, '\'num_threads\'.* at least 1, got 0'),
    ('Pong-v5', {'frame_skip': 2.5}, '\'frame_skip\'.* type int .*got 2.5'),
    ('Pong-v5', {'frame_skip': True}, '\'frame_skip\'.* type int .*got True'),
    ('Pong-v5', {'reward_clip': 'yes'}, '\'reward_clip\'.* type bool'),
    ('Pong-v5', {'repeat_action_probability': 1.5}, 'between 0 and 1, got 1.5'),
    ('Pong-v5', {'frame_skip': 2**40}, 'refuses the options'),
    ('VizdoomCustom-v1', {}, 'can\'t make VizdoomCustom-v1'),
    ('Basic-v1', {}, 'Basic-v1: the action space .* is not supported'),
])
def test_bad_id_or_option_raises(task_id, options, message):
  with pytest.raises(ValueError, match=message):
    envpool_adapter.EnvPoolFactory(task_id, options)


class _PoolOf:
  """A pool that gives one reward."""

  config = {'num_envs': 2}

  def __init__(self, reward):
    self._reward = np.array([0., reward], np.float32)

  def step(self, action):
    none = np.zeros(2, bool)
    return action.astype(np.float32), self._reward, none, none, {}


@pytest.mark.parametrize('reward', [np.nan, np.inf, -np.inf])
def test_bad_reward_raises(reward):
  spec = specs.EnvironmentSpec(
      observations=specs.Array((), np.float32),
      actions=specs.DiscreteArray(2), rewards=None, discounts=None)

  def step(value):
    return envpool_adapter.EnvPoolEnvironment(
        _PoolOf(value), spec, channel_first=False).step(np.zeros(2, np.int32))

  assert step(1.).reward.tolist() == [0., 1.]
  with pytest.raises(ValueError, match='environment 1, reward: expected a '
                     f'finite number, got {reward}'):
    step(reward)


@pytest.mark.parametrize('seed, num_envs, message', [
    (-1, 2, 'seed -1'), (2**31 - 1, 2, 'seed 2147483647'),
    (0, 0, 'num_envs must be at least 1'),
])
def test_bad_seed_or_number_raises(seed, num_envs, message):
  with pytest.raises(ValueError, match=message):
    _SHORT_CARTPOLE(seed, num_envs)


@pytest.mark.parametrize('action', [
    np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2)])
def test_bad_action_raises(action):
  environment = _SHORT_CARTPOLE(0, 2)
  environment.reset()
  with pytest.raises(ValueError, match=r'expected actions of shape \(2,\)'):
    environment.step(action)


def test_factory_makes_no_environment(monkeypatch):
  def fail(*args, **kwargs):
    raise AssertionError('made an environment')
  monkeypatch.setattr(envpool, 'make_gymnasium', fail)
  envpool_adapter.EnvPoolFactory('Breakout-v5')


@pytest.mark.parametrize('task_id', ['CartPole-v1', 'Pong-v5', 'CheetahRun-v1'])
def test_factory_survives_pickling(task_id):
  factory = envpool_adapter.EnvPoolFactory(task_id)
  restored = pickle.loads(pickle.dumps(factory))
  assert restored == factory
  assert restored.spec == factory.spec
  assert restored.config == factory.config
  actions = _random_actions(factory.spec, 3, 1)
  _assert_equal(_run(restored, actions), _run(factory, actions))


def test_factory_without_envpool_says_how_to_install_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'envpool', None)
  with pytest.raises(ImportError, match='pip install "cleanba_acme'):
    envpool_adapter.EnvPoolFactory('CartPole-v1')


def _run_python(code):
  """Returns all that a new Python process prints."""
  result = subprocess.run(
      [sys.executable, '-c', code], stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, text=True, check=True, timeout=60,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
  return result.stdout


def test_nothing_is_printed():
  output = _run_python(
      'from cleanba_acme.environments import envpool_adapter\n'
      'for task_id in "CartPole-v1", "CheetahRun-v1", "Pong-v5":\n'
      '  envpool_adapter.EnvPoolFactory(task_id)(0, 1).reset()')
  assert not output


def test_unpickling_imports_no_envpool():
  # The learner receives factories too, and needs their specs only.
  output = _run_python(
      'import pickle, sys\n'
      f'factory = pickle.loads({pickle.dumps(_SHORT_CARTPOLE)!r})\n'
      'print(factory.spec.actions.num_values, "envpool" in sys.modules)')
  assert output == '2 False\n'
