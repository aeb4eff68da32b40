"""Tests of gymnasium's environments."""

import functools
import pickle

from cleanba_acme.environments import batch
from cleanba_acme.environments import gymnasium_adapter
import dm_env
import gymnasium
from gymnasium import spaces
import numpy as np
import pytest
import tree

_FIRST, _MID, _LAST = (int(t) for t in dm_env.StepType)


class _Scripted(gymnasium.Env):
  """Ends its episodes as prepared; remembers seeds and actions."""

  observation_space = spaces.Dict(
      position=spaces.Box(-1, 1, (2,), np.float64), room=spaces.Discrete(3))

  def __init__(self, ends, action_space=spaces.Discrete(2)):
    self.action_space = action_space
    self.seeds = []
    self.actions = []
    self.closed = False
    self._ends = iter(ends)

  def reset(self, *, seed=None, options=None):
    self.seeds.append(seed)
    return {'room': 0, 'position': np.zeros(2)}, {}

  def step(self, action):
    self.actions.append(action)
    observation = {'room': 2, 'position': np.ones(2)}
    return (observation, 3, *next(self._ends), {})

  def close(self):
    self.closed = True


def _run(factory, actions, seed):
  environment = factory(seed, actions.shape[1])
  timesteps = [environment.reset()] + [environment.step(a) for a in actions]
  environment.close()
  return tree.map_structure(lambda *x: np.stack(x), *timesteps)


def test_ends_of_episodes():
  scripted = _Scripted([
      (False, False), (True, False), (False, True), (True, True),
      (False, False)])
  factory = batch.DmEnvFactory(
      lambda seed: gymnasium_adapter.GymnasiumEnvironment(scripted, seed))
  timestep = _run(factory, np.zeros((8, 1), int), seed=5)
  assert timestep.step_type[:, 0].tolist() == [
      _FIRST, _MID, _LAST, _FIRST, _LAST, _FIRST, _LAST, _FIRST, _MID]
  assert timestep.discount[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 1]
  assert timestep.reward[:, 0].tolist() == [0, 3, 3, 0, 3, 0, 3, 0, 3]
  assert timestep.observation['room'][:, 0].tolist() == [
      0, 2, 2, 0, 2, 0, 2, 0, 2]
  # The seed is given once; repeated, it would repeat the episode.
  assert scripted.seeds == [5, None, None, None]
  assert scripted.closed
  assert scripted.actions == 5 * [0]
  assert isinstance(scripted.actions[0], np.int64)


@pytest.mark.parametrize('action_space, action', [
    (spaces.MultiDiscrete([3, 2]), np.array([[2, 1]])),
    (spaces.Box(-1, 1, (2,), np.float64), np.array([[0.5, -1]]))])
def test_actions_arrive_as_the_space_wants_them(action_space, action):
  scripted = _Scripted([(False, False)], action_space)
  environment = batch.BatchedEnvironment(
      [gymnasium_adapter.GymnasiumEnvironment(scripted, seed=0)])
  environment.reset()
  environment.step(action)
  assert action_space.contains(scripted.actions[0])
  np.testing.assert_array_equal(scripted.actions[0], action[0])


@pytest.mark.parametrize('task_id, limit', [
    ('CartPole-v1', 500), ('Pendulum-v1', 200), ('MountainCar-v0', 200)])
def test_registered_environments(task_id, limit):
  factory = batch.DmEnvFactory(
      functools.partial(gymnasium_adapter.make, task_id, {}))
  factory = pickle.loads(pickle.dumps(factory))
  actions = np.zeros((limit + 1, 2) + factory.spec.actions.shape, int)
  timestep = _run(factory, actions, seed=1)
  tree.map_structure(
      lambda spec, x: spec.validate(x[3, 1]), factory.spec.observations,
      timestep.observation)
  last = timestep.step_type == _LAST
  if task_id == 'CartPole-v1':  # It falls.
    assert (timestep.discount[last] == 0).all() and last.sum() > 50
  else:
    assert last[limit].all() and last.sum() == 2
    assert (timestep.discount == 1).all()
  # Environment 1 of seed 1 is environment 0 of seed 2.
  tree.map_structure(
      lambda x, y: np.testing.assert_array_equal(x[:, 1:], y), timestep,
      _run(factory, actions[:, 1:], seed=2))


def test_unsupported_space_raises():
  with pytest.raises(ValueError, match='action space Text'):
    gymnasium_adapter.GymnasiumEnvironment(
        _Scripted([], spaces.Text(3)), seed=0)
