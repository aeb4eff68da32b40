"""Tests of how the cores are shared between workers."""

import os

from cleanba_acme.environments import envpool_adapter
from cleanba_acme.launchers import resources
import pytest

_NAMES = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
  for name in _NAMES:
    monkeypatch.setenv(name, 'to be restored')
    monkeypatch.delenv(name)
  monkeypatch.setattr(resources, 'num_cores', lambda: 8)


@pytest.mark.parametrize('num_actors, threads', [
    (1, 8), (2, 4), (3, 2), (8, 1), (100, 1)])
def test_cores_are_shared(num_actors, threads):
  resources.set_threads(num_actors)
  assert [os.environ[name] for name in _NAMES] == [str(threads)] * 3


def test_what_the_user_has_set_is_respected(monkeypatch):
  monkeypatch.setenv('OMP_NUM_THREADS', '3')
  monkeypatch.setenv('MKL_NUM_THREADS', '5')
  resources.set_threads(num_actors=2)
  assert [os.environ[name] for name in _NAMES] == ['3', '3', '5']


def test_a_flag_overrules_the_environment(monkeypatch):
  monkeypatch.setenv('OMP_NUM_THREADS', '3')
  resources.set_threads(2, threads=1)
  assert [os.environ[name] for name in _NAMES] == ['1'] * 3


@pytest.mark.parametrize('value', ['0', '-1', 'two', ''])
def test_nonsense_is_refused(value, monkeypatch):
  monkeypatch.setenv('OMP_NUM_THREADS', value)
  with pytest.raises(ValueError, match='OMP_NUM_THREADS=.*positive number'):
    resources.set_threads(2)


def test_pools_of_environments_have_so_many_threads(monkeypatch):
  made = []
  envpool = envpool_adapter._import_envpool()  # pylint: disable=protected-access
  make = envpool.make_gymnasium
  monkeypatch.setattr(
      envpool, 'make_gymnasium',
      lambda *args, **kwargs: made.append(kwargs['num_threads'])
      or make(*args, **kwargs))
  resources.set_threads(num_actors=2)
  factory = envpool_adapter.EnvPoolFactory('CartPole-v1')
  factory(seed=0, num_envs=4).close()
  envpool_adapter.EnvPoolFactory('CartPole-v1', {'num_threads': 2})(
      seed=0, num_envs=4).close()
  assert made == [4, 2]
