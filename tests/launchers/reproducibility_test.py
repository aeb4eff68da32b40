"""The contract: from an experiment follow the bits of every update.

However a run is launched, whatever else its machine does and however long its
workers take, the ledger has the same fingerprints. A new agent is a new case.
"""

import contextlib
import csv
import functools
import os
import subprocess
import sys
from typing import Any, Mapping, NamedTuple
from unittest import mock

from cleanba_acme import experiment as experiment_lib
from cleanba_acme import seeding
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import registry
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import run as run_lib
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import fakes
from cleanba_acme.testing import programs
import jax
import pytest

_SIZES = dict(seed=1, num_actors=2, num_envs=8, unroll_length=6,
              total_steps=5 * 8 * 6, checkpoint_every=3)
_ENV = 'cleanba_acme.testing.fakes:make_catch'
_SLEEPS = {'max_sleep_s': 0.02}
_PPO = {'num_epochs': 2, 'num_minibatches': 2, 'learning_rate': 0.01}

_BUILDERS = {
    'impala': lambda config: impala_builder.IMPALABuilder(
        impala_config.IMPALAConfig(**config)),
    'ppo': lambda config: ppo_builder.PPOBuilder(
        ppo_config.PPOConfig(**config)),
}


class _Case(NamedTuple):
  """What is run; a name of `_BUILDERS`, settings, and the policy lag."""
  agent: str
  config: Mapping[str, Any]
  network: Mapping[str, Any]
  policy_lag: int


_MLP = {'hiddens': (8, 8)}
_CASES = {
    'ppo-lag0': _Case('ppo', _PPO, _MLP, 0),
    'ppo-lag1': _Case('ppo', _PPO, _MLP, 1),
    'ppo-normalized-lag0': _Case(
        'ppo', {**_PPO, 'scale_rewards': True},
        {**_MLP, 'normalize_observations': True}, 0),
    'impala-lag1': _Case('impala', {'num_minibatches': 2}, _MLP, 1),
    'impala-gru-lag1': _Case(
        'impala', {'num_minibatches': 2},
        {'hiddens': (8,), 'core': 'gru', 'core_size': 8}, 1),
}
_EVERY_CASE = pytest.mark.parametrize('case', list(_CASES))
_QUICK_CASES = ('ppo-lag0', 'impala-gru-lag1')


def _make_experiment(case, env_options=None, **changes):
  case = _CASES[case]
  return experiment_lib.Experiment(**{
      'builder': _BUILDERS[case.agent](case.config),
      'network_factory': functools.partial(
          factory.make_networks,
          config=network_config.NetworkConfig(**case.network)),
      'environment_factory': registry.make_factory(_ENV, **(env_options or {})),
      'policy_lag': case.policy_lag,
      **_SIZES, **changes})


def _make_flags(case, env_options=None):
  """Returns the flags of `_make_experiment(case, env_options)`."""
  case = _CASES[case]
  options = [f'{name}={value}' for name, value in (env_options or {}).items()]
  settings = {
      **_SIZES,
      'agent': case.agent,
      'env': _ENV,
      'env_options': ','.join(options),
      'policy_lag': case.policy_lag,
      **{f'config.{name}': value for name, value in case.config.items()},
      **{f'network.{name}': value for name, value in case.network.items()},
  }
  return [f'--{name}={value}' for name, value in settings.items()]


def _read(path, columns):
  with open(path, newline='', encoding='utf-8') as file:
    return [
        tuple(row[name] for name in columns) for row in csv.DictReader(file)]


def _results(output_dir):
  """Returns all of a run's files that may not depend on timing."""
  with open(output_dir / 'progress.csv', encoding='utf-8') as file:
    header = file.readline().strip().split(',')
  columns = [name for name in header if name not in ('seconds', 'sps')]
  assert 'policy_loss' in columns and 'episode_return' in columns
  return (
      _read(output_dir / 'ledger.csv',
            ('update', 'version', 'steps', 'fingerprint', 'keys', 'data')),
      _read(output_dir / 'progress.csv', columns))


def _run_threads(experiment, output_dir, channel='memory'):
  assert run_lib.run(
      experiment, str(output_dir), 'threads', channel) == exits.DONE
  return _results(output_dir)


@pytest.fixture(name='reference', scope='module')
def _reference(tmp_path_factory):
  """Returns a function from a case to the results of its first run."""
  @functools.lru_cache(None)
  def run(case):
    return _run_threads(
        _make_experiment(case), tmp_path_factory.mktemp(case) / 'reference')
  return run


@pytest.fixture(autouse=True, scope='module')
def _compilation_cache(tmp_path_factory):
  """Compiles what the runs in this process share once; others don't see it."""
  name = 'jax_compilation_cache_dir'
  before = getattr(jax.config, name)
  directory = str(tmp_path_factory.mktemp('cache'))
  with mock.patch.dict(os.environ, {name.upper(): directory}):
    jax.config.update(name, directory)
    yield
  jax.config.update(name, before)


@contextlib.contextmanager
def _busy_loops(number):
  loops = [subprocess.Popen([sys.executable, '-c', 'while True: pass'])
           for _ in range(number)]
  try:
    yield
    assert all(loop.poll() is None for loop in loops)
  finally:
    for loop in loops:
      loop.kill()
      loop.wait()


@_EVERY_CASE
def test_reference_is_a_whole_run(case, reference):
  ledger, progress = reference(case)
  lag = _CASES[case].policy_lag
  assert [row[:3] for row in ledger] == [
      (str(r + 1), str(max(0, r - lag)), str((r + 1) * 48)) for r in range(5)]
  # Every update changes the parameters.
  assert len({row[3] for row in ledger}) == 5
  assert len(progress) == 5


@_EVERY_CASE
def test_rerun(case, reference, tmp_path):
  assert _run_threads(
      _make_experiment(case), tmp_path / 'run') == reference(case)


@_EVERY_CASE
def test_reverb_channels(case, reference, tmp_path):
  assert _run_threads(
      _make_experiment(case), tmp_path / 'run', 'reverb') == reference(case)


@_EVERY_CASE
@pytest.mark.parametrize('number', [1, 2])
def test_beside_busy_loops(case, number, reference, tmp_path):
  with _busy_loops(number):
    results = _run_threads(_make_experiment(case), tmp_path / 'run')
  assert results == reference(case)


@_EVERY_CASE
@pytest.mark.parametrize('channel', ['memory', 'reverb'])
def test_random_sleeps_in_actors(case, channel, reference, tmp_path):
  assert _run_threads(
      _make_experiment(case, _SLEEPS), tmp_path / 'run', channel
  ) == reference(case)


@_EVERY_CASE
@pytest.mark.parametrize('actor', [0, 1])
def test_one_slow_actor(case, actor, reference, tmp_path):
  seed = seeding.environment_seed(_SIZES['seed']) + 4 * actor
  assert _run_threads(
      _make_experiment(case, {**_SLEEPS, 'trouble_seed': seed}),
      tmp_path / 'run') == reference(case)


@_EVERY_CASE
def test_random_sleeps_in_learner(case, reference, tmp_path):
  experiment = _make_experiment(case)
  experiment = _make_experiment(
      case, builder=fakes.DisturbedBuilder(experiment.builder, max_sleep_s=0.2))
  assert _run_threads(experiment, tmp_path / 'run') == reference(case)


@_EVERY_CASE
@pytest.mark.parametrize('num_actors', [1, 4, 8])
def test_environments_split_over_other_actors(
    case, num_actors, reference, tmp_path):
  assert _run_threads(
      _make_experiment(case, num_actors=num_actors), tmp_path / 'run'
  ) == reference(case)


# One case of each policy lag; the others, half a minute each, are slow.
@pytest.mark.parametrize('case', [
    pytest.param(case, marks=[] if case in _QUICK_CASES else pytest.mark.slow)
    for case in _CASES])
def test_processes(case, reference, tmp_path):
  # The ones that act ahead of the learner have the worst of timings.
  is_ahead = _CASES[case].policy_lag > 0
  with _busy_loops(1 if is_ahead else 0):
    ended = programs.train(
        *_make_flags(case, _SLEEPS if is_ahead else None),
        '--launch=processes', f'--output_dir={tmp_path / "run"}')
  assert ended.status == 0, ended.output
  assert not ended.left_over
  assert _results(tmp_path / 'run') == reference(case)


@_EVERY_CASE
def test_another_seed_gives_another_run(case, reference, tmp_path):
  other, _ = _run_threads(_make_experiment(case, seed=2), tmp_path / 'run')
  ledger, _ = reference(case)
  for row, other_row in zip(ledger, other, strict=True):
    assert row[:3] == other_row[:3]
    assert row[3] != other_row[3]


def test_another_policy_lag_gives_another_run(reference):
  ledger0, _ = reference('ppo-lag0')
  ledger1, _ = reference('ppo-lag1')
  # The first update is of round 0, which version 0 acts in either way.
  assert [row[3] for row in ledger0][:1] == [row[3] for row in ledger1][:1]
  for row0, row1 in zip(ledger0[1:], ledger1[1:], strict=True):
    assert row0[3] != row1[3]
