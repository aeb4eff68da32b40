"""Tests of networks that normalise observations by running statistics."""

import csv
import functools

from cleanba_acme import actor_core
from cleanba_acme import builder as builder_lib
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import specs
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.launchers import run
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.networks import normalization
from cleanba_acme.testing import collect
import jax
import numpy as np
import pytest

_CONFIG = network_config.NetworkConfig(
    hiddens=(8,), normalize_observations=True)
_ENVIRONMENTS = batch.DmEnvFactory(
    functools.partial(catch.Catch, rows=4, columns=3))
_SIZES = builder_lib.RunSizes(unroll_length=6, num_envs=4, num_updates=3)

_SPEC = _ENVIRONMENTS.spec._replace(observations={
    'image': specs.BoundedArray((2, 2), np.uint8, 0, 255),
    'choice': specs.DiscreteArray(3),
    'vector': specs.Array((3,), np.float32),
})
_BUILDERS = {
    'ppo': ppo_builder.PPOBuilder(
        ppo_config.PPOConfig(num_minibatches=2, scale_rewards=True)),
    'impala': impala_builder.IMPALABuilder(
        impala_config.IMPALAConfig(num_minibatches=2, scale_rewards=True)),
}


def _make_observation(seed, *shape):
  rng = np.random.default_rng(seed)
  return {
      'image': rng.integers(256, size=(*shape, 2, 2)).astype(np.uint8),
      'choice': rng.integers(3, size=shape, dtype=np.int32),
      'vector': rng.normal(
          [1, 20, -3], [2, .1, 50], (*shape, 3)).astype(np.float32),
  }


def test_statistics_equal_numpys_over_several_batches():
  networks = factory.make_networks(_SPEC, _CONFIG)
  params = start = networks.init(jax.random.PRNGKey(0))
  batches = [_make_observation(seed, size) for seed, size in enumerate([5, 99])]
  for observation in batches:
    params = networks.observe(params, observation)
  # Only numbers are normalised: pixels and choices are not.
  assert params.moments['image'] is None and params.moments['choice'] is None
  values = np.concatenate([observation['vector'] for observation in batches])
  moments = params.moments['vector']
  assert moments.count == 104
  np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-5)
  np.testing.assert_allclose(moments.variance, values.var(0), rtol=1e-4)
  jax.tree.map(np.testing.assert_array_equal, params.network, start.network)


def test_network_sees_normalised_numbers():
  plain = factory.make_networks(_SPEC, network_config.NetworkConfig(
      hiddens=(8,)))
  networks = normalization.normalize_observations(plain, _SPEC.observations)
  seen = _make_observation(0, 50)
  params = networks.observe(networks.init(jax.random.PRNGKey(0)), seen)
  observation = _make_observation(1, 4, 2)
  observation['vector'][0, 0] = [1e4, -1e4, 0.]
  is_first = np.zeros((4, 2), bool)
  _, value, _ = networks.apply(params, observation, is_first, ())
  vector = seen['vector']
  normalised = np.clip(
      (observation['vector'] - vector.mean(0)) / vector.std(0), -10, 10)
  _, expected, _ = plain.apply(
      params.network, {**observation, 'vector': normalised}, is_first, ())
  np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_new_statistics_change_nothing():
  plain = factory.make_networks(_SPEC, network_config.NetworkConfig(
      hiddens=(8,)))
  networks = normalization.normalize_observations(plain, _SPEC.observations)
  params = networks.init(jax.random.PRNGKey(0))
  observation = _make_observation(0, 4, 2)
  observation['vector'] = observation['vector'].clip(-10, 10)
  is_first = np.zeros((4, 2), bool)
  np.testing.assert_allclose(
      networks.apply(params, observation, is_first, ())[1],
      plain.apply(params.network, observation, is_first, ())[1], rtol=1e-6)


@pytest.mark.parametrize('agent', _BUILDERS)
def test_updates_count_every_observation_once(agent):
  networks = factory.make_networks(_ENVIRONMENTS.spec, _CONFIG)
  core = _BUILDERS['ppo'].make_actor_core(networks)
  learner = _BUILDERS[agent].make_learner_core(networks, _SIZES)
  state = learner.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))
  rollouts = collect.collect(
      _ENVIRONMENTS, core, state.params, num_rollouts=3,
      num_envs=_SIZES.num_envs, unroll_length=_SIZES.unroll_length)
  seen = []
  for rollout in rollouts:
    state, _ = learner.update(state, rollout)
    # First and last rows too; row T is counted as row 0 of the next rollout.
    seen.append(rollout.observation[:-1].reshape((-1, 4, 3)))
    values = np.concatenate(seen)
    # The optimiser would have moved them.
    moments = state.params.moments
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.mean, values.mean(0), atol=1e-6)
    np.testing.assert_allclose(moments.variance, values.var(0), atol=1e-6)


class _CountingBuilder:
  """Notes how many observations the statistics had seen that acted."""

  def __init__(self, builder):
    self._builder = builder
    self.counts = []

  def make_actor_core(self, networks, evaluation=False):
    core = self._builder.make_actor_core(networks, evaluation)

    def select_action(params, timestep, state):
      action, extras, state = core.select_action(params, timestep, state)
      count = params.moments.count + 0 * timestep.reward
      return action, {**extras, 'count': count}, state

    return actor_core.ActorCore(core.init, select_action)

  def make_learner_core(self, networks, sizes, execution):
    core = self._builder.make_learner_core(networks, sizes, execution)

    def update(state, rollout):
      counts = np.unique(rollout.extras['count'])
      assert len(counts) == 1
      self.counts.append(counts.item())
      return core.update(state, rollout)

    return core._replace(update=update)


def _run(builder, output_dir, **sizes):
  """Returns the fingerprints of five updates of four environments."""
  assert run.run(
      experiment_lib.Experiment(**{
          'builder': builder,
          'network_factory': functools.partial(
              factory.make_networks, config=_CONFIG),
          'environment_factory': _ENVIRONMENTS, 'seed': 1, 'num_envs': 4,
          'unroll_length': 6, 'total_steps': 5 * 4 * 6, 'policy_lag': 0,
          'checkpoint_every': 3, **sizes}),
      str(output_dir)) == 0
  with open(output_dir / 'ledger.csv', newline='', encoding='utf-8') as file:
    return [row['fingerprint'] for row in csv.DictReader(file)]


@pytest.mark.parametrize('agent', _BUILDERS)
def test_run_is_independent_of_layout_and_versions_have_their_statistics(
    agent, tmp_path):
  fingerprints = []
  for num_actors, lag in ((2, 0), (1, 0), (2, 1)):
    builder = _CountingBuilder(_BUILDERS[agent])
    fingerprints.append(_run(
        builder, tmp_path / f'{num_actors}-{lag}', num_actors=num_actors,
        policy_lag=lag))
    assert builder.counts == [24 * max(0, r - lag) for r in range(5)]
  assert len(fingerprints[0]) == 5
  assert fingerprints[0] == fingerprints[1]
  assert fingerprints[0] != fingerprints[2]
