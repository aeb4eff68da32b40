"""Tests of the definition of a run."""

import functools

from cleanba_acme import experiment as experiment_lib
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import registry
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import collect
import jax
import numpy as np
import pytest


def _make(network=None, **changes):
  config = network_config.NetworkConfig(hiddens=(4,), **(network or {}))
  return experiment_lib.Experiment(**{
      'builder': ppo_builder.PPOBuilder(ppo_config.PPOConfig()),
      'network_factory': functools.partial(
          factory.make_networks, config=config),
      'environment_factory': registry.make_factory(
          'cleanba_acme.testing.fakes:make_catch'),
      'seed': 1, 'num_actors': 2, 'num_envs': 8, 'unroll_length': 6,
      'total_steps': 5 * 48, 'policy_lag': 0, **changes})


@pytest.mark.parametrize('changes, message', [
    ({'num_actors': 0}, 'num_actors=0: must be at least 1'),
    ({'num_envs': 0}, 'num_envs=0: must be at least 1'),
    ({'num_envs': 9}, 'num_envs=9: must be a multiple of num_actors=2'),
    ({'num_envs': 10**6 + 2}, 'num_envs=1000002: must be at most 1000000'),
    ({'unroll_length': 0}, 'unroll_length=0: must be at least 1'),
    ({'checkpoint_every': 0}, 'checkpoint_every=0: must be at least 1'),
    ({'total_steps': 47},
     r'total_steps=47: must be at least one round, .* = 48'),
    ({'policy_lag': 2}, 'policy_lag=2: must be 0 .* or 1'),
    ({'policy_lag': -1}, 'policy_lag=-1: must be 0 .* or 1'),
    ({'seed': -1}, 'seed=-1: must be in'),
    ({'seed': 2**32}, 'seed=4294967296: must be in'),
    # Of a network with a memory, samples are environments.
    ({'network': {'core': 'gru'}, 'num_envs': 6},
     'num_minibatches=4: must divide the 6 samples'),
    ({'unroll_length': 5, 'num_envs': 2, 'total_steps': 100},
     'num_minibatches=4: must divide the 10 samples'),
])
def test_misfits_are_refused_on_construction(changes, message):
  with pytest.raises(ValueError, match=message):
    _make(**changes)


def test_only_whole_rounds_are_run():
  assert _make(total_steps=48).num_rounds == 1
  assert _make(total_steps=95).num_rounds == 1
  assert _make(total_steps=96).num_rounds == 2
  assert _make().steps_per_round == 48
  assert _make().envs_per_actor == 4


@pytest.mark.parametrize('policy_lag, versions', [
    (0, [0, 1, 2, 3, 4]), (1, [0, 0, 1, 2, 3])])
def test_policy_version(policy_lag, versions):
  experiment = _make(policy_lag=policy_lag)
  assert [experiment.policy_version(r) for r in range(5)] == versions


def test_environments_restart_at_checkpoints():
  experiment = _make(checkpoint_every=2)
  assert [experiment.is_boundary(r) for r in range(5)] == [
      True, False, True, False, True]


@pytest.mark.parametrize('network', [
    {}, {'core': 'lstm', 'core_size': 3}, {'core': 'gru', 'core_size': 3}])
def test_specs_are_those_of_real_items(network):
  experiment = _make(network)
  rollout_spec, parameters_spec = experiment.item_specs()
  core = experiment.make_actor_core()
  state = experiment.make_learner_core().init(
      jax.random.PRNGKey(0), jax.random.PRNGKey(1))
  unroller = collect.make_unroller(
      experiment.environment_factory, core, num_envs=4, unroll_length=6)
  keys = unroller.keys
  rollout, episodes = unroller.unroll(state.params)
  describe = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  assert describe(rollout_spec.rollout) == describe(rollout)
  assert describe(rollout_spec.episodes) == describe(episodes)
  assert describe(rollout_spec.keys) == describe(keys)
  assert describe(parameters_spec.params) == describe(state.params)
  for scalar in (rollout_spec.actor, rollout_spec.round, rollout_spec.version,
                 parameters_spec.version):
    assert (scalar.shape, scalar.dtype) == ((), np.int32)


def test_settings_cannot_be_changed_afterwards():
  with pytest.raises(AttributeError):
    _make().seed = 2
