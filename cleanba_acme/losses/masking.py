"""Which steps of a rollout count, and statistics over those alone.

Shape letters: T, time; B, environments.
"""

import chex
from cleanba_acme import types
import dm_env
import jax
import jax.numpy as jnp


def valid_steps(step_type: types.Array) -> jax.Array:
  """Finds the steps that an action decided.

  After `LAST` the environment ignores the action and starts the next episode:
  that transition is a dummy, of which nothing may be learned.

  Args:
    step_type: `[T+1, B]` integers, values of `dm_env.StepType`.

  Returns:
    `[T, B]` floats: 0 for the step from row `t` to `t + 1` where row `t` is
    `LAST`, 1 elsewhere.
  """
  chex.assert_rank(step_type, 2)
  chex.assert_type(step_type, int)
  return jnp.where(step_type[:-1] == dm_env.StepType.LAST, 0., 1.)


def unbroken_traces(step_type: types.Array) -> jax.Array:
  """Finds the steps beyond which returns may look at sampled rewards.

  Where a step ends an episode, by termination or by truncation, what follows
  belongs to the next one: only the value of the `LAST` row may be used.

  Args:
    step_type: `[T+1, B]` integers, values of `dm_env.StepType`.

  Returns:
    `[T, B]` floats: 0 for the step from row `t` to `t + 1` where row `t + 1`
    is `LAST`, 1 elsewhere.
  """
  chex.assert_rank(step_type, 2)
  chex.assert_type(step_type, int)
  return jnp.where(step_type[1:] == dm_env.StepType.LAST, 0., 1.)


def masked_mean(x: types.Array, mask: types.Array) -> jax.Array:
  """Averages over the entries where the mask is 1; 0 if there are none.

  Args:
    x: Array of any shape.
    mask: Array of the same shape, of 0 and 1.

  Returns:
    The mean, a scalar.
  """
  chex.assert_equal_shape([x, mask])
  return jnp.sum(x * mask) / jnp.maximum(1., jnp.sum(mask))


def masked_std(x: types.Array, mask: types.Array) -> jax.Array:
  """Computes the standard deviation over the entries where the mask is 1.

  Args:
    x: Array of any shape.
    mask: Array of the same shape, of 0 and 1.

  Returns:
    The square root of the mean squared deviation, a scalar.
  """
  return jnp.sqrt(masked_mean(jnp.square(x - masked_mean(x, mask)), mask))


def normalize(
    x: types.Array,
    mask: types.Array,
    epsilon: float = 1e-8,
) -> jax.Array:
  """Brings the entries where the mask is 1 to mean 0 and standard deviation 1.

  Args:
    x: Array of any shape.
    mask: Array of the same shape, of 0 and 1.
    epsilon: Added to the standard deviation.

  Returns:
    Array of the same shape; 0 where the mask is.
  """
  centered = x - masked_mean(x, mask)
  return mask * centered / (masked_std(x, mask) + epsilon)
