"""A failure ends the run soon, with its traceback last, and leaves nothing."""

import csv
import time

from cleanba_acme.launchers import exits
from cleanba_acme.launchers import train
from cleanba_acme.testing import fakes
from cleanba_acme.testing import programs
import pytest

del train  # Imported here so that a broken script fails this file first.

_FLAGS = (
    '--env=cleanba_acme.testing.fakes:make_catch', '--num_actors=2',
    '--num_envs=4', '--unroll_length=6', '--total_steps=1000000',
    '--network.hiddens=(8,)', '--checkpoint_every=10')
# The contract for the end of a run, and what a busy machine adds to it.
_END_S = 10. + 5.


def _num_updates(output_dir):
  try:
    with open(output_dir / 'ledger.csv', encoding='utf-8') as file:
      return max(0, len(file.readlines()) - 1)
  except FileNotFoundError:
    return 0


def _start(output_dir, *flags):
  return programs.Program(
      programs.TRAIN, *_FLAGS, f'--output_dir={output_dir}', *flags)


def _trouble(kind, step=20):
  return f'--env_options=trouble={kind},trouble_step={step}'


@pytest.mark.parametrize('launch', ['threads', 'processes'])
def test_environment_that_raises(launch, tmp_path):
  with _start(tmp_path / 'run', f'--launch={launch}',
              _trouble(fakes.RAISE)) as program:
    ended = program.wait()
  assert ended.status == exits.NODE_FAILED
  assert not ended.left_over
  lines = ended.output.rstrip().splitlines()
  assert lines[-1].startswith('cleanba_acme.testing.fakes.PlannedError')
  assert any(
      line.startswith('actor/') and 'failed' in line for line in lines[-40:])


@pytest.mark.parametrize('launch', ['threads', 'processes'])
def test_environment_that_hangs(launch, tmp_path):
  with _start(tmp_path / 'run', f'--launch={launch}', '--hang_timeout_s=10',
              _trouble(fakes.HANG)) as program:
    program.wait_for(lambda: _num_updates(tmp_path / 'run') >= 3)
    begin = time.monotonic()
    ended = program.wait()
  assert time.monotonic() - begin < 10. + _END_S
  assert ended.status == exits.HUNG
  assert not ended.left_over
  # Both of them hang in the fourth round.
  assert 'round 3 lacks actor 0 (last seen: round 2' in ended.output


@pytest.mark.parametrize('node', ['actor-1', 'learner-0', 'reverb-0'])
def test_killed_node(node, tmp_path):
  output_dir = tmp_path / 'run'
  with _start(output_dir, '--launch=processes') as program:
    program.wait_for(lambda: _num_updates(output_dir) >= 3)
    victim = program.writer_of(output_dir / 'logs' / f'{node}.log')
    begin = time.monotonic()
    program.kill(victim)
    ended = program.wait()
  assert time.monotonic() - begin < _END_S
  assert ended.status == exits.NODE_FAILED
  assert not ended.left_over
  assert (f'{node.replace("-", "/")} failed: its process was killed by SIGKILL'
          in ended.output)


def test_killed_launcher(tmp_path):
  output_dir = tmp_path / 'run'
  with _start(output_dir, '--launch=processes') as program:
    program.wait_for(lambda: _num_updates(output_dir) >= 3)
    program.kill(program.pid)
    ended = program.wait()
  assert ended.status < 0
  assert not ended.left_over


@pytest.mark.parametrize('launch, updates', [
    ('threads', 0), ('threads', 12), ('processes', 0), ('processes', 12)])
def test_one_interrupt(launch, updates, tmp_path):
  output_dir = tmp_path / 'run'
  with _start(output_dir, f'--launch={launch}') as program:
    # Before the first update it is starting: importing, compiling.
    program.wait_for(
        (lambda: _num_updates(output_dir) >= updates) if updates
        else (lambda: (output_dir / 'config.json').exists()))
    begin = time.monotonic()
    program.interrupt()
    ended = program.wait()
  assert time.monotonic() - begin < _END_S
  assert ended.status == exits.INTERRUPTED
  assert not ended.left_over
  assert 'Traceback' not in ended.output
  if updates:
    with open(output_dir / 'ledger.csv', newline='', encoding='utf-8') as file:
      rows = list(csv.DictReader(file))
    # Whole rows only, and none is missing.
    assert [int(row['update']) for row in rows] == list(
        range(1, len(rows) + 1))
    assert all(len(row['fingerprint']) == 16 for row in rows)


def test_restarts_go_on_to_the_same_end(tmp_path):
  flags = ('--launch=processes', '--total_steps=720')  # 30 rounds.
  with _start(tmp_path / 'whole', *flags) as program:
    assert program.wait().status == exits.DONE
  output_dir = tmp_path / 'killed'
  with _start(output_dir, *flags, '--max_restarts=1') as program:
    program.wait_for(lambda: (output_dir / 'checkpoints' / '10').exists())
    program.kill(program.writer_of(output_dir / 'logs' / 'actor-0.log'))
    ended = program.wait()
  assert ended.status == exits.DONE, ended.output
  assert not ended.left_over

  def column(path):
    with open(path / 'ledger.csv', newline='', encoding='utf-8') as file:
      return [(row['update'], row['fingerprint'])
              for row in csv.DictReader(file)]

  assert column(output_dir) == column(tmp_path / 'whole')
