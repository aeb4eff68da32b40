"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347).

Shape letters: T, time; B, environments.
"""

from typing import Dict, Tuple

import chex
from cleanba_acme import types
from cleanba_acme.losses import masking
import jax
import jax.numpy as jnp
import rlax


def generalized_advantages(
    reward: types.Array,
    discount: types.Array,
    step_type: types.Array,
    value: types.Array,
    *,
    gamma: float,
    lambda_: float,
) -> Tuple[jax.Array, jax.Array]:
  """Estimates advantages by GAE (Schulman et al. 2015, arXiv 1506.02438).

  Equation 16 there, within episodes: an estimate ends with its episode, at the
  value of the `LAST` row if that was a truncation, or with the rollout, at the
  value of row `T`.

  Args:
    reward: `[T+1, B]` as in `types.Rollout`.
    discount: `[T+1, B]` the environment's discounts, without gamma.
    step_type: `[T+1, B]` values of `dm_env.StepType`.
    value: `[T+1, B]` values of the rows.
    gamma: Discount factor of the agent.
    lambda_: Exponential weight of longer returns.

  Returns:
    Advantages `[T, B]`, and targets `[T, B]` of the values of rows 0 to T-1.
    Dummy steps have advantage 0, and their value as its own target.
  """
  chex.assert_rank([reward, discount, step_type, value], 2)
  chex.assert_type([reward, discount, step_type, value],
                   [float, float, int, float])
  chex.assert_equal_shape([reward, discount, step_type, value])

  v_tm1, r_t = value[:-1], reward[1:]
  discount_t = gamma * discount[1:]
  lambda_t = lambda_ * masking.unbroken_traces(step_type)
  advantages = jax.vmap(
      rlax.truncated_generalized_advantage_estimation, in_axes=1, out_axes=1)(
          r_t, discount_t, lambda_t, value)
  advantages *= masking.valid_steps(step_type)
  return advantages, advantages + v_tm1


def ppo_loss(
    log_prob: types.Array,
    value: types.Array,
    entropy: types.Array,
    *,
    behaviour_log_prob: types.Array,
    advantage: types.Array,
    value_target: types.Array,
    weight: types.Array,
    clip_epsilon: float,
    value_cost: float,
    entropy_cost: float,
) -> Tuple[jax.Array, Dict[str, jax.Array]]:
  """Computes PPO's loss (equation 9), the clipped surrogate of equation 7.

  Loss and metrics are sums of `weight` times a term per step, without any
  normalisation, so that those of the parts of a batch add up to those of the
  whole. With `weight = mask / max(1, sum(mask))`, where mask is
  `masking.valid_steps` and the sum is over the whole minibatch, they are means
  over its valid steps.

  All arrays have the same shape: `[T, B]`, or that of any choice of steps.

  Args:
    log_prob: Of the actions taken, under the current policy.
    value: Current value of the rows acted upon.
    entropy: Of the current policy.
    behaviour_log_prob: Of the actions taken, when they were.
    advantage: Advantages, already normalised if they are to be.
    value_target: Targets of the values.
    weight: Weight of each step; 0 for dummy steps.
    clip_epsilon: How far the probability ratio counts, away from 1.
    value_cost: Weight of the value loss, `0.5 * (value - target)^2`.
    entropy_cost: Weight of the entropy bonus.

  Returns:
    The loss, a scalar, and a dict of scalars: `policy_loss`, `value_loss`,
    `entropy`, `approx_kl` (from behaviour to current policy) and
    `clip_fraction` (of the ratios that are clipped).
  """
  arrays = [log_prob, value, entropy, behaviour_log_prob, advantage,
            value_target, weight]
  chex.assert_equal_shape(arrays)
  chex.assert_type(arrays, float)

  # A dummy step's action is arbitrary: its ratio may overflow, and zero times
  # infinity is no zero.
  log_ratio = jnp.where(weight > 0, log_prob - behaviour_log_prob, 0.)
  ratio = jnp.exp(log_ratio)
  # RLax averages over a batch: a batch of one step gives the terms themselves.
  policy_losses = jnp.vectorize(
      lambda r, a: rlax.clipped_surrogate_pg_loss(
          r[None], a[None], clip_epsilon))(ratio, advantage)
  value_losses = rlax.l2_loss(value, value_target)
  # The estimator k3 of http://joschu.net/blog/kl-approx.html.
  kls = ratio - 1. - log_ratio
  is_clipped = (jnp.abs(ratio - 1.) > clip_epsilon).astype(weight.dtype)

  metrics = {
      'policy_loss': jnp.sum(weight * policy_losses),
      'value_loss': jnp.sum(weight * value_losses),
      'entropy': jnp.sum(weight * entropy),
      'approx_kl': jnp.sum(weight * kls),
      'clip_fraction': jnp.sum(weight * is_clipped),
  }
  loss = (metrics['policy_loss']
          + value_cost * metrics['value_loss']
          - entropy_cost * metrics['entropy'])
  return loss, metrics
