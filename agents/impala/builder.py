"""Builds IMPALA from the components."""

from typing import Callable

from cleanba_acme import actor_core
from cleanba_acme import builder
from cleanba_acme import learner_core
from cleanba_acme import reward_scaling
from cleanba_acme import types
from cleanba_acme.agents.impala import config as config_lib
from cleanba_acme.losses import impala
from cleanba_acme.networks import base as networks_lib
import dm_env
import jax
import optax


class IMPALABuilder:
  """IMPALA over feed-forward and recurrent networks.

  A round is one pass, split along the environments: V-trace needs whole
  rollouts.
  """

  def __init__(
      self,
      config: config_lib.IMPALAConfig,
      loss: Callable[..., tuple] = impala.impala_loss,
  ):
    """Makes the builder.

    Args:
      config: The settings.
      loss: Called as `losses.impala.impala_loss` is.
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
        networks, (actor_core.LOG_PROB,), evaluation)

  def make_learner_core(
      self,
      networks: networks_lib.ActorCritic,
      sizes: builder.RunSizes,
      execution: learner_core.Execution = learner_core.Execution(),
  ) -> learner_core.LearnerCore:
    """See `builder.Builder`."""
    config = self._config

    def loss(params: types.Params, rollout: types.Rollout):
      distribution, value, _ = networks.apply(
          params, rollout.observation,
          rollout.step_type == dm_env.StepType.FIRST, rollout.core_state)
      acted = jax.tree.map(lambda x: x[:-1], distribution)
      return self._loss(
          acted.log_prob(rollout.action), value, acted.entropy(),
          reward=rollout.reward,
          discount=rollout.discount,
          step_type=rollout.step_type,
          behaviour_log_prob=rollout.extras[actor_core.LOG_PROB][:-1],
          gamma=config.discount,
          lambda_=config.vtrace_lambda,
          value_cost=config.value_cost,
          entropy_cost=config.entropy_cost)

    core = learner_core.make_learner_core(
        networks,
        optimizer=make_optimizer(config, sizes.num_updates),
        prepare=lambda rollout: rollout,
        select=learner_core.select_environments,
        loss=loss,
        minibatching=learner_core.Minibatching(
            num_samples=sizes.num_envs,
            num_epochs=1,
            num_minibatches=config.num_minibatches,
            shuffle=False),
        execution=execution)
    if config.scale_rewards:
      core = reward_scaling.scale_rewards(
          core, config.discount, sizes.num_envs)
    return core


def make_optimizer(
    config: config_lib.IMPALAConfig, num_updates: int
) -> optax.GradientTransformation:
  """Makes PyTorch's RMSProp behind a clip of the gradient's norm.

  Args:
    config: The settings.
    num_updates: Updates of the whole run.
  """
  learning_rate = config.learning_rate
  if config.anneal_learning_rate:
    learning_rate = learner_core.annealed_learning_rate(
        learning_rate, num_updates, steps_per_update=config.num_minibatches)
  return optax.chain(
      optax.clip_by_global_norm(config.max_gradient_norm),
      optax.rmsprop(
          learning_rate, decay=config.rmsprop_decay,
          eps=config.rmsprop_epsilon, eps_in_sqrt=False))
