"""However a run fails, it ends soon, names the cause, and leaves nothing."""

import os
import shutil
import signal
import time

import cleanba_acme
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import fault_matrix
from cleanba_acme.launchers import faults
from cleanba_acme.launchers import train
from cleanba_acme.launchers import trials
from cleanba_acme.testing import fakes
from cleanba_acme.testing import programs
import pytest

del train  # Imported here so that a broken script fails this file first.

_NUM_UPDATES = 30
_FLAGS = (
    '--env=cleanba_acme.testing.fakes:make_catch', '--num_actors=2',
    '--num_envs=4', '--unroll_length=6', f'--total_steps={_NUM_UPDATES * 24}',
    '--network.hiddens=(8,)', '--checkpoint_every=10')
_SLOWLY = '--env_options=max_sleep_s=0.02'
_ENDLESS = '--total_steps=1000000'
# The contract for the end of a run, and what a busy machine adds to it.
_SLACK_S = 5.
_END_S = 10. + _SLACK_S
_WAIT_S = 180.
# In a traceback, what the files of the package have in common.
_OURS = os.path.dirname(cleanba_acme.__file__) + os.sep
_LAUNCHES = ('threads', 'processes')


def _start(output_dir, *flags):
  return programs.Program(
      programs.TRAIN, *_FLAGS, f'--output_dir={output_dir}', *flags)


def _count(output_dir):
  return trials.count_updates(str(output_dir))


@pytest.mark.parametrize('cell', [
    pytest.param(cell, id=cell.name, marks=() if cell.in_ci else
                 pytest.mark.slow)
    for cell in fault_matrix.CELLS])
def test_fault(cell, tmp_path):
  try:
    result = faults.run(cell, tmp_path)
  except fault_matrix.Skipped as reason:
    pytest.skip(str(reason))
  assert not faults.problems(cell, result, _SLACK_S), result.output
  if (cell.launch == fault_matrix.PROCESSES and
      cell.node in ('actor', 'learner')):
    # What a node prints is on the terminal, with its name.
    for line in result.output.splitlines():
      assert fakes.ANNOUNCEMENT not in line or line.startswith(
          f'[{cell.node}/'), result.output


def test_the_faults_that_ci_makes_end_in_every_way():
  cells = [cell for cell in fault_matrix.CELLS if cell.in_ci]
  assert {cell.status for cell in cells} >= {
      exits.NODE_FAILED, exits.HUNG, -signal.SIGKILL}
  assert {cell.launch for cell in cells} == set(_LAUNCHES)


def _python_was_starting(ended):
  """Whether Python ended before the script's first line.

  For a tenth of a second nobody but Python handles Ctrl-C, and it has ways of
  its own to end: status 1 and one of many messages. Then a traceback, if there
  is one, has no file of ours.
  """
  return (ended.status == 1 and 'KeyboardInterrupt' in ended.output and
          _OURS not in ended.output)


def _assert_interrupted(ended, seconds, output_dir):
  """It was in time and in order, and left whole rows, none missing."""
  # Until the script handles it, the signal itself ends it: 130 to a shell, too.
  assert (ended.status in (exits.INTERRUPTED, -signal.SIGINT) or
          _python_was_starting(ended)), ended.output
  assert seconds < _END_S
  assert not ended.left_over
  if ended.status == exits.INTERRUPTED:
    assert 'Traceback' not in ended.output
  if _count(output_dir):
    assert all(len(row['fingerprint']) == 16
               for row in ledger.read(str(output_dir)).rows)


@pytest.mark.parametrize('launch', _LAUNCHES)
@pytest.mark.parametrize('updates', [0, 12])
def test_one_interrupt(launch, updates, tmp_path):
  output_dir = tmp_path / 'run'
  with _start(output_dir, f'--launch={launch}', _ENDLESS) as program:
    # Before the first update it is starting: importing, compiling.
    program.wait_for(
        (lambda: _count(output_dir) >= updates) if updates
        else (lambda: (output_dir / 'config.json').exists()), _WAIT_S)
    begin = time.monotonic()
    program.interrupt()
    ended = program.wait(_WAIT_S)
  assert ended.status == exits.INTERRUPTED
  _assert_interrupted(ended, time.monotonic() - begin, output_dir)


@pytest.fixture(name='whole', scope='module', params=_LAUNCHES)
def _whole(request, tmp_path_factory):
  """Makes runs that nobody disturbs, one new and one from a checkpoint."""
  flags = (f'--launch={request.param}', _SLOWLY)
  folder = tmp_path_factory.mktemp('whole')
  with _start(folder / 'half', *flags) as program:
    program.wait_for(lambda: _count(folder / 'half') >= 12, _WAIT_S)
    program.interrupt()
    assert program.wait(_WAIT_S).status == exits.INTERRUPTED
  shutil.copytree(folder / 'half', folder / 'resumed')
  seconds = {}
  for start, name in (('new', 'new'), ('half', 'resumed')):
    begin = time.monotonic()
    with _start(folder / name, *flags) as program:
      assert program.wait(_WAIT_S).status == exits.DONE
    seconds[start] = time.monotonic() - begin
  return flags, folder, seconds


def _interrupt(whole, start, moment, output_dir):
  """Interrupts a run at a moment, and lets the same command end it."""
  flags, folder, _ = whole
  if start == 'half':
    shutil.copytree(folder / 'half', output_dir)
  with _start(output_dir, *flags) as program:
    moment(program)
    # One more may come before the signal does.
    was_over = _count(output_dir) >= _NUM_UPDATES - 1
    begin = time.monotonic()
    program.interrupt()
    ended = program.wait(_WAIT_S)
  if ended.status == exits.DONE:
    assert was_over
    assert _count(output_dir) == _NUM_UPDATES
  else:
    _assert_interrupted(ended, time.monotonic() - begin, output_dir)
  with _start(output_dir, *flags) as program:
    ended = program.wait(_WAIT_S)
  assert ended.status == exits.DONE, ended.output
  assert ledger.compare(
      ledger.read(str(output_dir)), ledger.read(str(folder / 'new'))) is None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('start', ['new', 'half'])
def test_one_interrupt_at_any_moment(whole, start, tmp_path):
  _, _, seconds = whole
  for i in range(20):
    _interrupt(
        whole, start,
        lambda program: time.sleep(i / 20 * seconds[start]),  # pylint: disable=cell-var-from-loop
        tmp_path / str(i))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_interrupt_after_the_last_update(whole, tmp_path):
  for i in range(10):
    output_dir = tmp_path / str(i)

    def moment(program):
      program.wait_for(
          lambda: _count(output_dir) == _NUM_UPDATES, _WAIT_S)  # pylint: disable=cell-var-from-loop
      time.sleep(i * 0.1)  # pylint: disable=cell-var-from-loop

    _interrupt(whole, 'new', moment, output_dir)


def test_restarts_go_on_to_the_same_end(tmp_path):
  with _start(tmp_path / 'whole', '--launch=processes') as program:
    assert program.wait(_WAIT_S).status == exits.DONE
  output_dir = tmp_path / 'killed'
  with _start(
      output_dir, '--launch=processes', '--max_restarts=1') as program:
    program.wait_for(
        lambda: (output_dir / 'checkpoints' / '10').exists(), _WAIT_S)
    program.kill(program.writer_of(output_dir / 'logs' / 'actor-0.log'))
    ended = program.wait(_WAIT_S)
  assert ended.status == exits.DONE, ended.output
  assert not ended.left_over
  assert ledger.compare(ledger.read(str(output_dir)),
                        ledger.read(str(tmp_path / 'whole'))) is None
