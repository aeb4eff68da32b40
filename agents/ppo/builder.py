"""Builds PPO from the components."""

from typing import Callable, NamedTuple

from cleanba_acme import actor_core
from cleanba_acme import builder
from cleanba_acme import learner_core
from cleanba_acme import reward_scaling
from cleanba_acme import types
from cleanba_acme.agents.ppo import config as config_lib
from cleanba_acme.losses import masking
from cleanba_acme.losses import ppo
from cleanba_acme.networks import base as networks_lib
import dm_env
import jax
import jax.numpy as jnp
import optax


class Samples(NamedTuple):
  """What PPO learns from; `[T, B]`, or `[1, M]` for shuffled single steps.

  Attributes:
    observation: Tree of `[T, B, ...]`.
    is_first: `[T, B]` bool.
    action: `[T, B, ...]`.
    log_prob: `[T, B]`, of the action when it was taken.
    advantage: `[T, B]`.
    value_target: `[T, B]`.
    weight: `[T, B]`, 0 for dummy steps.
    core_state: Tree of `[B, ...]`, before row 0.
  """
  observation: types.ArrayTree
  is_first: types.Array
  action: types.Array
  log_prob: types.Array
  advantage: types.Array
  value_target: types.Array
  weight: types.Array
  core_state: types.ArrayTree


class PPOBuilder:
  """PPO over feed-forward and recurrent networks.

  Feed-forward networks see the steps of a round in random order; recurrent
  ones whole unrolls of randomly chosen environments.
  """

  def __init__(
      self,
      config: config_lib.PPOConfig,
      loss: Callable[..., tuple] = ppo.ppo_loss,
  ):
    """Makes the builder.

    Args:
      config: The settings.
      loss: Called as `losses.ppo.ppo_loss` is.
    """
    self._config = config
    self._loss = loss

  def make_actor_core(
      self,
      networks: networks_lib.ActorCritic,
      evaluation: bool = False,
  ) -> actor_core.ActorCore:
    """See `builder.Builder`."""
    return actor_core.make_actor_core(
        networks, (actor_core.LOG_PROB, actor_core.VALUE), evaluation)

  def make_learner_core(
      self,
      networks: networks_lib.ActorCritic,
      sizes: builder.RunSizes,
      execution: learner_core.Execution = learner_core.Execution(),
  ) -> learner_core.LearnerCore:
    """See `builder.Builder`."""
    config = self._config

    def prepare(rollout: types.Rollout) -> Samples:
      advantage, value_target = ppo.generalized_advantages(
          rollout.reward, rollout.discount, rollout.step_type,
          rollout.extras[actor_core.VALUE],
          gamma=config.discount, lambda_=config.gae_lambda)
      rows = lambda tree: jax.tree.map(lambda x: x[:-1], tree)
      return Samples(
          observation=rows(rollout.observation),
          is_first=rows(rollout.step_type) == dm_env.StepType.FIRST,
          action=rollout.action,
          log_prob=rows(rollout.extras[actor_core.LOG_PROB]),
          advantage=advantage,
          value_target=value_target,
          weight=masking.valid_steps(rollout.step_type),
          core_state=rollout.core_state)

    def select_steps(samples: Samples, indices: types.Array) -> Samples:
      return normalize(jax.tree.map(
          lambda x: x.reshape((-1,) + x.shape[2:])[indices][None], samples))

    def select_environments(samples: Samples, indices: types.Array) -> Samples:
      return normalize(learner_core.select_environments(samples, indices))

    def normalize(minibatch: Samples) -> Samples:
      mask, advantage = minibatch.weight, minibatch.advantage
      if config.normalize_advantage:
        advantage = masking.normalize(advantage, mask)
      return minibatch._replace(
          advantage=advantage, weight=mask / jnp.maximum(1., jnp.sum(mask)))

    def loss(params: types.Params, minibatch: Samples):
      distribution, value, _ = networks.apply(
          params, minibatch.observation, minibatch.is_first,
          minibatch.core_state)
      return self._loss(
          distribution.log_prob(minibatch.action), value,
          distribution.entropy(),
          behaviour_log_prob=minibatch.log_prob,
          advantage=minibatch.advantage,
          value_target=minibatch.value_target,
          weight=minibatch.weight,
          clip_epsilon=config.clip_epsilon,
          value_cost=config.value_cost,
          entropy_cost=config.entropy_cost)

    is_recurrent = bool(jax.tree.leaves(
        jax.eval_shape(lambda: networks.initial_state(1))))
    num_steps = sizes.unroll_length * sizes.num_envs
    core = learner_core.make_learner_core(
        networks,
        optimizer=make_optimizer(config, sizes.num_updates),
        prepare=prepare,
        select=select_environments if is_recurrent else select_steps,
        loss=loss,
        minibatching=learner_core.Minibatching(
            num_samples=sizes.num_envs if is_recurrent else num_steps,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            shuffle=True),
        execution=execution)
    if config.scale_rewards:
      core = reward_scaling.scale_rewards(
          core, config.discount, sizes.num_envs)
    return core


def make_optimizer(
    config: config_lib.PPOConfig, num_updates: int
) -> optax.GradientTransformation:
  """Makes Adam behind a clip of the gradient's norm.

  Args:
    config: The settings.
    num_updates: Updates of the whole run.
  """
  learning_rate = config.learning_rate
  if config.anneal_learning_rate:
    learning_rate = learner_core.annealed_learning_rate(
        learning_rate, num_updates,
        steps_per_update=config.num_epochs * config.num_minibatches)
  return optax.chain(
      optax.clip_by_global_norm(config.max_gradient_norm),
      optax.adam(learning_rate, eps=config.adam_epsilon))
