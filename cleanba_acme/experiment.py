"""Everything that defines a run, and nothing of how it is launched."""

import dataclasses
from typing import Callable, Optional, Tuple

from cleanba_acme import actor_core
from cleanba_acme import builder as builder_lib
from cleanba_acme import learner_core
from cleanba_acme import rollout as rollout_lib
from cleanba_acme import seeding
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base as environments
from cleanba_acme.networks import base as networks_lib
import dm_env
import jax
import numpy as np


HANDOFFS = ('synchronous', 'asynchronous')


@dataclasses.dataclass(frozen=True)
class Experiment:
  """Defines a run: from these fields follow the bits of every update.

  Usage:

    experiment = Experiment(
        builder=ppo.PPOBuilder(config.PPOConfig()),
        network_factory=lambda spec: factory.make_networks(spec),
        environment_factory=registry.make_factory('CartPole-v1'),
        seed=1, num_actors=2, num_envs=16, unroll_length=64,
        total_steps=100_000, policy_lag=0, checkpoint_every=100)
    run.run(experiment, 'results/cartpole', launch='threads')

  Attributes:
    builder: The agent.
    network_factory: `(environment_spec) -> ActorCritic`.
    environment_factory: Makes the actors' environments.
    seed: Seed of all randomness.
    num_actors: `N`, how many workers the environments are split over.
    num_envs: Environments of all actors together.
    unroll_length: `T`, steps of a rollout.
    total_steps: Environment steps of the run, over all environments; only
      whole rounds are run.
    policy_lag: `L`; round `r` acts with version `max(0, r - L)`.
    checkpoint_every: Rounds between checkpoints. All environments restart at
      each, because they can't be saved, so it changes the run's numbers.
    execution: How the learner's machine computes an update.
    handoff: `synchronous`, or `asynchronous` for the usual design, whose
      results depend on timing: actors take the latest version, the learner
      whatever arrives.
  """
  builder: builder_lib.Builder
  network_factory: Callable[[specs.EnvironmentSpec], networks_lib.ActorCritic]
  environment_factory: environments.EnvironmentFactory
  seed: int
  num_actors: int
  num_envs: int
  unroll_length: int
  total_steps: int
  policy_lag: int
  checkpoint_every: int = 100
  execution: learner_core.Execution = learner_core.Execution()
  handoff: str = 'synchronous'

  def __post_init__(self):
    """Builds everything abstractly, so that a misfit shows up here.

    Raises:
      ValueError: A field is out of its range or doesn't fit the others.
    """
    for name in (
        'num_actors', 'num_envs', 'unroll_length', 'checkpoint_every'):
      value = getattr(self, name)
      if value < 1:
        raise ValueError(f'{name}={value}: must be at least 1')
    if not 0 <= self.seed <= seeding.MAX_SEED:
      raise ValueError(
          f'seed={self.seed}: must be in [0, {seeding.MAX_SEED}]')
    if self.policy_lag not in (0, 1):
      raise ValueError(
          f'policy_lag={self.policy_lag}: must be 0 (synchronous) or 1 (act '
          'and learn at the same time)')
    if self.handoff not in HANDOFFS:
      raise ValueError(
          f'handoff={self.handoff!r}: must be one of {", ".join(HANDOFFS)}')
    if self.is_asynchronous and self.policy_lag:
      raise ValueError(
          f'policy_lag={self.policy_lag}: must be 0 with an asynchronous '
          'handoff, where the lag is whatever it happens to be')
    if self.num_envs > seeding.MAX_NUM_ENVS:
      raise ValueError(
          f'num_envs={self.num_envs}: must be at most {seeding.MAX_NUM_ENVS}')
    if self.num_envs % self.num_actors:
      raise ValueError(
          f'num_envs={self.num_envs}: must be a multiple of num_actors='
          f'{self.num_actors}')
    if self.total_steps < self.steps_per_round:
      raise ValueError(
          f'total_steps={self.total_steps}: must be at least one round, '
          f'num_envs * unroll_length = {self.steps_per_round}')
    self.make_learner_core()
    self.item_specs()

  @property
  def envs_per_actor(self) -> int:
    """`B`."""
    return self.num_envs // self.num_actors

  @property
  def steps_per_round(self) -> int:
    """Environment steps of one round, over all actors."""
    return self.num_envs * self.unroll_length

  @property
  def num_rounds(self) -> int:
    """Rounds, and so updates, of the whole run."""
    return self.total_steps // self.steps_per_round

  @property
  def is_asynchronous(self) -> bool:
    """Whether the handoff is the usual one, without a contract."""
    return self.handoff == 'asynchronous'

  @property
  def num_buffers(self) -> Optional[int]:
    """Rollouts that an actor, and the learner, need memory for; None: any.

    Round `r + 1 + L` is acted by version `r + 1`, which is published after the
    update on round `r`: by then, nobody reads that round's data any more.
    """
    return None if self.is_asynchronous else self.policy_lag + 1

  def policy_version(self, round_index: int) -> int:
    """Returns the version that acts in a round: arithmetic, never "latest"."""
    return max(0, round_index - self.policy_lag)

  def is_boundary(self, round_index: int) -> bool:
    """Whether a checkpoint comes, and environments restart, before a round."""
    return round_index % self.checkpoint_every == 0

  def make_actor_core(self, evaluation: bool = False) -> actor_core.ActorCore:
    """Makes the agent's acting half."""
    return self.builder.make_actor_core(self._make_networks(), evaluation)

  def compile_actor_core(self) -> actor_core.ActorCore:
    """Makes the acting half, compiled for what the run's actors evaluate.

    It computes on JAX's default device.
    """
    core = self.make_actor_core()
    timestep, state = self._actor_inputs(
        core, rollout_lib.pad_rows(self.envs_per_actor))
    params = self.checkpoint_spec()[0].params
    return core._replace(select_action=jax.jit(core.select_action).lower(
        params, timestep, state).compile())

  def make_learner_core(self) -> learner_core.LearnerCore:
    """Makes the agent's learning half."""
    return self.builder.make_learner_core(
        self._make_networks(),
        builder_lib.RunSizes(
            unroll_length=self.unroll_length,
            num_envs=self.num_envs,
            num_updates=self.num_rounds),
        self.execution)

  def checkpoint_spec(
      self) -> Tuple[types.TrainingState, Tuple[types.Params, ...]]:
    """Returns state and older versions, trees of `jax.ShapeDtypeStruct`."""
    key = jax.ShapeDtypeStruct((2,), np.uint32)
    state = jax.eval_shape(self.make_learner_core().init, key, key)
    return state, (state.params,) * self.policy_lag

  def item_specs(self) -> Tuple[types.RolloutItem, types.ParametersItem]:
    """Returns the trees of `jax.ShapeDtypeStruct` that the channels carry."""
    length, rows = self.unroll_length, self.envs_per_actor
    spec = self.environment_factory.spec
    params = self.checkpoint_spec()[0].params
    core = self.make_actor_core()
    timestep, state = self._actor_inputs(core, rows)
    action, extras, _ = jax.eval_shape(
        core.select_action, params, timestep, state)
    scalar = jax.ShapeDtypeStruct((), np.int32)
    episodes = types.Episodes(
        returns=jax.ShapeDtypeStruct((length, rows), np.float32),
        length=jax.ShapeDtypeStruct((length, rows), np.int32))
    return (
        types.RolloutItem(
            actor=scalar, round=scalar, version=scalar,
            keys=jax.ShapeDtypeStruct((rows, 3), np.uint32),
            rollout=rollout_lib.make_spec(
                spec, length, action, extras, state.core_state),
            episodes=episodes),
        types.ParametersItem(scalar, params))

  def _actor_inputs(
      self, core: actor_core.ActorCore, rows: int
  ) -> Tuple[dm_env.TimeStep, actor_core.ActorState]:
    """Returns what `select_action` takes, as `jax.ShapeDtypeStruct`s."""
    scalars = lambda dtype: jax.ShapeDtypeStruct((rows,), dtype)
    timestep = dm_env.TimeStep(
        step_type=scalars(np.int32),
        reward=scalars(np.float32),
        discount=scalars(np.float32),
        observation=jax.tree.map(
            lambda spec: jax.ShapeDtypeStruct((rows, *spec.shape), spec.dtype),
            self.environment_factory.spec.observations))
    state = jax.eval_shape(
        lambda key: core.init(key, range(rows)),
        jax.ShapeDtypeStruct((2,), np.uint32))
    return timestep, state

  def _make_networks(self) -> networks_lib.ActorCritic:
    return self.network_factory(self.environment_factory.spec)
