"""Tests of the names of environments."""

import pickle
import sys

from cleanba_acme.environments import registry
import numpy as np
import pytest
import tree

_MODULE = '''
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch

made = []
closed = []


class Counted(catch.Catch):

  def close(self):
    closed.append(self)


def make_catch(seed, num_envs, rows=10):
  made.append((seed, num_envs))
  return batch.BatchedEnvironment(
      [Counted(seed + i, rows) for i in range(num_envs)])


def make_too_few(seed, num_envs):
  return make_catch(seed, 2)


def make_dm_env(seed, num_envs):
  return catch.Catch(seed)


def make_without_seed(num_envs):
  return make_catch(0, num_envs)


def make_nothing(seed, num_envs):
  raise OSError('no such disk')


def make_wrong_spec(seed, num_envs):
  environment = make_catch(seed, num_envs)
  environment._spec = catch.Catch(0).observation_spec()
  return environment


number = 3
'''


@pytest.fixture(name='my_envs', autouse=True)
def _my_envs(tmp_path, monkeypatch):
  """A module of a user, and one that doesn't import."""
  (tmp_path / 'my_envs.py').write_text(_MODULE)
  (tmp_path / 'my_broken_envs.py').write_text('import no_such_library')
  (tmp_path / 'my_misspelt_envs.py').write_text('def f(:')
  monkeypatch.syspath_prepend(tmp_path)
  yield
  sys.modules.pop('my_envs', None)


@pytest.mark.parametrize('name, options, shape', [
    ('catch', {}, (10, 5)),
    ('catch', {'rows': 6, 'columns': 3}, (6, 3)),
    ('Catch-v0', {'height': 7}, (7, 5)),
    ('CartPole-v1', {}, (4,)),
    ('Breakout-v5', {'img_height': 42, 'img_width': 42}, (42, 42, 4)),
    ('gymnasium:CartPole-v1', {'max_episode_steps': 20}, (4,)),
    ('my_envs:make_catch', {}, (10, 5)),
    ('my_envs:make_catch', {'rows': 4}, (4, 5)),
])
def test_names(name, options, shape):
  factory = registry.make_factory(name, **options)
  assert factory.spec.observations.shape == shape
  restored = pickle.loads(pickle.dumps(factory))
  assert restored.spec == factory.spec
  assert restored.frame_skip == factory.frame_skip

  def run(factory):
    environment = factory(seed=3, num_envs=2)
    assert environment.num_envs == 2
    timesteps = [environment.reset()]
    timesteps += [environment.step(np.ones(2, int)) for _ in range(25)]
    environment.close()
    return timesteps

  timesteps = run(factory)
  assert timesteps[0].observation.shape == (2,) + shape
  tree.map_structure(np.testing.assert_array_equal, timesteps, run(restored))


def test_function_is_called_with_seed_and_number():
  factory = registry.make_factory('my_envs:make_catch')
  my_envs = sys.modules['my_envs']
  assert my_envs.made == [(0, 1)]
  assert len(my_envs.closed) == 1
  factory(seed=5, num_envs=3)
  assert my_envs.made[1:] == [(5, 3)]


@pytest.mark.parametrize('name, options, message', [
    ('catchy', {}, 'has no id \'catchy\'.*an environment is one of'),
    ('CartPol-v1', {}, 'did you mean CartPole-v.*gymnasium:CartPole-v1'),
    ('', {}, 'environment \'\': .*an environment is one of'),
    ('CartPole-v1', {'rows': 3}, 'CartPole-v1 has no option \'rows\''),
    ('catch', {'size': 3}, '\'catch\' .*unexpected keyword argument \'size\''),
    ('catch', {'rows': 1}, '\'catch\' .*at least 2 rows'),
    ('gymnasium:CartPol-v1', {}, '\'gymnasium:CartPol-v1\' .*CartPole'),
    ('gymnasium:CartPole-v1', {'rows': 3}, 'argument \'rows\''),
    ('no_such_module:f', {}, 'module \'no_such_module\' can\'t be imported'),
    ('my_broken_envs:f', {}, 'can\'t be imported: .*no_such_library'),
    ('my_misspelt_envs:f', {}, 'SyntaxError'),
    ('my_envs:make_cat', {}, 'has no function \'make_cat\''),
    ('my_envs:number', {}, 'has no function \'number\''),
    ('my_envs:', {}, 'has no function \'\''),
    (':make_catch', {}, '\':make_catch\' can\'t be made'),
    ('my_envs:make_catch', {'size': 3}, 'argument \'size\''),
    ('my_envs:make_too_few', {}, 'asked for 1 environments and returned 2'),
    ('my_envs:make_dm_env', {},
     'must return a vector environment.*no num_envs'),
    ('my_envs:make_without_seed', {}, 'takes 1 positional argument'),
    ('my_envs:make_nothing', {}, 'OSError: no such disk'),
    ('my_envs:make_wrong_spec', {}, 'spec to be an EnvironmentSpec'),
])
def test_bad_name_raises(name, options, message):
  with pytest.raises(ValueError, match='(?s)' + message):
    registry.make_factory(name, **options)


def test_missing_envpool_is_a_value_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'envpool', None)
  with pytest.raises(ValueError, match=r'install "cleanba_acme\[envpool\]"'):
    registry.make_factory('CartPole-v1')


def test_optional_libraries_are_optional(monkeypatch):
  for library in ('envpool', 'gymnasium'):
    monkeypatch.setitem(sys.modules, library, None)
  for name in ('catch', 'my_envs:make_catch'):
    registry.make_factory(name)(seed=1, num_envs=2).reset()
