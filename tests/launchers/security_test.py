"""Nothing outside a run can reach it, and it runs no code that it reads."""

import contextlib
import os
import pathlib
import pickle
import shutil
import socket
import sys

from cleanba_acme import checkpoint
from cleanba_acme import ledger
from cleanba_acme import loggers
from cleanba_acme import types
from cleanba_acme.launchers import run as run_lib
from cleanba_acme.launchers import trials
from cleanba_acme.testing import programs
import jax
import numpy as np
import pytest

_FLAGS = ('--env=catch', '--num_actors=2', '--num_envs=4', '--unroll_length=6',
          '--total_steps=1000000', '--network.hiddens=(8,)')


def _interfaces(pid):
  """Returns the interfaces that a process can reach anybody by."""
  folder = pathlib.Path(f'/proc/{pid}/net')
  lines = (folder / 'route').read_text().splitlines()[1:]
  found = {line.split()[0] for line in lines}
  with contextlib.suppress(FileNotFoundError):
    lines = (folder / 'if_inet6').read_text().splitlines()
    found |= {line.split()[-1] for line in lines}
  return found


def _network(pid):
  return os.readlink(f'/proc/{pid}/ns/net')


@pytest.mark.parametrize('flags', [
    ['--launch=processes'], ['--launch=threads', '--channel=reverb']])
def test_no_listener_but_in_a_network_of_its_own(flags, tmp_path):
  output_dir = tmp_path / 'run'
  with programs.Program(
      programs.TRAIN, *_FLAGS, *flags,
      f'--output_dir={output_dir}') as program:
    program.wait_for(
        lambda: trials.count_updates(str(output_dir)) >= 3, timeout=180)
    ports = set()
    for pid in program.processes():
      listeners = programs.listeners(pid)
      own = programs.sockets(pid) & set(listeners)
      if _network(pid) == _network('self'):
        assert not own
      else:
        assert _interfaces(pid) <= {'lo'}
        ports.update(listeners[inode] for inode in own)
    # That of Reverb, which can't be reached from here.
    port, = ports
    assert port not in programs.listeners('self').values()
    with pytest.raises(ConnectionRefusedError):
      socket.create_connection(('localhost', port), timeout=5)


class _Bomb:
  """Tells on whoever unpickles it."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return os.mkdir, (str(self._path),)


@pytest.fixture(name='unpickled')
def _unpickled(monkeypatch):
  """Returns a list of what is unpickled during the test."""
  found = []

  def hook(event, arguments):
    if event == 'pickle.find_class' and is_on:
      found.append(arguments)

  is_on = [True]
  sys.addaudithook(hook)  # There is no way to remove it.
  yield found
  is_on.clear()


def _read_all(directory, like):
  """Reads everything that a run reads when it is gone on with."""
  outcomes = []
  for read in (
      lambda: run_lib.read_config(str(directory / 'config.json')),
      lambda: ledger.read(str(directory)),
      lambda: loggers.count_updates(str(directory / 'progress.csv')),
      lambda: _restore(directory / 'checkpoints', like)):
    try:
      outcomes.append(read())
    except (ValueError, checkpoint.DamagedError) as error:
      outcomes.append(error)
  return outcomes


def _restore(directory, like):
  checkpointer = checkpoint.Checkpointer(str(directory))
  try:
    update, _ = checkpointer.find_latest(like)
    return checkpointer.restore(update, like)
  finally:
    checkpointer.close()


def test_nothing_that_is_read_is_unpickled(tmp_path, unpickled):
  state = types.TrainingState(
      {'w': np.ones((2, 3), np.float32)}, {}, np.int32(1),
      np.zeros(2, np.uint32))
  like = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (state, ()))
  run = tmp_path / 'run'
  checkpointer = checkpoint.Checkpointer(str(run / 'checkpoints'))
  checkpointer.save(1, checkpoint.Checkpoint(state, (), {'seconds': 1.}))
  checkpointer.close()
  (run / 'config.json').write_text('{"seed": 1}')
  row = {'update': 1, 'steps': 6, 'version': 0, 'fingerprint': 'a' * 16,
         'keys': 'b' * 16, 'data': 'c' * 16}
  for name in ('ledger.csv', 'progress.csv'):
    logger = loggers.CsvLogger(str(run / name))
    logger.write(row)
    logger.close()

  outcomes = _read_all(run, like)
  assert not any(isinstance(outcome, Exception) for outcome in outcomes)
  assert not unpickled

  # Nor if there is a pickle in the place of any of its files.
  exploded = tmp_path / 'exploded'
  bomb = pickle.dumps(_Bomb(exploded))
  for i, path in enumerate(sorted(run.rglob('*'))):
    if path.is_file():
      copy = shutil.copytree(run, tmp_path / str(i))
      (copy / path.relative_to(run)).write_bytes(bomb)
      _read_all(copy, like)
      assert not unpickled and not exploded.exists(), path

  # And this test would notice.
  pickle.loads(bomb)
  assert unpickled and exploded.exists()
