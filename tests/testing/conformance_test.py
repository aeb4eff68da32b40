"""The conformance checks: they accept our own parts and find planted faults."""

import functools

from cleanba_acme import actor_core
from cleanba_acme import specs
from cleanba_acme.agents.impala import builder as impala_builder
from cleanba_acme.agents.impala import config as impala_config
from cleanba_acme.agents.ppo import builder as ppo_builder
from cleanba_acme.agents.ppo import config as ppo_config
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
from cleanba_acme.environments import registry
from cleanba_acme.environments import wrappers
from cleanba_acme.networks import config as network_config
from cleanba_acme.networks import factory as network_factory
from cleanba_acme.testing import bandit
from cleanba_acme.testing import compilation
from cleanba_acme.testing import conformance
from cleanba_acme.testing import fakes
import dm_env
import jax
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


# Our own parts.


@pytest.mark.parametrize('make, time_limit', [
    (lambda: _CATCH, None),
    (lambda: wrappers.ObservationActionReward(_CATCH), None),
    (lambda: batch.DmEnvFactory(bandit.Bandit), None),
    (lambda: batch.DmEnvFactory(fakes.Endless), 10),
    (lambda: registry.make_factory('catch'), None),
    (lambda: registry.make_factory('Catch-v0'), None),
    (lambda: registry.make_factory('CartPole-v1', max_episode_steps=20), 20),
    (lambda: registry.make_factory('Pendulum-v1', max_episode_steps=20), 20),
    (lambda: registry.make_factory(
        'gymnasium:CartPole-v1', max_episode_steps=20), 20),
    (lambda: registry.make_factory('Breakout-v5', max_episode_steps=20), 20),
], ids=['catch', 'last_action', 'bandit', 'endless', 'registry', 'catch_v0',
        'cartpole', 'pendulum', 'gymnasium', 'breakout'])
def test_our_environments_conform(make, time_limit):
  conformance.check_environment(make(), num_steps=90, time_limit=time_limit)


def _make_spec(observations, actions=specs.DiscreteArray(3)):
  return specs.EnvironmentSpec(
      observations, actions, specs.Array((), np.float32),
      specs.BoundedArray((), np.float32, 0., 1.))


_VECTOR = _make_spec(specs.Array((5,), np.float32))
_PIXELS = _make_spec({
    'image': specs.BoundedArray((12, 12, 2), np.uint8, 0, 255),
    'vector': specs.Array((2,), np.float32)})


@pytest.mark.parametrize('spec, fields', [
    (_VECTOR, {}),
    (_VECTOR, {'core': 'lstm', 'core_size': 8}),
    (_VECTOR, {'core': 'gru', 'core_size': 8, 'normalize_observations': True}),
    (_PIXELS, {'torso': 'conv', 'channels': (4,)}),
    (_make_spec(_VECTOR.observations,
                specs.BoundedArray((2,), np.int32, 1, [2, 5])), {}),
    (_make_spec(_VECTOR.observations,
                specs.BoundedArray((2,), np.float32, -2., 1.)), {}),
    (_make_spec(_VECTOR.observations,
                specs.BoundedArray((2,), np.float32, -2., 1.)),
     {'continuous_policy': 'clipped'}),
], ids=['mlp', 'lstm', 'gru', 'conv', 'multidiscrete', 'tanh', 'clipped'])
def test_our_networks_conform(spec, fields):
  conformance.check_networks(_make_networks(spec, **fields), spec)


class TestPPO(conformance.BuilderTests):
  """Our own agent by the pytest class."""

  def make_builder(self):
    return _PPO

  def make_networks(self, spec):
    return _make_networks(spec, core='gru', core_size=8)

  def make_environment_factory(self):
    return wrappers.ObservationActionReward(_CATCH)


class TestCatch(conformance.EnvironmentTests):

  def make_environment_factory(self):
    return _CATCH


class TestMLP(conformance.NetworkTests):

  def make_networks(self, spec):
    return _make_networks(spec)

  def make_spec(self):
    return _VECTOR


@pytest.mark.parametrize('builder', [_PPO, _IMPALA], ids=['ppo', 'impala'])
def test_our_builders_conform(builder):
  conformance.check_builder(
      builder, functools.partial(_make_networks, normalize_observations=True),
      _CATCH)


# Environments with planted faults.


class _Faulty:
  """Passes on what an environment does, but for the one fault."""

  def __init__(self, environment):
    self._environment = environment
    self._step = 0

  def __getattr__(self, name):
    return getattr(self._environment, name)

  def reset(self):
    return self.change(self._environment.reset())

  def step(self, action):
    self._step += 1
    return self.change(self._environment.step(action))

  def change(self, timestep):
    return timestep


class _WrongType(_Faulty):

  def change(self, timestep):
    return timestep._replace(
        observation=timestep.observation.astype(np.float64))


class _OutOfBounds(_Faulty):

  def change(self, timestep):
    return timestep._replace(observation=2 * timestep.observation)


class _Infinite(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=timestep.reward / np.float32(0.))


class _TruncatedByHalf(_Faulty):

  def change(self, timestep):
    return timestep._replace(discount=np.where(
        timestep.last(), np.float32(.5), timestep.discount))


class _RewardInFirst(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=timestep.reward + timestep.first())


class _NoFirst(_Faulty):

  def change(self, timestep):
    return timestep._replace(
        step_type=np.maximum(timestep.step_type, int(self._step > 0)))


class _OneBuffer(_Faulty):

  def change(self, timestep):
    if not self._step:
      self._buffer = timestep.reward.copy()
    self._buffer[:] = timestep.reward
    return timestep._replace(reward=self._buffer)


class _OwnRandomness(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=timestep.reward + np.where(
        timestep.first(), 0, np.random.random(3)[:len(timestep.reward)]
    ).astype(np.float32))


class _LooksAtOthers(_Faulty):

  def change(self, timestep):
    return timestep._replace(reward=np.where(
        timestep.first(), np.float32(0), timestep.reward.mean()))


class _TakesDummyActions(_Faulty):

  def __init__(self, environment):
    super().__init__(environment)
    self._sum = 0

  def step(self, action):
    self._sum = self._sum + action
    return super().step(action)

  def change(self, timestep):
    return timestep._replace(reward=np.where(
        timestep.first(), 0, self._sum).astype(np.float32))


class _FaultyFactory:
  """Makes environments with a fault."""
  frame_skip = 1

  def __init__(self, fault, factory=_CATCH):
    self.spec = factory.spec
    self._factory = factory
    self._fault = fault

  def __call__(self, seed, num_envs):
    return self._fault(self._factory(seed, num_envs))


@pytest.mark.parametrize('fault, message', [
    (_WrongType, 'observation of step 0: expected shape .* and dtype float32'),
    (_OutOfBounds, 'observation of step 0: breaks its spec'),
    (_Infinite, 'reward of step 0: expected finite numbers'),
    (_TruncatedByHalf, r'discount of LAST: expected 0 \(terminated\) or 1'),
    (_RewardInFirst, 'reward of FIRST: expected 0, saw 1'),
    (_NoFirst, r'step_type: expected FIRST \(0\)'),
    (_OneBuffer, 'kept by the caller until the end'),
    (_OwnRandomness, 'second environment of the same seed'),
    (_LooksAtOthers, 'must be as environment 0 at seed'),
    (_TakesDummyActions, 'with other actions after LAST'),
])
def test_faulty_environments_are_found(fault, message):
  with np.errstate(all='ignore'):
    with pytest.raises(AssertionError, match=message):
      conformance.check_environment(_FaultyFactory(fault))


def test_environments_of_one_seed_are_found():
  class SameSeed(_FaultyFactory):

    def __call__(self, seed, num_envs):
      return batch.BatchedEnvironment(
          [catch.Catch(seed, 4, 3) for _ in range(num_envs)])

  with pytest.raises(AssertionError, match='environment 1 of 3 at seed 0'):
    conformance.check_environment(SameSeed(None))


def test_time_limits_that_terminate_are_found():
  class Terminates(_Faulty):

    def change(self, timestep):
      return timestep._replace(discount=np.where(
          timestep.last(), np.float32(0), timestep.discount))

  factory = _FaultyFactory(Terminates, batch.DmEnvFactory(fakes.Endless))
  with pytest.raises(AssertionError, match='truncated in 200 steps'):
    conformance.check_environment(factory, time_limit=10)
  with pytest.raises(AssertionError, match='the time limit is 12'):
    conformance.check_environment(
        batch.DmEnvFactory(fakes.Endless), time_limit=12)
  with pytest.raises(AssertionError, match='LAST at the time limit 8'):
    conformance.check_environment(
        batch.DmEnvFactory(fakes.Endless), time_limit=8)


def test_episodes_must_end():
  with pytest.raises(AssertionError, match='raise num_steps'):
    conformance.check_environment(_CATCH, num_steps=2)


# Networks with planted faults.


def _change_apply(change, **fields):
  networks = _make_networks(_VECTOR, **fields)
  return networks._replace(apply=functools.partial(change, networks.apply))


def _forget_never(apply, params, observation, is_first, state):
  return apply(params, observation, jnp.zeros_like(is_first), state)


def _reset_a_row_late(apply, params, observation, is_first, state):
  return apply(params, observation, jnp.roll(is_first, 1, axis=0), state)


def _lose_state(apply, params, observation, is_first, state):
  policy, value, _ = apply(params, observation, is_first, state)
  return policy, value, state


def _normalize_over_environments(apply, params, observation, is_first, state):
  observation = observation - jnp.mean(observation, axis=1, keepdims=True)
  return apply(params, observation, is_first, state)


def _look_ahead(apply, params, observation, is_first, state):
  return apply(params, jnp.cumsum(observation[::-1], 0)[::-1], is_first, state)


def _keep_axis(apply, params, observation, is_first, state):
  policy, value, state = apply(params, observation, is_first, state)
  return policy, value[..., None], state


def _explode(apply, params, observation, is_first, state):
  policy, value, state = apply(params, observation, is_first, state)
  return policy, value / 0., state


def _root_of_zero(apply, params, observation, is_first, state):
  policy, value, state = apply(params, observation, is_first, state)
  return policy, value + jnp.sqrt(0. * value), state


@pytest.mark.parametrize('change, fields, message', [
    (_forget_never, {'core': 'gru'}, 'outputs after is_first'),
    (_reset_a_row_late, {'core': 'gru'}, 'of a single step at row'),
    (_lose_state, {'core': 'lstm'}, 'of a single step at row'),
    (_normalize_over_environments, {}, 'beside other environments'),
    (_look_ahead, {}, 'of a single step at row 0'),
    (_keep_axis, {}, r'value: expected shape \(3, 4\) and dtype float32, saw'),
    (_explode, {}, 'value: expected finite numbers, saw'),
    (_root_of_zero, {}, 'gradient of .*: expected finite numbers'),
])
def test_faulty_networks_are_found(change, fields, message):
  with pytest.raises(AssertionError, match=message):
    conformance.check_networks(_change_apply(change, **fields), _VECTOR)


def test_look_ahead_is_found_by_its_own_check():
  with pytest.raises(AssertionError, match='before other later rows'):
    conformance.check_no_future(_change_apply(_look_ahead), _VECTOR)


def test_faulty_observe_is_found():
  networks = _make_networks(_VECTOR)._replace(
      observe=lambda params, observation: (params, observation))
  with pytest.raises(AssertionError, match='after observe'):
    conformance.check_networks(networks, _VECTOR)


# Builders with planted faults.


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
