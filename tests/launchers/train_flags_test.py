"""What is wrong with the flags is said before anything starts."""

import json
import os
import shlex
import shutil
import threading
import time

from absl import flags
from absl.testing import flagsaver
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import train
from cleanba_acme.testing import programs
import psutil
import pytest

_GOOD = ('--env=catch', '--num_actors=2', '--num_envs=8', '--unroll_length=6',
         '--total_steps=96', '--network.hiddens=(8,)')


class _Exit(Exception):
  """Stands for the end of the process."""


def _run(monkeypatch, *arguments):
  """Runs the script's `main` in this process; returns the exit status."""
  def fake_exit(status):
    raise _Exit(status)
  monkeypatch.setattr(os, '_exit', fake_exit)
  monkeypatch.setenv('NPROC', os.environ.get('NPROC', '1'))
  with flagsaver.flagsaver():
    rest = flags.FLAGS(['train', *_GOOD, *arguments])
    with pytest.raises(_Exit) as ended:
      train.main(rest)
  return ended.value.args[0]


@pytest.mark.parametrize('arguments, message', [
    (['--env=Brekout-v5'],
     "--env: environment 'Brekout-v5': envpool has no id 'Brekout-v5'; did you "
     'mean Breakout-v5'),
    (['--env=gymnasium:Nothing-v0'],
     "--env: environment 'gymnasium:Nothing-v0' "),
    (['--env=no_such_module:make'],
     "--env: environment 'no_such_module:make' "),
    (['--env_options=size=3'], "--env: environment 'catch' "),
    (['--env_options=rows'],
     '--env_options=rows: must be of the form name=value'),
    (['--num_envs=9'],
     '--num_envs=9: must be a multiple of num_actors=2'),
    (['--num_actors=0'], '--num_actors=0: must be at least 1'),
    (['--unroll_length=0'], '--unroll_length=0: must be at least 1'),
    (['--total_steps=47'],
     '--total_steps=47: must be at least one round, num_envs * unroll_length '
     '= 48'),
    (['--policy_lag=2'], '--policy_lag=2: must be 0 (synchronous) or 1'),
    (['--seed=-1'], '--seed=-1: must be in [0, 4294967295]'),
    (['--checkpoint_every=0'], '--checkpoint_every=0: must be at least 1'),
    (['--config.learning_rate=0'],
     '--config.learning_rate=0.0: must be greater than 0'),
    (['--config.discount=1.5'], '--config.discount=1.5: must be at most 1'),
    (['--config.num_minibatches=5'],
     '--config.num_minibatches=5: must divide the 48 samples of an update'),
    (['--config.vtrace_lambda=0.9'],
     '--config.vtrace_lambda=0.9: --agent=ppo has no such setting; it has '
     'discount, gae_lambda'),
    (['--agent=impala', '--config.num_epochs=2'],
     '--config.num_epochs=2: --agent=impala has no such setting'),
    (['--network.torso=cnn'],
     "--network.torso='cnn': must be one of auto, mlp"),
    (['--launch=processes', '--channel=memory'],
     '--channel=memory: processes hand over data through Reverb'),
    (['--launch=processes', '--handoff=asynchronous'],
     '--handoff=asynchronous: needs --launch=threads'),
    (['--handoff=asynchronous', '--policy_lag=1'],
     '--policy_lag=1: must be 0 with an asynchronous handoff'),
    (['--max_restarts=1'], '--max_restarts=1: must be at least 0, and 0 with'),
    (['--hang_timeout_s=0'], '--hang_timeout_s=0.0: must be positive'),
    (['--learner_devices=0,x'], '--learner_devices=0,x: must be indices'),
    (['--learner_devices=99'], '--learner_devices=99: must be less than'),
    (['--xla_threads=0'], '--xla_threads=0: must be at least 1'),
])
def test_bad_flags_are_refused(
    arguments, message, monkeypatch, tmp_path, capsys):
  output_dir = tmp_path / 'run'
  children = psutil.Process().children(recursive=True)
  threads = threading.active_count()
  status = _run(monkeypatch, f'--output_dir={output_dir}', *arguments)
  assert status == 1
  assert capsys.readouterr().err.startswith(f'train: {message}')
  assert not output_dir.exists()
  assert psutil.Process().children(recursive=True) == children
  assert threading.active_count() == threads


@pytest.mark.parametrize('directory', ['/proc/run', 'file/run'])
def test_directory_that_cannot_be_written_to(
    directory, monkeypatch, tmp_path, capsys):
  (tmp_path / 'file').write_text('')
  path = tmp_path / directory
  assert _run(monkeypatch, f'--output_dir={path}') == 1
  assert capsys.readouterr().err.startswith(
      f'train: --output_dir={path}: must be a directory that can be written to')


def test_values_that_absl_refuses():
  ended = programs.train('--num_envs=many')
  assert ended.status == 1
  assert '--num_envs' in ended.output and "'many'" in ended.output


def test_words_that_are_no_flags():
  ended = programs.train('CartPole-v1')
  assert ended.status == 1
  assert 'unexpected arguments: CartPole-v1' in ended.output


def test_every_flag_has_help():
  for name, flag in flags.FLAGS.flags_by_module_dict().items():
    if name.endswith('launchers.train'):
      for item in flag:
        assert item.help and 'Unused help' not in item.help, item.name


def test_config_says_how_to_run_it_again(monkeypatch, tmp_path):
  output_dir = tmp_path / 'run'
  assert _run(
      monkeypatch, f'--output_dir={output_dir}', '--seed=7',
      '--config.entropy_cost=0.05') == 0
  with open(output_dir / 'config.json', encoding='utf-8') as file:
    config = json.load(file)
  assert config['seed'] == 7
  assert config['env'] == 'catch'
  assert config['config']['entropy_cost'] == 0.05
  assert config['config']['discount'] == 0.99  # Defaults are written down too.
  assert config['network']['hiddens'] == [8]
  assert 'jax' in config['record']['versions']


def test_recorded_command_gives_the_same_run_again(tmp_path):
  output_dir = tmp_path / 'run'
  with programs.Program(
      programs.TRAIN, *_GOOD, '--seed=7', f'--output_dir={output_dir}',
      env={'NPROC': '2'}) as program:
    assert program.wait().status == 0

  def read(name):
    with open(output_dir / name, encoding='utf-8') as file:
      return file.read()

  config = json.loads(read('config.json'))
  rows = ledger.read(str(output_dir)).rows
  python, option, module, *arguments = shlex.split(config['record']['command'])
  assert (python, option, module) == ('python', '-m', programs.TRAIN)
  # The same command goes on with the run, unless there is none any more.
  shutil.move(output_dir, tmp_path / 'moved')
  assert programs.train(*arguments).status == 0
  again = json.loads(read('config.json'))
  for same in (config, again):
    same['record'].pop('command')
  assert again == config
  assert ledger.compare(*[
      ledger.read(str(path)) for path in (output_dir, tmp_path / 'moved')
  ]) is None
  assert len(rows) == 2


@pytest.mark.parametrize('seconds', [0.1, 0.3, 1.])
def test_interrupt_before_the_run_begins(seconds, tmp_path):
  # While numpy, jax and others are imported, which make other errors of it.
  output_dir = tmp_path / 'run'
  with programs.Program(
      programs.TRAIN, *_GOOD, f'--output_dir={output_dir}') as program:
    program.wait_for(lambda: program.has_loaded('_multiarray_umath'))
    time.sleep(seconds)
    program.interrupt()
    ended = program.wait()
  assert ended.status == exits.INTERRUPTED, ended.output
  assert not ended.left_over
