"""Drives fast and slow workers, and looks into the data the learner gets.

The network's only parameter is its version, which the actors copy into every
row; an observation is the number of steps so far. So the data themselves tell
which version acted in which round, whatever the items' labels say.
"""

import time

from cleanba_acme import actor_core
from cleanba_acme import channels
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import learner_core
from cleanba_acme import seeding
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import batch
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import run as run_lib
from cleanba_acme.networks import factory
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_T, _ROUNDS = 3, 6


class _Counter(dm_env.Environment):
  """Shows how many steps were taken; never ends."""

  def __init__(self, seed, sleep_s=0.):
    del seed
    self.steps = 0
    self._sleep_s = sleep_s

  def reset(self):
    return dm_env.restart(np.zeros(1, np.float32))

  def step(self, action):
    time.sleep(self._sleep_s)
    self.steps += 1
    return dm_env.transition(0., np.full(1, self.steps, np.float32))

  def observation_spec(self):
    return specs.Array((1,), np.float32)

  def action_spec(self):
    return specs.DiscreteArray(2, np.int32)


class _SlowActorFactory:
  """Makes counters; those of one actor, told by their seed, are slow."""
  frame_skip = 1
  spec = batch.make_spec(_Counter(0))

  def __init__(self, slow_seed):
    self._slow_seed = slow_seed
    self.make = lambda sleep_s: _Counter(0, sleep_s)

  def __call__(self, seed, num_envs):
    sleep_s = 0.02 if seed == self._slow_seed else 0.
    return batch.BatchedEnvironment(
        [self.make(sleep_s) for _ in range(num_envs)])


class _VersionBuilder:
  """An agent whose parameter is the number of its updates."""

  def __init__(self, update_s=0.):
    self.batches = []
    self._update_s = update_s

  def make_actor_core(self, networks, evaluation=False):
    """See `builder.Builder`."""
    def init(key, indices):
      return actor_core.ActorState(
          seeding.environment_keys(key, indices), jnp.int32(0), ())

    def select_action(params, timestep, state):
      rows = timestep.step_type.shape
      return (jnp.zeros(rows, jnp.int32),
              {'version': jnp.full(rows, params['version'])},
              state._replace(step=state.step + 1))

    return actor_core.ActorCore(init, select_action)

  def make_learner_core(self, networks, sizes, execution):
    """See `builder.Builder`."""
    def init(init_key, shuffling_key):
      return types.TrainingState(
          {'version': jnp.float32(0)}, (), jnp.int32(0), shuffling_key)

    def update(state, rollout):
      time.sleep(self._update_s)
      self.batches.append(jax.tree.map(np.copy, rollout))
      return state._replace(
          params={'version': state.params['version'] + 1}), {}

    return learner_core.LearnerCore(init, update)


def _make_experiment(builder, environment_factory, policy_lag, num_actors=2):
  """Makes a run of actors that have one environment each."""
  return experiment_lib.Experiment(
      builder=builder,
      network_factory=factory.make_networks,
      environment_factory=environment_factory,
      seed=1, num_actors=num_actors, num_envs=num_actors, unroll_length=_T,
      total_steps=_ROUNDS * num_actors * _T, policy_lag=policy_lag)


def _run(output_dir, channel, policy_lag, slow_actor=0, update_s=0.):
  """Runs two actors of one environment each; returns the learner's batches."""
  builder = _VersionBuilder(update_s)
  experiment = _make_experiment(
      builder, _SlowActorFactory(seeding.environment_seed(1) + slow_actor),
      policy_lag)
  assert run_lib.run(
      experiment, str(output_dir), channel=channel) == exits.DONE
  return builder.batches


@pytest.mark.parametrize('channel', ['memory', 'reverb'])
@pytest.mark.parametrize('update_s', [0., 0.05])
@pytest.mark.parametrize('slow_actor', [0, 1])
@pytest.mark.parametrize('policy_lag, versions', [
    (0, [0, 1, 2, 3, 4, 5]), (1, [0, 0, 1, 2, 3, 4])])
def test_no_batch_mixes_rounds_or_versions(
    policy_lag, versions, slow_actor, update_s, channel, tmp_path):
  batches = _run(tmp_path / 'run', channel, policy_lag, slow_actor, update_s)
  assert len(batches) == _ROUNDS
  for round_index, (rollout, version) in enumerate(zip(batches, versions)):
    rows = np.arange(round_index * _T, (round_index + 1) * _T + 1)
    for actor in range(2):
      np.testing.assert_array_equal(rollout.observation[:, actor, 0], rows)
      # The bootstrap row too.
      np.testing.assert_array_equal(
          rollout.extras['version'][:, actor], np.full(_T + 1, version))


@pytest.mark.parametrize('policy_lag, is_ahead', [(0, False), (1, True)])
def test_with_a_lag_actors_collect_while_the_learner_learns(
    policy_lag, is_ahead, tmp_path):
  environment = _Counter(0)
  seen_ahead = []

  class Builder(_VersionBuilder):
    """Looks in each update, but the last, whether the next round begins."""

    def make_learner_core(self, networks, sizes, execution):
      core = super().make_learner_core(networks, sizes, execution)

      def update(state, rollout):
        state, metrics = core.update(state, rollout)
        steps = len(self.batches) * _T
        if len(self.batches) < _ROUNDS:
          deadline = time.monotonic() + (20. if is_ahead else 0.2)
          while environment.steps <= steps and time.monotonic() < deadline:
            time.sleep(0.001)
          seen_ahead.append(environment.steps > steps)
        return state, metrics

      return core._replace(update=update)

  factory_ = _SlowActorFactory(slow_seed=None)
  factory_.make = lambda sleep_s: environment
  experiment = _make_experiment(
      Builder(), factory_, policy_lag, num_actors=1)
  assert run_lib.run(experiment, str(tmp_path / 'run')) == exits.DONE
  assert seen_ahead == [is_ahead] * (_ROUNDS - 1)


@pytest.mark.parametrize('channel, message', [
    ('rollout/1', 'round 0 of actor 1 can\'t be handed over: '),
    ('parameters/0', 'version 0 of the parameters can\'t be handed over: ')])
def test_who_has_no_room_is_named(
    channel, message, monkeypatch, capfd, tmp_path):
  put = channels.MemoryChannel.put

  def put_unless_full(self, item, timeout=None):
    if self._name == channel:  # pylint: disable=protected-access
      raise channels.TimedOut(f'waited for room in {channel}')
    put(self, item, timeout)

  monkeypatch.setattr(channels.MemoryChannel, 'put', put_unless_full)
  experiment = _make_experiment(_VersionBuilder(), _SlowActorFactory(None), 0)
  assert run_lib.run(experiment, str(tmp_path / 'run')) == exits.HUNG
  assert f'{message}waited for room in {channel}' in capfd.readouterr().err
