"""Faults that are planted into a run are found, and blamed on the right thing.
"""

import dataclasses
import functools
import os
import subprocess
import sys

from cleanba_acme import channels
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import ledger
from cleanba_acme import seeding
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.environments import registry
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import run as run_lib
from cleanba_acme.launchers import trials
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
import jax
import numpy as np
import pytest

_SEED = 1
# Rounds 0 to 5; environments restart before round 3, which is update 4.
_BOUNDARY = 3
_ENVS_PER_ACTOR = 4


def _make_experiment(**changes):
  return experiment_lib.Experiment(**{
      'builder': impala_builder.IMPALABuilder(
          impala_config.IMPALAConfig(num_minibatches=2)),
      'network_factory': functools.partial(
          factory.make_networks,
          config=network_config.NetworkConfig(hiddens=(8,))),
      'environment_factory': registry.make_factory(
          'cleanba_acme.testing.fakes:make_catch'),
      'seed': _SEED, 'num_actors': 2, 'num_envs': 2 * _ENVS_PER_ACTOR,
      'unroll_length': 6, 'total_steps': 6 * 8 * 6, 'policy_lag': 1,
      'checkpoint_every': _BOUNDARY, **changes})


def _run(output_dir, **changes):
  assert run_lib.run(
      _make_experiment(**changes), str(output_dir)) == exits.DONE
  return output_dir


@pytest.fixture(name='reference', scope='module')
def _reference(tmp_path_factory):
  return _run(tmp_path_factory.mktemp('reference'))


def _verify(*arguments):
  return subprocess.run(
      [sys.executable, '-m', 'cleanba_acme.launchers.verify',
       *map(str, arguments)],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
      capture_output=True, text=True, check=False, timeout=240)


def _assert_found(reference, run, update, field, words):
  """Asserts what is found, by the function and by the script."""
  divergence = ledger.compare(
      ledger.read(str(reference)), ledger.read(str(run)))
  assert divergence is not None
  assert divergence[:2] == (update, field)
  assert words in divergence.detail
  verified = _verify(reference, run)
  assert verified.returncode == exits.DIVERGED
  assert f'differs from update {update}: {field} (' in verified.stdout


def test_no_fault(reference, tmp_path):
  verified = _verify(reference, _run(tmp_path))
  # No key is used twice: not by another round, nor after a restart.
  assert len({row['keys'] for row in ledger.read(str(tmp_path)).rows}) == 6
  assert verified.returncode == exits.DONE
  assert 'identical' in verified.stdout


def test_swapped_items(reference, tmp_path, monkeypatch):
  class Sampler(channels.SizeGatedSampler):
    def sample(self, round_index, *args):
      items = super().sample(round_index, *args)
      return items[::-1] if round_index == 2 else items

  monkeypatch.setattr(channels, 'SizeGatedSampler', Sampler)
  _assert_found(reference, _run(tmp_path), 3, ledger.DATA,
                'actors 0 and 1 have changed places')


class _Latest(channels.MemoryChannel):
  """In round 2, actor 1 acts with version 2, the latest, in place of 1."""

  def __init__(self, name, *args, **kwargs):
    super().__init__(name, *args, **kwargs)
    self._is_faulty = name == 'parameters/1'
    self._ahead = None

  def get(self, timeout=None):
    if self._ahead is not None:
      item, self._ahead = self._ahead, None
      return item
    item = super().get(timeout)
    if self._is_faulty and item.version == 1:
      self._ahead = super().get(timeout)
      return self._replacement(item)
    return item

  def _replacement(self, item):
    """What is wrong is all of it, its label included."""
    del item
    return self._ahead


class _SecretlyLatest(_Latest):
  """As before, but the label says what the contract says."""

  def _replacement(self, item):
    return item._replace(params=self._ahead.params)


def test_latest_version(reference, tmp_path, monkeypatch):
  class Sampler(channels.SizeGatedSampler):
    """Does not check, and sees what was really used."""
    def sample(self, round_index, *args):
      items = super().sample(round_index, *args)
      if round_index == 2:
        items[1] = items[1]._replace(version=np.int32(2))
      return items

  monkeypatch.setattr(channels, 'MemoryChannel', _SecretlyLatest)
  monkeypatch.setattr(channels, 'SizeGatedSampler', Sampler)
  _assert_found(reference, _run(tmp_path), 3, ledger.VERSION,
                '1 and 2, of actor 1')


def test_latest_version_in_secret(reference, tmp_path, monkeypatch):
  monkeypatch.setattr(channels, 'MemoryChannel', _SecretlyLatest)
  _assert_found(reference, _run(tmp_path), 3, ledger.DATA,
                'of actor 1; with the same steps, keys, version')


def test_latest_version_is_refused_by_the_run_itself(
    tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(channels, 'MemoryChannel', _Latest)
  assert run_lib.run(
      _make_experiment(), str(tmp_path)) == exits.NODE_FAILED
  assert ('actor 1 was given version 2 of the parameters in round 2, expected '
          '1' in capfd.readouterr().err)


class _Reseeding:
  """Seeds the second environment of actor 1 anew in round 3."""

  def __init__(self, environment_factory):
    self.spec = environment_factory.spec
    self.frame_skip = environment_factory.frame_skip
    self._factory = environment_factory

  def __call__(self, seed, num_envs):
    if seed == seeding.environment_seed(_SEED, 1) + _ENVS_PER_ACTOR:
      seed += 1000
    return self._factory(seed, num_envs)


def test_reseeded_environment(reference, tmp_path):
  _run(tmp_path, environment_factory=_Reseeding(
      _make_experiment().environment_factory))
  _assert_found(reference, tmp_path, _BOUNDARY + 1, ledger.DATA,
                'of actor 1; with the same steps, keys, version')


@dataclasses.dataclass
class _Faulty:
  """A builder that makes other cores."""
  builder: object
  change_actor_core: object = lambda core: core
  change_learner_core: object = lambda core: core

  def make_actor_core(self, *args):
    return self.change_actor_core(self.builder.make_actor_core(*args))

  def make_learner_core(self, *args):
    return self.change_learner_core(self.builder.make_learner_core(*args))


def test_changed_key(reference, tmp_path):
  calls = []

  def change(core):
    def init(key, indices):
      state = core.init(key, indices)
      if not isinstance(key, jax.core.Tracer) and indices[0]:
        calls.append(indices)
        if len(calls) == 2:
          state = state._replace(keys=state.keys.at[3, 1].add(1))
      return state
    return core._replace(init=init)

  _run(tmp_path, builder=_Faulty(_make_experiment().builder, change))
  _assert_found(
      reference, tmp_path, _BOUNDARY + 1, ledger.KEYS, 'of actor 1')


def test_changed_bit_of_a_parameter(reference, tmp_path):
  def change(core):
    def update(state, rollout):
      state, metrics = core.update(state, rollout)
      if state.num_updates == 5:
        leaves, structure = jax.tree.flatten(state.params)
        leaves[0] = np.nextafter(leaves[0], np.float32(9))
        state = state._replace(params=jax.tree.unflatten(structure, leaves))
      return state, metrics
    return core._replace(update=update)

  _run(tmp_path, builder=_Faulty(
      _make_experiment().builder, change_learner_core=change))
  _assert_found(reference, tmp_path, 5, ledger.PARAMETERS,
                'with the same steps, keys, version, data')


def test_other_seed(reference, tmp_path):
  _assert_found(reference, _run(tmp_path, seed=2), 1, ledger.KEYS,
                'of actor 0 and 1')


def test_unfinished_run(reference, tmp_path):
  lines = (reference / 'ledger.csv').read_text().splitlines(keepends=True)
  (tmp_path / 'ledger.csv').write_text(''.join(lines[:4]))
  _assert_found(reference, tmp_path, 4, ledger.LENGTH, 'one has 3 updates')


@pytest.mark.parametrize('arguments, words', [
    ([], 'give the directories of runs'),
    (['.'], 'must be a ledger, or a directory with one'),
    (['--perturb=noise', '--', '--env=catch'], '\'noise\': a run is one of'),
    (['--', '--env=catch', '--output_dir=x'], '--output_dir must come before'),
    (['--output_dir=.', '--', '--env=catch'], '--output_dir=.: must be empty'),
    (['--', '--env=catch', '--num_envs=7'], '--num_envs=7: must be a multiple'),
])
def test_wrong_arguments(arguments, words):
  verified = _verify(*arguments)
  if arguments == ['.']:
    verified = _verify('.', '.')
  assert verified.returncode == exits.USER_ERROR
  assert words in verified.stderr
  assert 'Traceback' not in verified.stderr


def test_runs_and_compares(tmp_path):
  verified = _verify(
      '--perturb=kill+actors=4+delays=1', f'--output_dir={tmp_path / "runs"}',
      '--', '--env=catch', '--env_options=rows=4,columns=3', '--num_envs=8',
      '--unroll_length=6', f'--total_steps={200 * 48}', '--checkpoint_every=9',
      '--network.hiddens=8,8', '--config.num_epochs=1')
  assert verified.returncode == exits.DONE, verified.stdout + verified.stderr
  assert verified.stdout.count('identical') == 1
  run = tmp_path / 'runs' / 'kill+actors=4+delays=1'
  assert len(ledger.read(str(run)).rows) == 200


@pytest.mark.parametrize('text, trial', [
    ('rerun', trials.Trial('rerun')),
    ('processes+actors=4', trials.Trial(
        'processes+actors=4', ('--launch=processes', '--num_actors=4'))),
    ('devices=2+delays=7', trials.Trial(
        'devices=2+delays=7', ('--learner_devices=0,1',), num_devices=2,
        delay_ms=7.)),
    ('load+kill', trials.Trial('load+kill', busy_loops=2, victim='launcher')),
    ('kill=actor+load=1', trials.Trial(
        'kill=actor+load=1', busy_loops=1, victim='actor')),
])
def test_parse(text, trial):
  assert trials.parse(text) == trial


@pytest.mark.parametrize('text', [
    '', 'rerun=2', 'actors', 'actors=0', 'devices=x', 'kill=me', 'delays=x',
    'rerun+'])
def test_parse_refuses(text):
  with pytest.raises(ValueError, match='a run is one of these'):
    trials.parse(text)
