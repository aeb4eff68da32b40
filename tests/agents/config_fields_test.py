"""Every field of an agent's config changes what it learns."""

import dataclasses
import functools

from cleanba_acme import builder as builder_lib
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory as network_factory
from cleanba_acme.testing import collect
from cleanba_acme.testing import compilation
import jax
import numpy as np
import pytest

_FACTORY = batch.DmEnvFactory(functools.partial(catch.Catch, rows=4, columns=3))
_NETWORKS = network_factory.make_networks(
    _FACTORY.spec, network_config.NetworkConfig(hiddens=(8,)))
_SIZES = builder_lib.RunSizes(unroll_length=6, num_envs=4, num_updates=2)

# For each agent: its classes, settings to begin with under which every field
# has something to do, and another value of each field.
_AGENTS = {
    'ppo': (
        ppo_config.PPOConfig, ppo_builder.PPOBuilder,
        {'num_epochs': 2, 'num_minibatches': 2, 'learning_rate': 0.05},
        {
            'discount': 0.9,
            'gae_lambda': 0.5,
            'learning_rate': 0.04,
            'anneal_learning_rate': False,
            'adam_epsilon': 1e-3,
            'max_gradient_norm': 0.05,
            'num_epochs': 1,
            'num_minibatches': 1,
            'clip_epsilon': 0.01,
            'normalize_advantage': False,
            'entropy_cost': 0.1,
            'value_cost': 1.,
            'scale_rewards': True,
        }),
    'impala': (
        impala_config.IMPALAConfig, impala_builder.IMPALABuilder,
        {'num_minibatches': 2, 'learning_rate': 0.01, 'max_gradient_norm': 1.},
        {
            'discount': 0.9,
            'vtrace_lambda': 0.5,
            'learning_rate': 0.02,
            'anneal_learning_rate': False,
            'rmsprop_decay': 0.9,
            'rmsprop_epsilon': 0.1,
            'max_gradient_norm': 0.5,
            'num_minibatches': 4,
            'entropy_cost': 0.1,
            'value_cost': 1.,
            'scale_rewards': True,
        }),
}


@pytest.fixture(autouse=True, scope='module')
def _unoptimized():
  with compilation.unoptimized():
    yield


@pytest.fixture(name='rollouts', scope='module')
def _rollouts():
  """Two rounds with the extras of either agent."""
  core = ppo_builder.PPOBuilder(
      ppo_config.PPOConfig()).make_actor_core(_NETWORKS)
  return collect.collect(
      _FACTORY, core, _NETWORKS.init(jax.random.PRNGKey(1)), num_rollouts=2,
      num_envs=_SIZES.num_envs, unroll_length=_SIZES.unroll_length)


def _learn(agent, rollouts, **changes):
  """Returns all parameters after two updates, as one vector."""
  config_class, builder_class, settings, _ = _AGENTS[agent]
  core = builder_class(config_class(**{**settings, **changes})
                      ).make_learner_core(_NETWORKS, _SIZES)
  state = core.init(jax.random.PRNGKey(0), jax.random.PRNGKey(2))
  for rollout in rollouts:
    state, _ = core.update(state, rollout)
  return np.concatenate(
      [np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


@pytest.fixture(name='learned', scope='module')
def _learned(rollouts):
  return {agent: _learn(agent, rollouts) for agent in _AGENTS}


@pytest.mark.parametrize('agent', _AGENTS)
def test_same_settings_give_same_parameters(agent, rollouts, learned):
  np.testing.assert_array_equal(_learn(agent, rollouts), learned[agent])


@pytest.mark.parametrize('agent, field', [
    (agent, field) for agent, (config_class, *_) in _AGENTS.items()
    for field in dataclasses.fields(config_class)],
                         ids=lambda value: getattr(value, 'name', value))
def test_every_field_changes_a_run(agent, field, rollouts, learned):
  value = _AGENTS[agent][3][field.name]
  changed = _learn(agent, rollouts, **{field.name: value})
  # What is due to rounding would be 1e-7.
  assert np.abs(changed - learned[agent]).max() > 1e-5
  assert field.metadata['help'].endswith('.')


@pytest.mark.parametrize('agent', _AGENTS)
def test_changes_name_no_other_fields(agent):
  config_class, _, settings, changes = _AGENTS[agent]
  names = {field.name for field in dataclasses.fields(config_class)}
  assert settings.keys() <= changes.keys() == names
