"""Rewards scaled by running statistics of the returns."""

from typing import NamedTuple

from cleanba_acme import learner_core
from cleanba_acme import moments as moments_lib
from cleanba_acme import types
import dm_env
import jax
import jax.numpy as jnp

# Scaled rewards further out are clipped, as is customary.
_MAX_REWARD = 10.0


class RewardStatistics(NamedTuple):
  """What `scale_rewards` keeps in the training state.

  Attributes:
    returns: `[B]` discounted sum of the rewards up to now, per environment.
    moments: Moments of those sums.
  """
  returns: types.Array
  moments: moments_lib.Moments


def scale_rewards(
    core: learner_core.LearnerCore,
    discount: float,
    num_envs: int,
) -> learner_core.LearnerCore:
  """Makes a core that divides rewards by the deviation of discounted returns.

  The sums run over each environment's rewards up to the present, from its last
  `FIRST` on, as in PPO's code for MuJoCo (Engstrom et al. 2020,
  arXiv:2005.12729, section 3); dummy steps don't count. They are updated once
  per round, in order of time over the global batch; a round's rewards are
  scaled by statistics that include them.

  Args:
    core: Sees the scaled rewards.
    discount: Discount factor of the sums.
    num_envs: `B` of the global batch.
  """
  def init(init_key: types.PRNGKey,
           shuffling_key: types.PRNGKey) -> types.TrainingState:
    return core.init(init_key, shuffling_key)._replace(
        reward_statistics=RewardStatistics(
            jnp.zeros(num_envs), moments_lib.init()))

  @jax.jit
  def scale(statistics: RewardStatistics, reward, step_type):
    is_first = step_type == dm_env.StepType.FIRST

    def accumulate(returns, row):
      reward_t, is_first_t = row
      returns = jnp.where(is_first_t, 0.0, discount * returns + reward_t)
      return returns, returns

    # Row 0 was row T of the last rollout, and its reward was counted there.
    returns, history = jax.lax.scan(
        accumulate, jnp.where(is_first[0], 0.0, statistics.returns),
        (reward[1:], is_first[1:]))
    # The step into a FIRST row is a dummy: it earns nothing.
    moments = moments_lib.update(
        statistics.moments, history.reshape(-1), ~is_first[1:].reshape(-1))
    scaled = reward / moments_lib.deviation(moments)
    return (RewardStatistics(returns, moments),
            jnp.clip(scaled, -_MAX_REWARD, _MAX_REWARD))

  def update(state: types.TrainingState, rollout: types.Rollout):
    statistics, reward = scale(
        state.reward_statistics, rollout.reward, rollout.step_type)
    state, metrics = core.update(state, rollout._replace(reward=reward))
    return state._replace(reward_statistics=statistics), metrics

  return core._replace(init=init, update=update)
