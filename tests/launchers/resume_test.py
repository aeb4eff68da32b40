"""A run that was interrupted ends as one that was not, or says why it can't."""

import csv
import functools
import json
import os
import re
import shutil
import subprocess
import sys

from cleanba_acme import checkpoint
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import fingerprint
from cleanba_acme import ledger
from cleanba_acme import seeding
from cleanba_acme.agents.ppo import builder
from cleanba_acme.agents.ppo import config
from cleanba_acme.environments import registry
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import run as run_lib
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import fakes
import pytest

_SEED = 5
_EVERY = 2
_NUM_UPDATES = 9
_SIZES = dict(seed=_SEED, num_actors=2, num_envs=4, unroll_length=6,
              policy_lag=1, checkpoint_every=_EVERY)
# Makes the second round after the third boundary fail: checkpoints 2, 4 and 6
# are there, and updates after them too.
_LATEST = 6
_TROUBLE = {'trouble': fakes.RAISE, 'trouble_step': 8,
            'trouble_seed': seeding.environment_seed(_SEED, 3)}


def _make_experiment(env_options=None, num_updates=_NUM_UPDATES, **changes):
  return experiment_lib.Experiment(**{
      'builder': builder.PPOBuilder(
          config.PPOConfig(num_epochs=1, num_minibatches=2)),
      'network_factory': functools.partial(
          factory.make_networks,
          config=network_config.NetworkConfig(hiddens=(8,))),
      'environment_factory': registry.make_factory(
          'cleanba_acme.testing.fakes:make_catch', **(env_options or {})),
      'total_steps': num_updates * 4 * 6, **_SIZES, **changes})


def _run(output_dir, **changes):
  return run_lib.run(_make_experiment(**changes), str(output_dir))


def _read(output_dir, name='progress.csv'):
  with open(output_dir / name, newline='', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  for row in rows:
    for column in ('seconds', 'sps'):  # Times.
      row.pop(column, None)
  return rows


def _assert_same(run, reference):
  """All that the logs say is the same, each update once."""
  ledgers = [ledger.read(str(path)) for path in (run, reference)]
  assert len(ledgers[0].rows) == _NUM_UPDATES
  assert ledger.compare(*ledgers) is None
  progress = _read(run)
  assert progress == _read(reference)
  assert [row['update'] for row in progress] == [
      str(update + 1) for update in range(_NUM_UPDATES)]


@pytest.fixture(name='reference', scope='module')
def _reference(tmp_path_factory):
  output_dir = tmp_path_factory.mktemp('reference')
  assert _run(output_dir) == exits.DONE
  return output_dir


@pytest.fixture(name='interrupted', scope='module')
def _interrupted(tmp_path_factory):
  output_dir = tmp_path_factory.mktemp('interrupted')
  assert _run(output_dir, env_options=_TROUBLE) == exits.NODE_FAILED
  return output_dir


@pytest.fixture(name='run')
def _copy(interrupted, tmp_path):
  return shutil.copytree(interrupted, tmp_path / 'run')


def _files(run, update):
  return sorted(path for path in (run / 'checkpoints' / str(update)).rglob('*')
                if path.is_file() and path.stat().st_size)


def _truncate(path):
  os.truncate(path, path.stat().st_size // 2)


def _flip_bytes(path):
  content = bytearray(path.read_bytes())
  for i in range(0, len(content), 16):
    content[i] ^= 0x01
  path.write_bytes(content)


def _delete(path):
  path.unlink()


def test_goes_on(run, reference, capfd):
  assert _run(run) == exits.DONE
  out, err = capfd.readouterr()
  assert f'Going on from the checkpoint after update {_LATEST}' in out
  assert 'Warning' not in err
  _assert_same(run, reference)


@pytest.mark.parametrize('name', ['ledger.csv', 'progress.csv'])
@pytest.mark.parametrize('torn', ['8', '8,6,192', '8,6,192,0123456789abcdef'])
def test_torn_row_is_replaced(name, torn, run, reference):
  with open(run / name, 'a', encoding='utf-8') as file:
    file.write(torn)
  assert _run(run) == exits.DONE
  _assert_same(run, reference)


@pytest.mark.parametrize('damage', [_truncate, _flip_bytes, _delete])
def test_damaged_checkpoint_is_named_and_the_one_before_is_used(
    damage, run, reference, capfd):
  for path in _files(run, _LATEST):
    damage(path)
  assert _run(run) == exits.DONE
  out, err = capfd.readouterr()
  assert f'Warning: checkpoint {_LATEST} in ' in err
  assert 'going back to the one before' in err
  assert f'Going on from the checkpoint after update {_LATEST - _EVERY}' in out
  _assert_same(run, reference)


def test_two_damaged_checkpoints(run, reference, capfd):
  for update in (_LATEST, _LATEST - _EVERY):
    for path in _files(run, update):
      _truncate(path)
  assert _run(run) == exits.DONE
  out, err = capfd.readouterr()
  assert err.count('Warning: checkpoint ') == 2
  assert f'the checkpoint after update {_LATEST - 2 * _EVERY}' in out
  _assert_same(run, reference)
  # They may be of use to somebody, as when it was reading that failed.
  kept = (run / 'checkpoints-damaged').glob('*/*')
  assert {path.name for path in kept} == {str(_LATEST), str(_LATEST - _EVERY)}


@pytest.mark.parametrize('damage', [_truncate, _flip_bytes, _delete])
def test_damage_to_any_one_file_is_found_or_harmless(damage, run, tmp_path):
  like = _make_experiment().checkpoint_spec()

  def find(directory):
    checkpointer = checkpoint.Checkpointer(str(directory / 'checkpoints'))
    try:
      update, problems = checkpointer.find_latest(like)
      return update, problems, checkpointer.restore(update, like)
    finally:
      checkpointer.close()

  def bits(found):
    return fingerprint.fingerprint(found[:2]), found.counters

  _, _, expected = find(run)
  num_found = 0
  for i, path in enumerate(_files(run, _LATEST)):
    copy = shutil.copytree(run, tmp_path / str(i))
    damage(copy / path.relative_to(run))
    update, problems, found = find(copy)
    if update == _LATEST:
      assert bits(found) == bits(expected), path
    else:
      assert update == _LATEST - _EVERY
      assert f'checkpoint {_LATEST} in ' in problems[0]
      num_found += 1
  assert num_found >= 2  # The arrays, and what is written beside them.


def test_changed_counter_is_found(run, capfd):
  path, = [path for path in _files(run, _LATEST)
           if path.parts[-2:] == ('metadata', 'metadata')]
  content = json.loads(path.read_text())
  content['counters']['episodes']['count'] += 1
  path.write_text(json.dumps(content))
  assert _run(run) == exits.DONE
  assert f'Warning: checkpoint {_LATEST} in ' in capfd.readouterr().err


def _train(*flags):
  return subprocess.run(
      [sys.executable, '-m', 'cleanba_acme.launchers.train', *flags],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
      capture_output=True, text=True, check=False, timeout=120)


def test_no_checkpoint_that_can_be_read(tmp_path):
  flags = ['--env=cleanba_acme.testing.fakes:make_catch', '--num_envs=4',
           '--unroll_length=6', '--total_steps=72', '--checkpoint_every=1',
           '--network.hiddens=(8,)', f'--output_dir={tmp_path}']
  assert _train(*flags).returncode == exits.DONE
  for update in (1, 2, 3):
    for path in _files(tmp_path, update):
      _truncate(path)
  before = ledger.read(str(tmp_path))
  ended = _train(*flags)
  assert ended.returncode == exits.USER_ERROR
  assert 'Traceback' not in ended.stderr
  assert str(tmp_path) in ended.stderr
  for update in (1, 2, 3):
    assert f'checkpoint {update} in ' in ended.stderr
  # Nothing is lost of what can still be read.
  assert ledger.read(str(tmp_path)) == before


def _drop_row(path, row):
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:row] + lines[row + 1:]))


def _make_directory(path):
  path.unlink(missing_ok=True)
  path.mkdir()


def _replace_checkpoints(path):
  shutil.rmtree(path)
  path.write_text('')


@pytest.mark.parametrize('name, damage, message', [
    ('config.json', lambda path: path.write_text('{"seed": 5'),
     "config.json: can't be read as JSON: Expecting"),
    ('config.json', lambda path: path.write_text(''),
     "config.json: can't be read as JSON: Expecting value"),
    ('config.json', lambda path: path.write_bytes(b'\x80\x81'),
     "config.json: can't be read as JSON: 'utf-8' codec can't decode"),
    ('config.json', lambda path: path.write_text('[' * 100_000),
     "config.json: can't be read as JSON: maximum recursion depth"),
    ('config.json', lambda path: path.write_text('[5]'),
     'config.json: must be a JSON object like {"seed": 1, ...}, is a list'),
    ('config.json', lambda path: path.write_text('5'), 'is a int'),
    ('config.json', _make_directory, "config.json: can't be read as JSON: "),
    ('config.json', lambda path: path.unlink(),
     'config.json: is missing, so nobody can tell which run'),
    ('config.json', lambda path: path.write_text('{}'),
     'checkpoint_every: nothing there, 2 here'),
    ('config.json', lambda path: path.write_text(json.dumps(
        {**json.loads(path.read_text()), 'added': 1})),
     'added: 1 there, nothing here'),
    ('config.json', lambda path: path.write_text(
        path.read_text().replace('"seed": 5', '"seed": "5"')),
     'seed: "5" there, 5 here'),
    ('ledger.csv', lambda path: path.unlink(),
     'ledger.csv: must be a ledger, or a directory with one'),
    ('ledger.csv', lambda path: path.write_text(''),
     'ledger.csv: is no ledger, it has no column data'),
    ('ledger.csv', lambda path: _drop_row(path, 2),
     'ledger.csv: has update 3 where 2 must come'),
    ('ledger.csv', lambda path: path.write_text(
        ''.join(path.read_text().splitlines(keepends=True)[:_LATEST])),
     'ledger.csv has 5 updates, fewer than the checkpoint after update 6; '
     'without that one'),
    ('progress.csv', lambda path: path.unlink(),
     'progress.csv has 0 updates, fewer than the checkpoint after update 6'),
    ('progress.csv', lambda path: path.write_bytes(b'\xff\n'),
     "progress.csv: can't be read: 'utf-8' codec"),
    ('progress.csv', lambda path: path.write_text('steps,update\n'),
     'progress.csv: its first column must be update, is steps,update'),
    ('progress.csv', lambda path: _drop_row(path, 1),
     'progress.csv: has update 2 where 1 must come'),
    ('progress.csv', lambda path: path.write_text('update,steps\n1\n'),
     'progress.csv: row 1 must have 2 values, has 1'),
    ('checkpoints', _replace_checkpoints, 'checkpoints must be a directory'),
])
def test_damaged_directory_is_refused(name, damage, message, run):
  damage(run / name)
  before = {path: path.read_bytes() for path in run.rglob('*')
            if path.is_file()}
  with pytest.raises(ValueError) as error:
    _run(run)
  assert message in str(error.value)
  assert str(run) in str(error.value)
  assert before == {path: path.read_bytes() for path in run.rglob('*')
                    if path.is_file()}


@pytest.mark.parametrize('make', [
    lambda path: path.mkdir(), lambda path: path.write_text('')])
def test_checkpoint_that_is_none_is_named(make, run, reference, capfd):
  path = run / 'checkpoints' / str(_LATEST)
  shutil.rmtree(path)
  make(path)
  assert _run(run) == exits.DONE
  assert f'Warning: checkpoint {_LATEST} in ' in capfd.readouterr().err
  _assert_same(run, reference)


def test_checkpoint_of_another_run(run, tmp_path):
  # Of the same shapes, so nothing but its numbers tells.
  assert _run(tmp_path / 'other', seed=6, num_updates=_LATEST) == exits.DONE
  path = run / 'checkpoints' / str(_LATEST)
  shutil.rmtree(path)
  shutil.copytree(tmp_path / 'other' / 'checkpoints' / str(_LATEST), path)
  with pytest.raises(ValueError, match=f'checkpoints/{_LATEST} is of another '
                     'run: its parameters have the fingerprint'):
    _run(run)


def test_checkpoint_of_other_shapes(run, tmp_path):
  other = _make_experiment(network_factory=functools.partial(
      factory.make_networks, config=network_config.NetworkConfig(hiddens=(9,))))
  checkpointer = checkpoint.Checkpointer(str(run / 'checkpoints'))
  try:
    with pytest.raises(checkpoint.DamagedError) as error:
      checkpointer.find_latest(other.checkpoint_spec())
  finally:
    checkpointer.close()
  assert f'checkpoint {_LATEST} in ' in str(error.value)
  assert re.search(
      r'is of another experiment: .* has shape \((\d+, )?8,?\), must have '
      r'\((\d+, )?9,?\)', str(error.value))


def test_other_settings_are_refused_field_by_field(run):
  before = {path: path.read_bytes() for path in run.rglob('*')
            if path.is_file()}
  with pytest.raises(ValueError) as error:
    _run(run, seed=6, num_envs=8)
  assert 'holds a run with other settings' in str(error.value)
  lines = [line.strip() for line in str(error.value).splitlines()]
  assert lines[1:] == ['num_envs: 4 there, 8 here', 'seed: 5 there, 6 here']
  assert before == {path: path.read_bytes() for path in run.rglob('*')
                    if path.is_file()}


def test_nested_settings_are_refused_by_their_path(run):
  settings = {'config': {'rate': 1, 'same': 2}}
  config_path = run / 'config.json'
  content = json.loads(config_path.read_text())
  config_path.write_text(json.dumps({**content, **settings}))
  with pytest.raises(ValueError, match='config.rate: 1 there, 3 here'):
    run_lib.run(_make_experiment(), str(run),
                settings={'config': {'rate': 3, 'same': 2}})


def test_finished_run_is_not_run_again(reference, tmp_path, capfd):
  run = shutil.copytree(reference, tmp_path / 'run')
  before = (run / 'ledger.csv').read_bytes()
  assert _run(run) == exits.DONE
  assert f'All {_NUM_UPDATES} updates are done already' in (
      capfd.readouterr().out)
  assert (run / 'ledger.csv').read_bytes() == before
