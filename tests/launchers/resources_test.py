"""Tests of how cores and memory are shared between workers."""

import os
import resource
import subprocess
import sys

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


# Uses a block of memory four times, in a thread, and prints how many pages the
# system gave for the last three.
_USE_AGAIN = """
import ctypes
import os
import resource
import sys
import threading
from cleanba_acme.launchers import resources

how = sys.argv[1]
if how == 'here':
  resources.keep_memory()
if how == 'in a child':
  os.execve(sys.executable, [sys.executable, '-c', sys.argv[2], 'as ever'],
            {**os.environ, **resources.kept_memory()})
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size = 100 * 2**20  # More than a heap of a thread's own may be.

def use():
  block = libc.malloc(size)
  libc.memset(block, 1, size)
  libc.free(block)

def work():
  use()
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  for _ in range(3):
    use()
  print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def _count_faults(how):
  return int(subprocess.run(
      [sys.executable, '-c', _USE_AGAIN, how, _USE_AGAIN], check=True,
      stdout=subprocess.PIPE, text=True).stdout)


def test_memory_is_used_again():
  pages = 3 * 100 * 2**20 // resource.getpagesize()
  assert _count_faults('as ever') >= pages
  assert _count_faults('here') < pages / 100
  assert _count_faults('in a child') < pages / 100


@pytest.mark.parametrize('how', ['here', 'in a child'])
def test_the_users_allocator_settings_are_respected(how, monkeypatch):
  monkeypatch.setenv('MALLOC_MMAP_MAX_', '65536')
  assert _count_faults(how) >= 3 * 100 * 2**20 // resource.getpagesize()
