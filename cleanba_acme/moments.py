"""Running mean and variance, updated batch by batch."""

from typing import NamedTuple, Optional, Tuple

from cleanba_acme import types
import jax.numpy as jnp

_EPSILON = 1e-8


class Moments(NamedTuple):
  """Mean and variance of a stream of values.

  Attributes:
    count: float32 scalar, how many there were; 0 for a new one.
    mean: `[...]`.
    variance: `[...]`; 1 for a new one.
  """
  count: types.Array
  mean: types.Array
  variance: types.Array


def init(shape: Tuple[int, ...] = ()) -> Moments:
  """Returns the moments of no values, which change nothing."""
  return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def update(
    moments: Moments,
    values: types.Array,
    mask: Optional[types.Array] = None,
) -> Moments:
  """Adds a batch of values (Chan et al. 1979, equation 2.1).

  Args:
    moments: Of the values so far.
    values: `[M, ...]`.
    mask: `[M]` booleans, which values count; by default all, otherwise at least
      one of this or an earlier batch.
  """
  if mask is None:
    size, where = values.shape[0], None
  else:
    where = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    size = jnp.sum(mask)
    # A batch of none has no mean: a value that does not count stands in for it.
    where = where | (size == 0)
  count = moments.count + size
  delta = jnp.mean(values, axis=0, where=where) - moments.mean
  variance = jnp.var(values, axis=0, where=where)
  sum_of_squares = (
      moments.variance * moments.count + variance * size
      + jnp.square(delta) * moments.count * size / count)
  return Moments(
      count, moments.mean + delta * size / count, sum_of_squares / count)


def deviation(moments: Moments) -> types.Array:
  """Returns the standard deviation `[...]`, never 0."""
  return jnp.sqrt(moments.variance + _EPSILON)
