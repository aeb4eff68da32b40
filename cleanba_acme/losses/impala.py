"""IMPALA's loss with V-trace (Espeholt et al. 2018, arXiv 1802.01561).

Shape letters: T, time; B, environments.
"""

from typing import Dict, Tuple

import chex
from cleanba_acme import types
from cleanba_acme.losses import masking
import jax
import jax.numpy as jnp
import rlax


def vtrace(
    reward: types.Array,
    discount: types.Array,
    step_type: types.Array,
    value: types.Array,
    log_rho: types.Array,
    *,
    gamma: float,
    lambda_: float = 1.,
) -> Tuple[jax.Array, jax.Array]:
  """Estimates errors of the values, and advantages, by V-trace.

  Equation 1 of the paper, within episodes: an estimate ends with its episode,
  at the value of the `LAST` row if that was a truncation, or with the rollout,
  at the value of row `T`. Importance ratios are truncated at 1 everywhere.

  Args:
    reward: `[T+1, B]` as in `types.Rollout`.
    discount: `[T+1, B]` the environment's discounts, without gamma.
    step_type: `[T+1, B]` values of `dm_env.StepType`.
    value: `[T+1, B]` current values of the rows.
    log_rho: `[T, B]` logarithm of the importance ratio, current over behaviour
      policy, of the actions taken.
    gamma: Discount factor of the agent.
    lambda_: Exponential weight of longer returns (remark 2 of the paper).

  Returns:
    Errors `[T, B]`, V-trace targets minus values; only the values subtracted
    carry a gradient. Advantages `[T, B]` of the policy gradient, without any.
    Both are 0 for dummy steps.
  """
  chex.assert_rank([reward, discount, step_type, value, log_rho], 2)
  chex.assert_type([reward, discount, step_type, value, log_rho],
                   [float, float, int, float, float])
  chex.assert_equal_shape([reward, discount, step_type, value])
  chex.assert_equal_shape([reward[1:], log_rho])

  v_tm1, v_t, r_t = value[:-1], value[1:], reward[1:]
  discount_t = gamma * discount[1:]
  lambda_t = lambda_ * masking.unbroken_traces(step_type)
  mask = masking.valid_steps(step_type)
  # A dummy step's action is arbitrary and its ratio may overflow. Truncation
  # makes that harmless, but not for gradients: zero times infinity is no zero.
  rho_tm1 = jnp.exp(jax.lax.stop_gradient(log_rho))
  estimates = jax.vmap(
      rlax.vtrace_td_error_and_advantage, in_axes=1, out_axes=1)(
          v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_t)
  return (mask * estimates.errors,
          mask * jax.lax.stop_gradient(estimates.pg_advantage))


def impala_loss(
    log_prob: types.Array,
    value: types.Array,
    entropy: types.Array,
    *,
    reward: types.Array,
    discount: types.Array,
    step_type: types.Array,
    behaviour_log_prob: types.Array,
    gamma: float,
    lambda_: float,
    value_cost: float,
    entropy_cost: float,
) -> Tuple[jax.Array, Dict[str, jax.Array]]:
  """Computes IMPALA's loss (section 4.2 of the paper).

  Loss and metrics are *sums* over the valid steps of time and environments, as
  in Cleanba, so those of the parts of a batch add up to those of the whole.
  Only environments can be split: V-trace needs a rollout's whole time.

  Args:
    log_prob: `[T, B]` of the actions taken, under the current policy.
    value: `[T+1, B]` current values of the rows; row `T` bootstraps.
    entropy: `[T, B]` of the current policy.
    reward: `[T+1, B]` as in `types.Rollout`.
    discount: `[T+1, B]` the environment's discounts, without gamma.
    step_type: `[T+1, B]` values of `dm_env.StepType`.
    behaviour_log_prob: `[T, B]` of the actions taken, when they were.
    gamma: Discount factor of the agent.
    lambda_: Exponential weight of longer returns in V-trace.
    value_cost: Weight of the value loss, `0.5 * error^2`.
    entropy_cost: Weight of the entropy bonus.

  Returns:
    The loss, a scalar, and a dict of scalars: `policy_loss`, `value_loss`,
    `entropy`, and `valid_steps`, over whose number the others are sums.
  """
  chex.assert_rank([log_prob, behaviour_log_prob, entropy, step_type], 2)
  chex.assert_type([log_prob, behaviour_log_prob, entropy], float)
  chex.assert_equal_shape(
      [log_prob, behaviour_log_prob, entropy, step_type[1:]])

  errors, advantages = vtrace(
      reward, discount, step_type, value, log_prob - behaviour_log_prob,
      gamma=gamma, lambda_=lambda_)
  mask = masking.valid_steps(step_type)
  metrics = {
      'policy_loss': -jnp.sum(advantages * log_prob),
      'value_loss': jnp.sum(0.5 * jnp.square(errors)),
      'entropy': jnp.sum(mask * entropy),
      'valid_steps': jnp.sum(mask),
  }
  loss = (metrics['policy_loss']
          + value_cost * metrics['value_loss']
          - entropy_cost * metrics['entropy'])
  return loss, metrics
