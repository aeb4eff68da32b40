"""Tests of rollouts: alignment, episodes, and what their bits depend on."""

from cleanba_acme import actor_core
from cleanba_acme import rollout as rollout_lib
from cleanba_acme import specs
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory
from cleanba_acme.testing import fakes
import dm_env
import jax
import numpy as np
import pytest

FIRST, MID, LAST = 0, 1, 2

# One column per environment: an episode of two steps and a longer one that is
# still running; one of one step, over and over.
_STEP_TYPE = np.array([
    [FIRST, FIRST], [MID, LAST], [LAST, FIRST], [FIRST, LAST], [MID, FIRST],
    [MID, LAST], [MID, FIRST]], np.int32)
_REWARD = np.array([
    [0, 0], [1, 1], [1, -1], [0, 1], [1, 0], [-1, 1], [1, 0]],
                   np.float32) * (_STEP_TYPE != FIRST)
_UNCLIPPED = 10 * _REWARD
_DISCOUNT = np.array([
    [1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [1, 0], [1, 1]], np.float32)
_OBSERVATION = np.arange(14, dtype=np.float32).reshape(7, 2, 1)


class _Script:
  """A `base.VectorEnvironment` that shows the rows above."""
  num_envs = 2

  def __init__(self):
    self.actions = []

  @property
  def unclipped_reward(self):
    return _UNCLIPPED[len(self.actions)]

  def reset(self):
    assert not self.actions
    return self._timestep()

  def step(self, action):
    assert action.shape[0] == 2
    self.actions.append(action.copy())
    return self._timestep()

  def close(self):
    pass

  def _timestep(self):
    row = len(self.actions)
    # Arrays that are reused: a rollout must have copied them.
    return dm_env.TimeStep(*[array[row] for array in (
        _STEP_TYPE, _REWARD, _DISCOUNT, _OBSERVATION)])


def _spec(actions):
  scalar = specs.Array((), np.float32)
  return specs.EnvironmentSpec(
      specs.Array((1,), np.float32), actions, scalar, scalar)


def _init(num_envs, core_state=()):
  return actor_core.ActorState(
      np.arange(2 * num_envs, dtype=np.uint32).reshape(num_envs, 2),
      np.int32(0), core_state)


def _select_action(params, timestep, state):
  """Acts with the number in the observation; its state counts its calls."""
  observation = timestep.observation
  return (
      observation[:, 0].astype(np.int32) % 3,
      {'params': np.full(len(observation), params, np.float32),
       'seen': observation[:, 0]},
      state._replace(step=state.step + 1, core_state=state.core_state + 1))


@pytest.fixture(name='rollouts')
def _rollouts():
  """Two rollouts of three steps, acted by parameters 7 and 8."""
  environment = _Script()
  unroller = rollout_lib.Unroller(
      environment, _spec(specs.DiscreteArray(3)),
      actor_core.ActorCore(None, _select_action),
      _init(2, core_state=np.zeros((2, 4), np.int32)), unroll_length=3)
  return [unroller.unroll(7), unroller.unroll(8)], environment


def test_rows_are_aligned(rollouts):
  rollouts, _ = rollouts
  for i, (rollout, _) in enumerate(rollouts):
    rows = slice(3 * i, 3 * i + 4)
    np.testing.assert_array_equal(rollout.step_type, _STEP_TYPE[rows])
    np.testing.assert_array_equal(rollout.reward, _REWARD[rows])
    np.testing.assert_array_equal(rollout.discount, _DISCOUNT[rows])
    np.testing.assert_array_equal(rollout.observation, _OBSERVATION[rows])


def test_action_of_a_row_leads_to_the_next(rollouts):
  rollouts, environment = rollouts
  actions = np.concatenate([rollout.action for rollout, _ in rollouts])
  np.testing.assert_array_equal(actions, _OBSERVATION[:6, :, 0] % 3)
  np.testing.assert_array_equal(actions, environment.actions)


def test_bootstrap_row_is_evaluated_but_not_acted(rollouts):
  (first, _), (second, _) = rollouts[0]
  assert len(rollouts[1].actions) == 6
  assert first.action.shape == (3, 2)
  for rollout, params in ((first, 7), (second, 8)):
    # All rows by the same parameters, the bootstrap row too.
    np.testing.assert_array_equal(
        rollout.extras['params'], np.full((4, 2), params))
    np.testing.assert_array_equal(
        rollout.extras['seen'], rollout.observation[..., 0])


def test_core_state_is_that_before_row_0(rollouts):
  (first, _), (second, _) = rollouts[0]
  np.testing.assert_array_equal(first.core_state, np.zeros((2, 4)))
  # Evaluating the bootstrap row has not moved it.
  np.testing.assert_array_equal(second.core_state, np.full((2, 4), 3))


def test_episodes_are_whole_and_unclipped(rollouts):
  (_, first), (_, second) = rollouts[0]
  np.testing.assert_array_equal(
      first.returns, [[0, 10], [20, 0], [0, 10]])
  np.testing.assert_array_equal(first.length, [[0, 1], [2, 0], [0, 1]])
  # Of the second episode of environment 0 the end is not known yet.
  np.testing.assert_array_equal(second.returns, [[0, 0], [0, 10], [0, 0]])
  np.testing.assert_array_equal(second.length, [[0, 0], [0, 1], [0, 0]])


def test_episode_over_several_rollouts():
  factory_ = batch.DmEnvFactory(fakes.Endless)
  core = actor_core.ActorCore(
      None, lambda params, timestep, state: (
          np.zeros(len(timestep.reward), np.int32), {}, state))
  unroller = rollout_lib.Unroller(
      factory_(0, 2), factory_.spec, core, _init(2), 4)
  episodes = [unroller.unroll(None)[1] for _ in range(6)]
  returns, length = (
      np.concatenate(arrays) for arrays in zip(*episodes))
  # Ten steps and a dummy step.
  ends = [9, 20]
  assert np.flatnonzero(length[:, 0]).tolist() == ends
  np.testing.assert_array_equal(length[ends], np.full((2, 2), 10))
  np.testing.assert_array_equal(returns[ends], np.full((2, 2), 10))


def test_keys_tell_environment_and_step():
  environment = _Script()
  unroller = rollout_lib.Unroller(
      environment, _spec(specs.DiscreteArray(3)),
      actor_core.ActorCore(None, _select_action),
      _init(2, core_state=np.zeros((2, 1), np.int32)), unroll_length=3)
  assert unroller.keys.tolist() == [[0, 1, 0], [2, 3, 0]]
  unroller.unroll(7)
  assert unroller.keys.tolist() == [[0, 1, 3], [2, 3, 3]]


def test_rollouts_do_not_share_memory(rollouts):
  (first, episodes), (second, _) = rollouts[0]
  expected = jax.tree.map(np.copy, first)
  for leaf in jax.tree.leaves((second, episodes)):
    if leaf.flags.writeable:
      leaf[...] = 0
  jax.tree.map(np.testing.assert_array_equal, first, expected)


def test_environment_gets_actions_within_its_bounds_and_the_learner_the_raw():
  received = []

  class Environment(_Script):

    def step(self, action):
      received.append(action)
      return super().step(action)

  raw = np.array([[-5.], [0.25]], np.float32)
  core = actor_core.ActorCore(
      None, lambda params, timestep, state: (
          np.resize(raw, (len(timestep.reward), 1)), {}, state))
  unroller = rollout_lib.Unroller(
      Environment(), _spec(specs.BoundedArray((1,), np.float32, -1., 1.)),
      core,
      _init(2), unroll_length=1)
  rollout, _ = unroller.unroll(None)
  np.testing.assert_array_equal(rollout.action[0], raw)
  np.testing.assert_array_equal(received[0], [[-1.], [0.25]])


@pytest.mark.parametrize('row', [0, 2])
@pytest.mark.parametrize('changes, message', [
    ({'reward': np.zeros(2)}, 'reward .*dtype float32.*got .*float64'),
    ({'reward': np.zeros(3, np.float32)}, r'reward .*\(2,\).*got shape \(3,\)'),
    ({'reward': np.zeros((2, 1), np.float32)}, r'reward .*got shape \(2, 1\)'),
    ({'reward': np.float32([0, np.nan])}, 'reward must be finite, got .*nan'),
    ({'reward': None}, 'reward .*got .*NoneType'),
    ({'reward': [0., 0.]}, 'reward .*got .*list'),
    ({'discount': np.ones(2)}, 'discount .*float64'),
    ({'discount': np.float32([np.inf, 1])}, 'discount must be finite'),
    ({'step_type': np.zeros(2, np.int64)}, 'step_type .*int32.*int64'),
    ({'step_type': dm_env.StepType.MID}, r'step_type .*got shape \(\)'),
    ({'observation': np.zeros((2, 2), np.float32)},
     r'observation .*\(2, 1\).*got shape \(2, 2\)'),
    ({'observation': np.zeros((1, 1), np.float32)}, r'observation .*\(1, 1\)'),
    ({'observation': np.zeros((2, 1), np.uint8)}, 'observation .*uint8'),
    ({'observation': np.float32([[0], [np.nan]])},
     'observation must be finite'),
    ({'observation': {'x': np.zeros((2, 1), np.float32)}},
     'observation is a tree'),
], ids=str)
def test_what_contradicts_the_spec_is_an_error_at_once(changes, message, row):

  class Environment(_Script):

    def _timestep(self):
      timestep = super()._timestep()
      return (timestep._replace(**changes) if len(self.actions) == row
              else timestep)

  with pytest.raises(ValueError, match=message):
    rollout_lib.Unroller(
        Environment(), _spec(specs.DiscreteArray(3)),
        actor_core.ActorCore(None, _select_action),
        _init(2, core_state=np.zeros((2, 1), np.int32)), unroll_length=3,
    ).unroll(7)


def _make_board(seed):
  return catch.Catch(seed, rows=4, columns=3)


class _Collector:
  """Collects rollouts of one network, which is compiled once per batch size."""

  def __init__(self, **network):
    self._factory = batch.DmEnvFactory(_make_board)
    networks = factory.make_networks(
        self._factory.spec, network_config.NetworkConfig(**network))
    core = actor_core.make_actor_core(
        networks, (actor_core.LOG_PROB, actor_core.VALUE))
    self._params = networks.init(jax.random.PRNGKey(3))
    self._core = core._replace(select_action=jax.jit(core.select_action))

  def collect(self, environments):
    """Returns two rollouts of five steps by environments of these indices."""
    unroller = rollout_lib.Unroller(
        self._factory(environments[0], len(environments)),
        self._factory.spec, self._core,
        self._core.init(jax.random.PRNGKey(0), environments), 5)
    return [unroller.unroll(self._params)[0] for _ in range(2)]


def test_join_joins_actors_along_environments():
  collector = _Collector(hiddens=(4,), core='gru', core_size=4)
  parts = [collector.collect(range(i, i + 2))[1] for i in (0, 2)]
  whole = rollout_lib.join(parts)
  assert whole.reward.shape == (6, 4) and whole.action.shape == (5, 4)
  assert whole.core_state.shape == (4, 4)
  np.testing.assert_array_equal(whole.observation[:, 2:], parts[1].observation)
  np.testing.assert_array_equal(whole.core_state[2:], parts[1].core_state)
  assert rollout_lib.join(parts[:1]) is parts[0]


# The default, and those that were seen to depend on the rows beside them.
@pytest.mark.parametrize('network', [
    {}, {'hiddens': (16,)},
    {'hiddens': (8,), 'core': 'lstm', 'core_size': 8},
    {'hiddens': (8,), 'core': 'gru', 'core_size': 16},
    {'torso': 'conv', 'channels': (4,), 'hiddens': (16,)},
], ids=str)
def test_rollouts_do_not_depend_on_the_split_over_actors(network):
  collector = _Collector(**network)
  whole = collector.collect(range(24))
  for rows in (1, 2, 3, 4, 8, 12):
    parts = [collector.collect(range(first, first + rows))
             for first in range(0, 24, rows)]
    for expected, rollouts in zip(whole, zip(*parts)):
      joined = rollout_lib.join(rollouts)
      for name, tree, other in zip(joined._fields, joined, expected):
        for leaf, other_leaf in zip(
            jax.tree.leaves(tree), jax.tree.leaves(other)):
          assert leaf.tobytes() == other_leaf.tobytes(), (name, rows)
