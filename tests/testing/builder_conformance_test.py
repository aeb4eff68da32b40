"""The checks of agents accept our own and find planted faults."""

import functools

from cleanba_acme import actor_core
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.environments import wrappers
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory as network_factory
from cleanba_acme.testing import compilation
from cleanba_acme.testing import conformance
import dm_env
import jax.numpy as jnp
import numpy as np
import pytest

_CATCH = batch.DmEnvFactory(functools.partial(catch.Catch, rows=4, columns=3))
_PPO = ppo_builder.PPOBuilder(ppo_config.PPOConfig(num_epochs=1))
_IMPALA = impala_builder.IMPALABuilder(impala_config.IMPALAConfig())


@pytest.fixture(autouse=True, scope='module')
def _unoptimized():
  with compilation.unoptimized():
    yield


def _make_networks(spec, **fields):
  return network_factory.make_networks(
      spec, network_config.NetworkConfig(**{'hiddens': (8,), **fields}))


@pytest.mark.parametrize('builder', [_PPO, _IMPALA], ids=['ppo', 'impala'])
def test_our_builders_conform(builder):
  conformance.check_builder(
      builder, functools.partial(_make_networks, normalize_observations=True),
      _CATCH)


class TestPPO(conformance.BuilderTests):
  """Our own agent by the pytest class."""

  def make_builder(self):
    return _PPO

  def make_networks(self, spec):
    return _make_networks(spec, core='gru', core_size=8)

  def make_environment_factory(self):
    return wrappers.ObservationActionReward(_CATCH)


class _FaultyBuilder:
  """Passes on what a builder makes, but for the one fault."""

  def __init__(self, builder=_IMPALA):
    self._builder = builder

  def make_actor_core(self, networks, evaluation=False):
    return self.change_actor(
        self._builder.make_actor_core(networks, evaluation))

  def make_learner_core(self, networks, sizes, execution):
    core = self._builder.make_learner_core(networks, sizes, execution)
    return core._replace(
        update=functools.partial(self.change_update, core.update))

  def change_actor(self, core):
    return core

  def change_update(self, update, state, rollout):
    return update(state, rollout)


class _ForgetsExtras(_FaultyBuilder):

  def change_actor(self, core):
    def select_action(*args):
      action, _, state = core.select_action(*args)
      return action, {}, state
    return core._replace(select_action=select_action)


class _RandomWhenGreedy(_FaultyBuilder):

  def make_actor_core(self, networks, evaluation=False):
    return self._builder.make_actor_core(networks)


class _KeysByPlace(_FaultyBuilder):

  def change_actor(self, core):
    return actor_core.ActorCore(
        lambda key, indices: core.init(key, range(len(indices))),
        core.select_action)


class _LearnsNothing(_FaultyBuilder):

  def change_update(self, update, state, rollout):
    new_state, metrics = update(state, rollout)
    return new_state._replace(params=state.params), metrics


class _NotFinite(_FaultyBuilder):

  def change_update(self, update, state, rollout):
    state, metrics = update(state, rollout)
    return state, {**metrics, 'ratio': jnp.float32(np.inf)}


class _Noisy(_FaultyBuilder):

  def change_update(self, update, state, rollout):
    noise = np.random.random(rollout.reward.shape).astype(np.float32)
    return update(state, rollout._replace(reward=rollout.reward + noise))


class _LearnsDummies(_FaultyBuilder):

  def change_update(self, update, state, rollout):
    step_type = np.minimum(rollout.step_type, dm_env.StepType.MID)
    return update(state, rollout._replace(step_type=step_type))


class _CountsNothing(_FaultyBuilder):

  def change_update(self, update, state, rollout):
    new_state, metrics = update(state, rollout)
    return new_state._replace(num_updates=state.num_updates), metrics


@pytest.mark.parametrize('fault, message', [
    (_ForgetsExtras, "'log_prob', which is not among the actor's extras"),
    (_RandomWhenGreedy, 'greedy actions with another key'),
    (_KeysByPlace, 'environments 4 to 7 as a batch of their own'),
    (_LearnsNothing, 'parameters after update 1: expected others'),
    (_NotFinite, "metric 'ratio': expected finite"),
    (_Noisy, 'state after the same updates'),
    (_LearnsDummies, 'with other actions after LAST'),
    (_CountsNothing, 'num_updates after update 1: expected 1, saw 0'),
])
def test_faulty_builders_are_found(fault, message):
  with pytest.raises(AssertionError, match=message):
    conformance.check_builder(fault(), _make_networks, _CATCH)


def test_episodes_must_end_within_the_rollouts():
  with pytest.raises(AssertionError, match='raise unroll_length'):
    conformance.check_builder(
        _IMPALA, _make_networks, _CATCH, unroll_length=1)
