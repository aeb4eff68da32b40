"""What is wrong with the flags is said before anything starts."""

import json
import os
import shlex
import shutil
import threading
import time
import types

from absl import flags
from absl.testing import flagsaver
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import interrupts
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
  # Handlers of signals, and their thread, are for the life of a process.
  monkeypatch.setattr(
      interrupts, 'Interrupts',
      lambda: types.SimpleNamespace(
          can_stop=False, came=False, start=lambda: None))
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
    (['--network.torso=conv', '--network.channels=0'],
     '--network.channels=0: must be a positive integer'),
    (['--network.hiddens=64,0.5'],
     '--network.hiddens=0.5: must be a positive integer'),
    (["--network.hiddens='x'"], "--network.hiddens='x': must be a positive"),
    (['--network.hiddens=True'], '--network.hiddens=True: must be a positive'),
    (['--network.channels=16'],
     "--network.channels=(16,): torso='auto' takes none; choose nature"),
    (['--network.torso=nature', '--network.channels=16,32'],
     "--network.channels=(16, 32): torso='nature' has exactly 3 layers"),
    (['--network.torso=conv', '--network.channels=16', '--network.strides=2,2'],
     '--network.strides=(2, 2): must have one number per layer, like '
     'channels=(16,)'),
    (['--network.kernels=3'],
     "--network.kernels=(3,): only torso='conv' takes them, not 'auto'"),
    (['--network.core=lstm', '--network.separate_value_torso=True'],
     "--network.separate_value_torso=True: core='lstm' needs one torso"),
    (['--network.core=lstm', '--network.core_size=0'],
     '--network.core_size=0: must be at least 1'),
    (['--network.initial_log_std=nan'],
     '--network.initial_log_std=nan: must be finite'),
    (['--config.learning_rate=inf'],
     '--config.learning_rate=inf: must be finite'),
    (['--config.num_epochs=-1'], '--config.num_epochs=-1: must be at least 1'),
    (['--env_options=rows=0'], "--env: environment 'catch' "),
    (['--env_options=3=4'],
     '--env_options=3=4: must be of the form name=value'),
    (['--env=CartPole-v1', '--env_options=max_episode_steps=0'],
     "--env: option 'max_episode_steps' of CartPole-v1 must be at least 1, "
     'got 0'),
    (['--env=cleanba_acme.testing.fakes:nothing'],
     "--env: environment 'cleanba_acme.testing.fakes:nothing'"),
    (['--env=cleanba_acme.testing.fakes'],
     "--env: environment 'cleanba_acme.testing.fakes'"),
    (['--env='], "--env: environment ''"),
    (['--seed=4294967296'], '--seed=4294967296: must be in [0, 4294967295]'),
    (['--num_envs=0'], '--num_envs=0: must be at least 1'),
    (['--launch=threads', '--channel=reverb', '--handoff=asynchronous'],
     '--handoff=asynchronous: needs --launch=threads, and --channel=memory'),
    (['--hang_timeout_s=nan'], '--hang_timeout_s=nan: must be positive'),
    (['--max_restarts=-1', '--launch=processes'],
     '--max_restarts=-1: must be at least 0'),
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


@pytest.mark.parametrize('flag, words', [
    ('--num_envs=many', "'many'"), ('--num_actors=1.5', "'1.5'"),
    ('--hang_timeout_s=x', "'x'"), ('--launch=thread', 'threads|processes'),
    ('--channel=redis', 'memory|reverb'), ('--agent=dqn', 'ppo|impala'),
    ('--handoff=fast', 'synchronous|asynchronous'),
    ('--reduction=none', 'fast|invariant'),
    ('--keep_checkpoints=0', '0 is not a positive integer'),
    ('--isolate_network=maybe', "'maybe'"),
    ('--config.learning_rate=fast', "'fast'"),
    ('--config.num_epochs=2.5', "'2.5'"),
    ('--config.normalize_advantage=perhaps', "'perhaps'"),
    ('--network.hiddens=64x64', 'must be numbers such as 64 or 64,64'),
    ('--network.hiddens=', 'must be numbers such as 64 or 64,64'),
    ('--no_such_flag=1', 'no_such_flag'),
    ('--config.no_such=1', 'config.no_such'),
])
def test_values_that_absl_refuses_by_name(flag, words):
  with flagsaver.flagsaver():
    with pytest.raises(flags.Error) as error:
      flags.FLAGS(['train', *_GOOD, flag])
  # Those of a choice are listed.
  for word in [flag.split('=')[0].lstrip('-'), *words.split('|')]:
    assert word in str(error.value)


@pytest.mark.parametrize('text, sizes', [
    ('64', (64,)), ('64,', (64,)), ('64,32', (64, 32)), ('(64, 32)', (64, 32)),
    ('[64]', (64,)), ('()', ())])
def test_sizes(text, sizes):
  with flagsaver.flagsaver():
    flags.FLAGS(['train', f'--network.hiddens={text}'])
    assert flags.FLAGS['network'].value['hiddens'] == sizes


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
