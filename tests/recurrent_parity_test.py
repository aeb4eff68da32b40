"""Actor and learner agree on what a recurrent network computed, at every step.

The tolerance is 1e-5: the actor's single steps and the learner's loop over time
are programs of other shapes, in which XLA sums in another order. What would be
wrong here, such as a reset at the wrong row, shows as 1e-3 and more.
"""

import functools

from cleanba_acme import builder as builder_lib
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.environments import wrappers
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory as network_factory
from cleanba_acme.testing import collect
from cleanba_acme.testing import compilation
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_TOLERANCE = 1e-5
_FACTORY = wrappers.ObservationActionReward(
    batch.DmEnvFactory(functools.partial(catch.Catch, rows=5, columns=3)))
# An episode has 4 steps and a dummy: their ends move through the rollouts.
_SIZES = dict(num_envs=3, unroll_length=7)
_NUM_ROLLOUTS = 4


@pytest.fixture(autouse=True, scope='module')
def _unoptimized():
  with compilation.unoptimized():
    yield


def _make_builders(loss=None):
  arguments = () if loss is None else (loss,)
  return {
      'ppo': ppo_builder.PPOBuilder(
          ppo_config.PPOConfig(num_epochs=1, num_minibatches=1), *arguments),
      'impala': impala_builder.IMPALABuilder(
          impala_config.IMPALAConfig(num_minibatches=1), *arguments),
  }


@functools.lru_cache(None)
def _make_networks(core):
  """Returns networks and parameters of which every row tells the state."""
  networks = network_factory.make_networks(
      _FACTORY.spec,
      network_config.NetworkConfig(hiddens=(8,), core=core, core_size=8))
  # Heads as they start would hide what is wrong: they are almost 0.
  return networks, jax.tree.map(
      lambda x: x + 0.3 * jax.random.normal(jax.random.PRNGKey(1), x.shape),
      networks.init(jax.random.PRNGKey(0)))


def _keep_logits(core, networks):
  """Makes an actor core that keeps its policy's logits and values too."""
  def select_action(params, timestep, state):
    policy, value, _ = networks.apply(
        params, jax.tree.map(lambda x: x[None], timestep.observation),
        (timestep.step_type == dm_env.StepType.FIRST)[None], state.core_state)
    action, extras, state = core.select_action(params, timestep, state)
    return action, {
        **extras, 'logits': policy.logits[0], 'check_value': value[0]}, state
  return core._replace(select_action=select_action)


@functools.lru_cache(None)
def _collect(core):
  networks, params = _make_networks(core)
  actor = _make_builders()['ppo'].make_actor_core(networks)
  return collect.collect(
      _FACTORY, _keep_logits(actor, networks), params, _NUM_ROLLOUTS, **_SIZES)


_CORES = pytest.mark.parametrize('core', ['lstm', 'gru'])


def _logits_and_values(core, rollout):
  networks, params = _make_networks(core)
  policy, value, state = jax.jit(networks.apply)(
      params, rollout.observation,
      rollout.step_type == dm_env.StepType.FIRST, rollout.core_state)
  return policy.logits, value, state


@_CORES
def test_learners_unroll_gives_the_actors_logits(core):
  rollouts = _collect(core)
  firsts = {t for rollout in rollouts for t in range(_SIZES['unroll_length'])
            if (rollout.step_type[t] == dm_env.StepType.FIRST).any()}
  assert firsts > {0} and rollouts[1].step_type[0, 0] != dm_env.StepType.FIRST
  for rollout in rollouts:
    logits, value, _ = _logits_and_values(core, rollout)
    np.testing.assert_allclose(
        logits, rollout.extras['logits'], rtol=0, atol=_TOLERANCE)
    np.testing.assert_allclose(
        value, rollout.extras['check_value'], rtol=0, atol=_TOLERANCE)
    np.testing.assert_allclose(
        value, rollout.extras['value'], rtol=0, atol=_TOLERANCE)
    log_prob = np.take_along_axis(
        jax.nn.log_softmax(logits[:-1]), rollout.action[..., None], -1)[..., 0]
    np.testing.assert_allclose(
        log_prob, rollout.extras['log_prob'][:-1], rtol=0, atol=_TOLERANCE)


@_CORES
def test_core_state_goes_on_across_rollouts(core):
  rollouts = _collect(core)
  for before, after in zip(rollouts, rollouts[1:]):
    # Row T is row 0 of the next rollout: its step is taken there.
    _, _, state = _logits_and_values(core, before._replace(
        observation=jax.tree.map(lambda x: x[:-1], before.observation),
        step_type=before.step_type[:-1]))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=_TOLERANCE),
        state, after.core_state)


@_CORES
def test_state_and_resets_show_in_the_logits(core):
  """Shows that the tests above would notice."""
  rollout = _collect(core)[1]
  for wrong in (
      rollout._replace(
          core_state=jax.tree.map(np.zeros_like, rollout.core_state)),
      rollout._replace(step_type=np.ones_like(rollout.step_type)),
      rollout._replace(step_type=np.roll(rollout.step_type, 1, axis=0))):
    logits, *_ = _logits_and_values(core, wrong)
    assert np.abs(logits - rollout.extras['logits']).max() > 1e-3


@_CORES
@pytest.mark.parametrize('agent', ['ppo', 'impala'])
def test_updates_see_the_actors_log_probabilities(agent, core):
  def loss(log_prob, value, entropy, *, behaviour_log_prob, **unused):
    difference = jnp.max(jnp.abs(log_prob - behaviour_log_prob))
    return jnp.sum(value) + jnp.sum(entropy), {'difference': difference}

  networks, params = _make_networks(core)
  learner = _make_builders(loss)[agent].make_learner_core(
      networks, builder_lib.RunSizes(
          _SIZES['unroll_length'], _SIZES['num_envs'], num_updates=1))
  state = learner.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))
  for rollout in _collect(core):
    for permutation in ([0, 1, 2], [2, 0, 1]):
      # Core states move with their environments.
      _, metrics = learner.update(
          state._replace(params=params), _permute(rollout, permutation))
      assert metrics['difference'] < _TOLERANCE
  wrong = _permute(rollout, [1, 2, 0])._replace(core_state=rollout.core_state)
  _, metrics = learner.update(state._replace(params=params), wrong)
  assert metrics['difference'] > 1e-3


def _permute(rollout, order):
  columns = jax.tree.map(
      lambda x: x[:, order], rollout._replace(core_state=()))
  return columns._replace(
      core_state=jax.tree.map(lambda x: x[np.array(order)], rollout.core_state))
