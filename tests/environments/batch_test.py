"""Tests of the batches of dm_env environments."""

import collections
import functools
import pickle

import bsuite
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
import dm_env
from dm_env import specs
import numpy as np
import pytest
import tree

_FIRST, _MID, _LAST = (int(t) for t in dm_env.StepType)


class _Scripted(dm_env.Environment):
  """Returns prepared time steps; remembers its actions and its closing."""

  def __init__(self, timesteps, observation_spec=None, action_spec=None,
               reward_spec=None):
    self._timesteps = iter(timesteps)
    self._observation_spec = observation_spec or specs.Array((2,), np.float64)
    self._action_spec = action_spec or specs.DiscreteArray(3, np.int64)
    self._reward_spec = reward_spec or specs.Array((), np.float64)
    self.actions = []
    self.closed = False

  def reset(self):
    return next(self._timesteps)

  def step(self, action):
    self.actions.append(action)
    return next(self._timesteps)

  def observation_spec(self):
    return self._observation_spec

  def action_spec(self):
    return self._action_spec

  def reward_spec(self):
    return self._reward_spec

  def close(self):
    self.closed = True


_OBSERVATION = np.array([1., 2.])
_GOOD_START = dm_env.restart(_OBSERVATION)


def test_batches_time_steps():
  environments = [
      _Scripted([
          _GOOD_START, dm_env.transition(1.5, _OBSERVATION + 1),
          dm_env.truncation(2, _OBSERVATION + 2, discount=0.5), _GOOD_START]),
      _Scripted([
          _GOOD_START, dm_env.termination(-1., _OBSERVATION + 3),
          _GOOD_START, dm_env.transition(np.float32(4), _OBSERVATION, 0.9)]),
  ]
  environment = batch.BatchedEnvironment(environments)
  timesteps = [environment.reset()]
  rewards = [environment.unclipped_reward]
  for action in ([0, 1], [2, 0], [1, 1]):
    timesteps.append(environment.step(np.array(action, np.int32)))
    rewards.append(environment.unclipped_reward)
  timestep = tree.map_structure(lambda *x: np.stack(x), *timesteps)
  assert timestep.step_type.T.tolist() == [
      [_FIRST, _MID, _LAST, _FIRST], [_FIRST, _LAST, _FIRST, _MID]]
  np.testing.assert_array_equal(
      timestep.reward.T, [[0, 1.5, 2, 0], [0, -1, 0, 4]])
  np.testing.assert_array_equal(rewards, timestep.reward)
  np.testing.assert_allclose(
      timestep.discount.T, [[1, 1, 0.5, 1], [1, 0, 1, 0.9]])
  np.testing.assert_array_equal(
      timestep.observation[..., 0].T, [[1, 2, 3, 1], [1, 4, 1, 1]])
  assert timestep.step_type.dtype == np.int32
  for x in (timestep.reward, timestep.discount, timestep.observation):
    assert x.dtype == np.float32
  # Actions arrive as the environments expect them.
  assert environments[0].actions == [0, 2, 1]
  assert environments[0].actions[0].dtype == np.int64
  environment.close()
  assert all(e.closed for e in environments)


def test_trees_of_all_kinds_of_data():
  spec = collections.OrderedDict([
      ('b', specs.BoundedArray((2,), np.float64, -1, np.inf)),
      ('a', [specs.Array((), np.int64), specs.DiscreteArray(4)]),
      ('c', specs.BoundedArray((1, 2), np.uint8, 0, 255)),
      ('d', specs.Array((), bool)),
  ])
  observation = collections.OrderedDict([
      ('d', True), ('b', _OBSERVATION), ('a', [7, np.int64(3)]),
      ('c', np.array([[5, 6]], np.uint8))])
  environment = batch.BatchedEnvironment(
      [_Scripted([dm_env.restart(observation)], spec)])
  assert tree.map_structure(
      lambda s: (s.shape, s.dtype), environment.spec.observations
  ) == {'b': ((2,), np.float32), 'a': (((), np.int32), ((), np.int32)),
        'c': ((1, 2), np.uint8), 'd': ((), np.bool_)}
  timestep = environment.reset()
  tree.map_structure(
      lambda s, x: s.validate(x[0]), environment.spec.observations,
      timestep.observation)
  assert timestep.observation['a'][0].tolist() == [7]
  assert timestep.observation['c'].tolist() == [[[5, 6]]]


@pytest.mark.parametrize('timestep, message', [
    (None, 'expected a dm_env.TimeStep, got None'),
    (_GOOD_START, 'step_type: expected MID or LAST .*, got .*FIRST'),
    (dm_env.transition(np.nan, _OBSERVATION), 'reward: .* finite .* got nan'),
    (dm_env.transition(None, _OBSERVATION), 'reward: .*got None'),
    (dm_env.transition(np.ones(2), _OBSERVATION), r'reward: .*got array'),
    (dm_env.transition('1', _OBSERVATION), 'reward: .*got \'1\''),
    (dm_env.transition(1., _OBSERVATION, np.inf), 'discount: .*got inf'),
    (dm_env.transition(1., _OBSERVATION, 1.5), 'discount: .* 0 and 1, got 1.5'),
    (dm_env.transition(1., np.ones(3)),
     r'observation: expected shape \(2,\) .*got shape \(3,\)'),
    (dm_env.transition(1., np.ones(2, int)),
     'observation: expected .* dtype float32 .*dtype int64'),
    (dm_env.transition(1., np.array([0., np.nan])),
     'observation: contains NaN'),
    (dm_env.transition(1., {'a': 1}), 'observation: data of dtype object'),
    (dm_env.transition(1., None), 'observation: data of dtype object'),
])
def test_bad_time_step_raises(timestep, message):
  good = dm_env.transition(1., _OBSERVATION)
  environment = batch.BatchedEnvironment(
      [_Scripted([_GOOD_START, good]), _Scripted([_GOOD_START, timestep])])
  environment.reset()
  with pytest.raises(ValueError, match='environment 1.*' + message):
    environment.step(np.zeros(2, int))


def test_missing_first_after_last_raises():
  environment = batch.BatchedEnvironment([_Scripted([
      _GOOD_START, dm_env.termination(1., _OBSERVATION),
      dm_env.transition(1., _OBSERVATION)])])
  environment.reset()
  environment.step(np.zeros(1, int))
  with pytest.raises(ValueError, match='environment 0.*expected FIRST'):
    environment.step(np.zeros(1, int))


@pytest.mark.parametrize('observation, message', [
    ({'a': _OBSERVATION}, 'observation: structure differs'),
    (_OBSERVATION, 'observation: structure differs'),
    ({'a': np.ones(3), 'b': np.ones(2)}, 'observation/a: expected shape'),
])
def test_bad_tree_raises(observation, message):
  spec = {'a': specs.Array((2,), float), 'b': specs.Array((2,), float)}
  environment = batch.BatchedEnvironment(
      [_Scripted([dm_env.restart(observation)], spec)])
  with pytest.raises(ValueError, match=message):
    environment.reset()


@pytest.mark.parametrize('action', [
    np.zeros(1, int), np.zeros((2, 1), int), np.zeros(2)])
def test_bad_action_raises(action):
  environment = batch.BatchedEnvironment([catch.Catch(0), catch.Catch(1)])
  environment.reset()
  with pytest.raises(ValueError, match=r'shape \(2,\) and dtype int32'):
    environment.step(action)


@pytest.mark.parametrize('kwargs, message', [
    (dict(observation_spec=specs.StringArray(())),
     'observation: data of dtype'),
    (dict(observation_spec={'a': np.float32}),
     'observation/a: expected a dm_env.specs.Array'),
    (dict(action_spec=specs.Array((2,), float)), 'action: expected a Discrete'),
    (dict(action_spec={'a': specs.DiscreteArray(2)}), 'action: expected a'),
    (dict(action_spec=specs.BoundedArray((2,), float, 0, 1e300)),
     'action: expected finite bounds'),
    (dict(reward_spec=specs.Array((2,), float)), 'reward: .* scalar'),
])
def test_unsupported_spec_raises(kwargs, message):
  with pytest.raises(ValueError, match=message):
    batch.make_spec(_Scripted([], **kwargs))


def test_environments_of_different_specs_raise():
  with pytest.raises(ValueError, match='environment 1 has the spec'):
    batch.BatchedEnvironment([catch.Catch(0), catch.Catch(0, rows=5)])


def test_empty_batch_raises():
  with pytest.raises(ValueError, match='at least one environment'):
    batch.DmEnvFactory(catch.Catch)(seed=0, num_envs=0)


class TestDmEnvFactory:

  def test_takes_spec_from_one_environment_and_closes_it(self):
    made = []

    def make(seed):
      made.append((seed, _Scripted([])))
      return made[-1][1]

    factory = batch.DmEnvFactory(make)
    assert factory.spec.actions.num_values == 3
    assert factory.frame_skip == 1
    (_, environment), = made
    assert environment.closed
    factory(seed=5, num_envs=3)
    assert [seed for seed, _ in made[1:]] == [5, 6, 7]

  def test_something_else_than_an_environment_raises(self):
    with pytest.raises(ValueError, match='must return a dm_env.Environment'):
      batch.DmEnvFactory(lambda seed: seed)

  def test_stream_depends_on_seed_of_environment_alone(self):
    factory = batch.DmEnvFactory(functools.partial(catch.Catch, rows=4))
    restored = pickle.loads(pickle.dumps(factory))
    assert restored.spec == factory.spec
    timestep = _run(factory, 40, 3, seed=7)
    tree.map_structure(np.testing.assert_array_equal, timestep,
                       _run(restored, 40, 3, seed=7))
    for i in range(3):
      tree.map_structure(
          np.testing.assert_array_equal,
          tree.map_structure(lambda x, i=i: x[:, i:i + 1], timestep),
          _run(factory, 40, 1, seed=7 + i))


def _run(factory, num_steps, num_envs, seed):
  """Returns time steps `[T+1, B, ...]`, with actions of zeros."""
  environment = factory(seed, num_envs)
  actions = np.zeros((num_envs,) + factory.spec.actions.shape,
                     factory.spec.actions.dtype)
  timesteps = [environment.reset()]
  timesteps += [environment.step(actions) for _ in range(num_steps)]
  environment.close()
  return tree.map_structure(lambda *x: np.stack(x), *timesteps)


def _make_bsuite(name, kwargs, seed):
  return bsuite.load(name, {**kwargs, 'seed': seed})


def _make_dm_control(domain, task, seed):
  from dm_control import suite
  return suite.load(domain, task, task_kwargs={'random': seed, 'time_limit': 1})


@pytest.mark.parametrize('make, discounts', [
    (functools.partial(_make_bsuite, 'catch', {}), {0.}),
    (functools.partial(_make_bsuite, 'memory_len', {'memory_length': 4}),
     {0.}),
    (functools.partial(_make_bsuite, 'cartpole', {}), {0.}),
    # The time limits of dm_control are truncations.
    (functools.partial(_make_dm_control, 'cartpole', 'swingup'), {1.}),
    (functools.partial(_make_dm_control, 'finger', 'spin'), {1.}),
], ids=['bsuite_catch', 'bsuite_memory_len', 'bsuite_cartpole',
        'dm_control_cartpole', 'dm_control_finger'])
def test_libraries_of_environments(make, discounts):
  factory = pickle.loads(pickle.dumps(batch.DmEnvFactory(make)))
  timestep = _run(factory, 120, 2, seed=3)

  def check(spec, values):
    assert values.shape == (121, 2) + spec.shape
    assert values.dtype == spec.dtype
    spec.validate(values[5, 1])

  tree.map_structure(check, factory.spec.observations, timestep.observation)
  first = timestep.step_type == _FIRST
  last = timestep.step_type == _LAST
  np.testing.assert_array_equal(first[1:], last[:-1])
  assert first[0].all() and last.any()
  assert set(timestep.discount[last]) == discounts
  assert (timestep.discount[~last] == 1).all()
