"""Tests of how an agent acts."""

from cleanba_acme import actor_core
from cleanba_acme import specs
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
import dm_env
import jax
import numpy as np
import pytest

_SPEC = specs.EnvironmentSpec(
    specs.Array((2,), np.float32), specs.DiscreteArray(3, np.int32),
    specs.Array((), np.float32), specs.BoundedArray((), np.float32, 0, 1))


def _make(evaluation=False, extras=(actor_core.LOG_PROB, actor_core.VALUE),
          **network):
  networks = factory.make_networks(
      _SPEC, network_config.NetworkConfig(hiddens=(8,), **network))
  core = actor_core.make_actor_core(networks, extras, evaluation)
  return networks, core._replace(select_action=jax.jit(core.select_action))


def _timestep(num_envs, seed=0, step_type=1):
  rng = np.random.default_rng(seed)
  return dm_env.TimeStep(
      np.full(num_envs, step_type, np.int32), np.zeros(num_envs, np.float32),
      np.ones(num_envs, np.float32),
      rng.normal(size=(num_envs, 2)).astype(np.float32))


def _act(core, networks, timestep, state=None):
  num_envs = len(timestep.reward)
  if state is None:
    state = core.init(jax.random.PRNGKey(1), range(num_envs))
  return core.select_action(networks.init(jax.random.PRNGKey(0)), timestep,
                            state)


def test_extras_are_those_of_the_action():
  networks, core = _make()
  timestep = _timestep(16)
  action, extras, _ = _act(core, networks, timestep)
  distribution, value, _ = networks.apply(
      networks.init(jax.random.PRNGKey(0)), timestep.observation[None],
      np.zeros((1, 16), bool), ())
  np.testing.assert_allclose(
      extras['log_prob'], distribution.log_prob(action[None])[0], rtol=1e-5)
  np.testing.assert_allclose(extras['value'], value[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('names', [
    (), ('value',), ('log_prob',), ('log_prob', 'value')])
def test_only_what_the_learner_needs_is_kept(names):
  networks, core = _make(extras=names)
  _, extras, _ = _act(core, networks, _timestep(8))
  assert tuple(extras) == names


def test_actions_are_samples_of_the_policy():
  networks, core = _make()
  timestep = jax.tree.map(lambda x: np.repeat(x, 3000, 0), _timestep(1))
  action, extras, _ = _act(core, networks, timestep)
  for choice in range(3):
    chosen = np.asarray(action) == choice
    probability = np.exp(extras['log_prob'][chosen][0])
    # Five standard deviations.
    assert abs(chosen.mean() - probability) < 5 * np.sqrt(.25 / 3000)


def test_every_step_draws_anew_and_every_draw_can_be_repeated():
  networks, core = _make()
  timestep = jax.tree.map(lambda x: np.repeat(x, 64, 0), _timestep(1))
  state = core.init(jax.random.PRNGKey(1), range(64))
  actions = []
  for _ in range(3):
    action, _, next_state = _act(core, networks, timestep, state)
    again, _, _ = _act(core, networks, timestep, state)
    np.testing.assert_array_equal(action, again)
    actions.append(np.asarray(action).tolist())
    state = next_state
  assert int(state.step) == 3
  assert actions[0] != actions[1] != actions[2] != actions[0]


def test_evaluation_is_greedy():
  networks, core = _make(evaluation=True)
  timestep = _timestep(32)
  distribution, _, _ = networks.apply(
      networks.init(jax.random.PRNGKey(0)), timestep.observation[None],
      np.zeros((1, 32), bool), ())
  action, _, _ = _act(core, networks, timestep)
  np.testing.assert_array_equal(action, distribution.logits[0].argmax(-1))


def test_memory_is_carried_and_forgotten_where_an_episode_starts():
  networks, core = _make(core='gru', core_size=4)
  _, _, state = _act(core, networks, _timestep(8))
  assert np.asarray(state.core_state).any()
  # Two histories, one future.
  _, _, other = _act(core, networks, _timestep(8, seed=1))
  for step_type, is_same in ((0, True), (1, False)):
    after = [
        _act(core, networks, _timestep(8, 2, step_type), before)[2].core_state
        for before in (state, other)]
    assert np.array_equal(*after) == is_same
