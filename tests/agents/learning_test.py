"""Tests that agents learn what a broken one would not.

The thresholds are far from what chance, or a network without a memory, gets.
"""

import csv
import functools

from bsuite.environments import memory_chain
from cleanba_acme import experiment as experiment_lib
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import registry
from cleanba_acme.launchers import run
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import bandit
import pytest

_AGENTS = {
    'ppo': lambda **config: {
        'builder': ppo_builder.PPOBuilder(ppo_config.PPOConfig(**config)),
        'policy_lag': 0},
    'impala': lambda **config: {
        'builder': impala_builder.IMPALABuilder(
            impala_config.IMPALAConfig(**config)),
        'policy_lag': 1},
}


def _train(agent, output_dir, network, **experiment):
  """Returns the mean return of the last hundred episodes."""
  status = run.run(
      experiment_lib.Experiment(
          **agent, network_factory=functools.partial(
              factory.make_networks,
              config=network_config.NetworkConfig(**network)),
          **experiment),
      str(output_dir))
  assert status == 0
  with open(output_dir / 'progress.csv', newline='', encoding='utf-8') as file:
    *_, last = csv.DictReader(file)
  return float(last['episode_return'])


@pytest.mark.parametrize('agent', _AGENTS)
def test_bandit(agent, tmp_path):
  assert _train(
      _AGENTS[agent](learning_rate=5e-3), tmp_path, {'hiddens': (8,)},
      environment_factory=batch.DmEnvFactory(bandit.Bandit),
      seed=1, num_actors=2, num_envs=16, unroll_length=10,
      total_steps=8_000) > 0.95


def _make_memory_chain(seed):
  """An action right after `memory_length` steps must repeat the first row."""
  return memory_chain.MemoryChain(memory_length=4, seed=seed)


_PPO_ON_MEMORY = ('ppo', {'num_epochs': 2, 'learning_rate': 5e-3})
_IMPALA_ON_MEMORY = ('impala', {'learning_rate': 2e-3})


# Half of the returns are 1 and half -1 without a memory.
@pytest.mark.parametrize('agent, config, core, low, high', [
    (*_PPO_ON_MEMORY, 'none', -0.5, 0.5),
    (*_PPO_ON_MEMORY, 'lstm', 0.9, 1.),
    pytest.param(*_PPO_ON_MEMORY, 'gru', 0.9, 1., marks=pytest.mark.slow),
    (*_IMPALA_ON_MEMORY, 'none', -0.5, 0.5),
    (*_IMPALA_ON_MEMORY, 'gru', 0.9, 1.),
    pytest.param(*_IMPALA_ON_MEMORY, 'lstm', 0.9, 1., marks=pytest.mark.slow),
])
def test_memory(agent, config, core, low, high, tmp_path):
  mean_return = _train(
      _AGENTS[agent](**config), tmp_path,
      {'hiddens': (16,), 'core': core, 'core_size': 16},
      environment_factory=batch.DmEnvFactory(_make_memory_chain),
      seed=1, num_actors=2, num_envs=32, unroll_length=20,
      total_steps=32 * 20 * 40)
  assert low <= mean_return <= high


@pytest.mark.slow
@pytest.mark.parametrize('seed', [1, 2, 3])
@pytest.mark.parametrize('agent, config, sizes', [
    ('ppo', {'learning_rate': 2.5e-3},
     {'num_envs': 16, 'unroll_length': 64, 'total_steps': 150_000}),
    # A bonus for entropy that is not small beside scaled advantages unlearns
    # the task once it is solved and they are near 0.
    ('impala',
     {'learning_rate': 1e-3, 'scale_rewards': True, 'entropy_cost': 1e-3},
     {'num_envs': 32, 'unroll_length': 20, 'total_steps': 300_000}),
], ids=['ppo', 'impala'])
def test_cartpole(agent, config, sizes, seed, tmp_path):
  assert _train(
      _AGENTS[agent](**config), tmp_path, {},
      environment_factory=registry.make_factory('CartPole-v1'),
      seed=seed, num_actors=2, **sizes) >= 475


@pytest.mark.slow
@pytest.mark.parametrize('seed', [1, 2, 3])
def test_pendulum(seed, tmp_path):
  assert _train(
      _AGENTS['ppo'](
          learning_rate=1e-3, discount=0.9, entropy_cost=0., num_epochs=10,
          num_minibatches=8, clip_epsilon=0.2, scale_rewards=True),
      tmp_path, {'normalize_observations': True},
      environment_factory=registry.make_factory('Pendulum-v1'),
      seed=seed, num_actors=2, num_envs=16, unroll_length=128,
      total_steps=200_000) >= -300
