"""The contract for the learner's devices: 1, 2 and 4 of them.

The devices of a CPU are set before jax starts, so all runs are made by one
subprocess: this file, run as a script.
"""

import functools
import os
import subprocess
import sys

from cleanba_acme import experiment as experiment_lib
from cleanba_acme import learner_core
from cleanba_acme import fingerprint
from cleanba_acme import ledger
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
from cleanba_acme.testing import collect
import jax
import numpy as np
import pytest

_MINIBATCHES = {'num_minibatches': 2}
_PPO = ppo_builder.PPOBuilder(
    ppo_config.PPOConfig(num_epochs=2, **_MINIBATCHES))
_IMPALA = impala_builder.IMPALABuilder(
    impala_config.IMPALAConfig(**_MINIBATCHES))
_NORMALIZED_PPO = ppo_builder.PPOBuilder(
    ppo_config.PPOConfig(num_epochs=2, scale_rewards=True, **_MINIBATCHES))
# Builder, network and policy lag. A new agent is a new case.
_CASES = {
    'ppo': (_PPO, {'hiddens': (8, 8)}, 0),
    'ppo-convolutions': (
        _PPO, {'torso': 'conv', 'channels': (4,), 'hiddens': (16,)}, 0),
    'ppo-normalized': (
        _NORMALIZED_PPO,
        {'hiddens': (8, 8), 'normalize_observations': True}, 0),
    'impala': (_IMPALA, {'hiddens': (8, 8)}, 1),
    'impala-gru': (
        _IMPALA, {'hiddens': (8,), 'core': 'gru', 'core_size': 8}, 1),
}
_DEVICES = (1, 2, 4)
# All cases compile anew for each number of devices.
_TIMEOUT_S = 900
pytestmark = pytest.mark.timeout(_TIMEOUT_S)
_REDUCTIONS = ('fast', 'invariant')
# Of this case, whole runs are compared; of the others, updates on equal data.
_RUN_CASE = 'impala-gru'

# Of what the first update changed. Sums in another order differ in the last of
# 24 bits, which Adam's division by small gradients enlarges: up to 1.4e-5 was
# seen, with AVX2. Means over one device's part only would differ by far more.
_TOLERANCE = 1e-4


def _make_experiment(case, num_devices, reduction):
  builder, network, policy_lag = _CASES[case]
  return experiment_lib.Experiment(
      builder=builder,
      network_factory=functools.partial(
          factory.make_networks,
          config=network_config.NetworkConfig(**network)),
      environment_factory=registry.make_factory(
          'cleanba_acme.testing.fakes:make_catch'),
      seed=1, num_actors=2, num_envs=16, unroll_length=6,
      total_steps=3 * 16 * 6, policy_lag=policy_lag, checkpoint_every=2,
      execution=learner_core.Execution(
          devices=tuple(range(num_devices)), reduction=reduction))


def _update(case, output_dir):
  """Makes two updates of the same data on all devices, in all ways."""
  init, shuffling = [
      seeding.purpose_key(1, purpose) for purpose in (
          seeding.Purpose.INIT, seeding.Purpose.SHUFFLING)]
  rollouts = None
  for num_devices in _DEVICES:
    for reduction in _REDUCTIONS:
      experiment = _make_experiment(case, num_devices, reduction)
      core = experiment.make_learner_core()
      state = core.init(init, shuffling)
      if rollouts is None:
        unroller = collect.make_unroller(
            experiment.environment_factory, experiment.make_actor_core(),
            experiment.num_envs, experiment.unroll_length)
        rollouts = [unroller.unroll(state.params)[0] for _ in range(2)]
      params = [jax.device_get(state.params)]
      for rollout in rollouts:
        state, _ = core.update(state, rollout)
        params.append(jax.device_get(state.params))
      changes = jax.tree.map(lambda x, y: y - x, params[0], params[1])
      np.savez(
          _path(output_dir, case, num_devices, reduction),
          *jax.tree.leaves(changes),
          fingerprints=[fingerprint.fingerprint(tree) for tree in params])


def _path(output_dir, *what):
  return os.path.join(output_dir, '-'.join(map(str, what))) + '.npz'


def _main(output_dir):
  """What the subprocess does."""
  assert jax.local_device_count() == max(_DEVICES)
  for case in _CASES:
    _update(case, output_dir)
  for num_devices in (min(_DEVICES), max(_DEVICES)):
    assert run_lib.run(
        _make_experiment(_RUN_CASE, num_devices, 'invariant'),
        os.path.join(output_dir, str(num_devices))) == exits.DONE


@pytest.fixture(name='output_dir', scope='module')
def _output_dir(tmp_path_factory):
  output_dir = tmp_path_factory.mktemp('devices')
  ended = subprocess.run(
      [sys.executable, __file__, str(output_dir)],
      env={**os.environ,
           'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
           'NPROC': '1',
           # Half of what is compiled is the same for some of the cores.
           'JAX_COMPILATION_CACHE_DIR': str(output_dir / 'cache'),
           'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
           'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
           'XLA_FLAGS': '--xla_force_host_platform_device_count='
                        f'{max(_DEVICES)}'},
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
      timeout=_TIMEOUT_S)
  assert ended.returncode == 0, ended.stdout
  return output_dir


_EVERY_CASE = pytest.mark.parametrize('case', list(_CASES))
_SEVERAL_DEVICES = pytest.mark.parametrize('num_devices', _DEVICES[1:])


def _load(output_dir, *what):
  with np.load(_path(output_dir, *what)) as file:
    arrays = dict(file)
  return list(arrays.pop('fingerprints')), list(arrays.values())


def _difference(changes, others):
  """How far what two first updates changed is apart, relatively."""
  return max(np.linalg.norm(other - change) / np.linalg.norm(change)
             for change, other in zip(changes, others, strict=True)
             if change.any() or other.any())


@_SEVERAL_DEVICES
@_EVERY_CASE
def test_invariant_reduction_gives_the_same_bits(case, num_devices, output_dir):
  one, _ = _load(output_dir, case, 1, 'invariant')
  other, _ = _load(output_dir, case, num_devices, 'invariant')
  assert one == other
  assert len(set(one)) == 3


@_SEVERAL_DEVICES
@_EVERY_CASE
def test_fast_reduction_gives_nearly_the_same_update(
    case, num_devices, output_dir):
  _, one = _load(output_dir, case, 1, 'fast')
  _, other = _load(output_dir, case, num_devices, 'fast')
  print(f'{case} on {num_devices} devices: {_difference(one, other):.1e}')
  assert _difference(one, other) < _TOLERANCE


@_EVERY_CASE
def test_reductions_compute_the_same(case, output_dir):
  _, fast = _load(output_dir, case, 1, 'fast')
  _, invariant = _load(output_dir, case, 1, 'invariant')
  print(f'{case}: {_difference(fast, invariant):.1e}')
  assert _difference(fast, invariant) < _TOLERANCE


def test_whole_runs(output_dir):
  one, other = [ledger.read(str(output_dir / str(number)))
                for number in (min(_DEVICES), max(_DEVICES))]
  assert len(one.rows) == 3
  assert ledger.compare(one, other) is None


if __name__ == '__main__':
  _main(sys.argv[1])
