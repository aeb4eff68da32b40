"""The mechanisms behind docs/performance.md, checked without a clock."""

import dataclasses
import functools
import re
import time

from cleanba_acme import builder as builder_lib
from cleanba_acme import channels
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import learner_core
from cleanba_acme import types
from cleanba_acme.agents.impala import builder as impala
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import registry
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import run as run_lib
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import compilation
import jax
from jax.experimental.compilation_cache import compilation_cache
import numpy as np
import pytest

_BUILDERS = {
    'ppo': ppo.PPOBuilder(ppo_config.PPOConfig(num_epochs=2)),
    'impala': impala.IMPALABuilder(impala_config.IMPALAConfig()),
}
_CONV = network_config.NetworkConfig(
    torso='conv', channels=(4,), kernels=(3,), strides=(2,), hiddens=(8,))


def _make_experiment(agent='ppo', network=_CONV, **sizes):
  sizes = {
      'num_actors': 1, 'num_envs': 8, 'unroll_length': 4, 'policy_lag': 0,
      **sizes}
  rounds = sizes.pop('rounds', 4)
  return experiment_lib.Experiment(
      builder=_BUILDERS[agent],
      network_factory=functools.partial(
          factory.make_networks, config=network),
      environment_factory=registry.make_factory('catch'),
      seed=1,
      total_steps=rounds * sizes['num_envs'] * sizes['unroll_length'], **sizes)


def _zero_batch(experiment):
  spec = experiment.item_specs()[0].rollout
  return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)


@pytest.fixture(name='programs')
def _programs(tmp_path):
  """Returns a function that returns the programs which JAX compiled so far."""
  jax.config.update('jax_dump_ir_to', str(tmp_path))
  yield lambda: [path.read_text() for path in tmp_path.glob('*.mlir')]
  jax.config.update('jax_dump_ir_to', '')


def _has_convolution_in_a_loop(program):
  """Whether one is in a loop's body, or in a function called there."""
  bodies = dict(re.findall(
      r'^  func.func \w+ @([\w.]+)\((.*?)^  }', program, re.M | re.S))
  # Regions of a loop are indented more than the line that begins it.
  todo = re.findall(
      r'^( *)\S+ = stablehlo.while(.*?)^\1} loc', program, re.M | re.S)
  todo = [text for _, text in todo]
  seen = set()
  while todo:
    text = todo.pop()
    if 'stablehlo.convolution' in text:
      return True
    for name in set(re.findall(r'call @([\w.]+)', text)) - seen:
      seen.add(name)
      todo.append(bodies[name])
  return False


@pytest.mark.parametrize('agent', _BUILDERS)
def test_update_on_cpu_has_no_convolution_in_a_loop(agent, programs):
  experiment = _make_experiment(agent)
  core = experiment.make_learner_core()
  key = jax.random.PRNGKey(0)
  with compilation.unoptimized():
    core.update(core.init(key, key), _zero_batch(experiment))
  assert any(
      text.count('stablehlo.convolution') > 1 for text in programs())
  assert not any(map(_has_convolution_in_a_loop, programs()))


def test_fused_update_would_be_found(programs):
  experiment = _make_experiment()
  core = experiment.builder.make_learner_core(
      factory.make_networks(experiment.environment_factory.spec, _CONV),
      builder_lib.RunSizes(4, 8, 4), learner_core.Execution(fused=True))
  key = jax.random.PRNGKey(0)
  with compilation.unoptimized():
    core.update(core.init(key, key), _zero_batch(experiment))
  assert any(map(_has_convolution_in_a_loop, programs()))


@pytest.mark.parametrize('reduction', learner_core.REDUCTIONS)
def test_no_step_on_cpu_writes_over_what_it_reads(reduction, programs):
  # XLA would not vectorise the optimiser's loops.
  experiment = dataclasses.replace(
      _make_experiment(), execution=learner_core.Execution(
          reduction=reduction, micro_batches=2))
  core = experiment.make_learner_core()
  key = jax.random.PRNGKey(0)
  state = core.init(key, key)
  with compilation.unoptimized():
    core.update(state, _zero_batch(experiment))
  texts = programs()
  assert any(
      'stablehlo.sqrt' in text and 'module @jit_init' not in text
      for text in texts)  # Adam's.
  assert not any(
      re.search('tf.aliasing_output|jax.buffer_donor', text) for text in texts)
  # What the caller gave is still the caller's.
  carry = jax.tree.leaves((state.params, state.optimizer_state))
  assert not any(leaf.is_deleted() for leaf in carry)


def test_each_program_is_compiled_once(caplog, monkeypatch, tmp_path):
  experiment = _make_experiment(num_actors=4, num_envs=8)
  # A cache that is empty; `run` respects the variable.
  cache = str(tmp_path / 'cache')
  before = jax.config.jax_compilation_cache_dir
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', cache)
  compilation_cache.reset_cache()
  jax.config.update('jax_compilation_cache_dir', cache)
  jax.config.update('jax_log_compiles', True)
  try:
    with caplog.at_level('WARNING'):
      assert run_lib.run(experiment, str(tmp_path / 'run')) == exits.DONE
  finally:
    jax.config.update('jax_log_compiles', False)
    jax.config.update('jax_compilation_cache_dir', before)
    compilation_cache.reset_cache()
  logged = [record.getMessage() for record in caplog.records]
  count = lambda start: sum(line.startswith(start) for line in logged)
  # Each actor has its own XLA client; all but one find it in the cache.
  assert count('Compiling select_action') == 4, logged
  assert count(
      'Persistent compilation cache hit for \'jit_select_action\'') == 3, logged
  assert count('Compiling step') == 1, logged


@pytest.mark.parametrize('stack', [2, 4])
def test_each_frame_travels_once(stack):
  experiment = dataclasses.replace(
      _make_experiment(num_envs=2, unroll_length=64),
      environment_factory=registry.make_factory(
          'Breakout-v5', stack_num=stack, img_height=42, img_width=42))
  item, _ = experiment.item_specs()
  num_bytes = sum(
      np.prod(leaf.shape) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(item))
  one_frame_each = 42 * 42 * 2 * (64 + stack)
  # The rest are some numbers per step: log-probability, value, reward, ….
  assert one_frame_each <= num_bytes < one_frame_each + 2 * 65 * 50


class _Spy:
  """A builder whose updates look at what they are given."""

  def __init__(self, builder, look):
    self._builder = builder
    self._look = look

  def make_actor_core(self, networks, evaluation=False):
    return self._builder.make_actor_core(networks, evaluation)

  def make_learner_core(self, networks, sizes, execution):
    core = self._builder.make_learner_core(networks, sizes, execution)

    def update(state, rollout):
      self._look(rollout)
      return core.update(state, rollout)

    # Without `put` a batch is the numpy arrays themselves.
    return learner_core.LearnerCore(core.init, update)


@pytest.mark.parametrize('policy_lag', [0, 1])
@pytest.mark.parametrize('num_actors', [1, 2])
def test_memory_of_rollouts_is_used_again(policy_lag, num_actors, tmp_path):
  addresses = []
  experiment = _make_experiment(
      num_actors=num_actors, policy_lag=policy_lag, rounds=6)
  experiment = dataclasses.replace(
      experiment, builder=_Spy(
          experiment.builder,
          lambda rollout: addresses.append(rollout.observation.ctypes.data)))
  assert run_lib.run(experiment, str(tmp_path / 'run')) == exits.DONE
  assert len(addresses) == 6
  # One actor's rollout is the batch itself, so this is both sides' memory.
  assert len(set(addresses)) == policy_lag + 1
  assert addresses[policy_lag + 1:] == addresses[:-(policy_lag + 1)]


@pytest.mark.parametrize('policy_lag', [0, 1])
def test_next_round_is_taken_while_this_one_is_learned(
    policy_lag, monkeypatch, tmp_path):
  taken = []
  sample = channels.SizeGatedSampler.sample

  def spy(self, round_index, *args):
    items = sample(self, round_index, *args)
    taken.append(round_index)
    return items

  monkeypatch.setattr(channels.SizeGatedSampler, 'sample', spy)
  rounds = 4
  learned = []

  def look(rollout: types.Rollout):
    del rollout
    deadline = time.monotonic() + (20. if policy_lag else 0.2)
    ahead = min(len(learned) + 1 + policy_lag, rounds)
    while len(taken) < ahead and time.monotonic() < deadline:
      time.sleep(0.001)
    learned.append(len(taken))

  experiment = _make_experiment(policy_lag=policy_lag, rounds=rounds)
  experiment = dataclasses.replace(
      experiment, builder=_Spy(experiment.builder, look))
  assert run_lib.run(experiment, str(tmp_path / 'run')) == exits.DONE
  assert learned == ([2, 3, 4, 4] if policy_lag else [1, 2, 3, 4])
