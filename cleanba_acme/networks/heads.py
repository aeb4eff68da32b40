"""Heads: from features to a policy over the actions of a spec, and to a value.

Shape letters:
  T, B: time, environments.
  F: features.
  K: dimensions of an action.

Policies are Distrax distributions of batch shape `[T, B]` whose leaves all
start with `[T, B]`, so that they can be indexed and mapped over like arrays:
`jax.tree.map(lambda x: x[0], policy)`.
"""

from typing import Callable, Tuple

from cleanba_acme import specs
from cleanba_acme import types
import distrax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

# From features [..., F] to a policy; called inside `hk.transform`.
PolicyHead = Callable[[jax.Array], distrax.Distribution]

# Cleanba starts from a nearly uniform policy, and from values of order 1.
_POLICY_INIT = hk.initializers.Orthogonal(0.01)
_VALUE_INIT = hk.initializers.Orthogonal(1.)

# Nodes and weights to integrate over a standard normal distribution.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

# The largest |tanh| that float32 tells apart from 1 with a digit to spare. Its
# inverse, 7.3, bounds what log-probabilities see of a saturated action.
_MAX_TANH = 1. - 1e-6


def make_policy_head(
    spec: specs.Array,
    continuous_policy: str = 'tanh',
    initial_log_std: float = 0.,
) -> PolicyHead:
  """Chooses the policy that fits an action spec.

  | action spec                              | policy                        |
  |------------------------------------------|-------------------------------|
  | `DiscreteArray`, bounded integer scalar  | `distrax.Categorical`         |
  | `BoundedArray` of integers               | independent categoricals      |
  | `BoundedArray` of floats, finite bounds  | independent Gaussians,        |
  |                                          | squashed or clipped           |

  Integers are counted from the spec's minimum, floats are in the units of the
  spec; `to_environment` makes either acceptable to the environment.

  Args:
    spec: The action spec of one environment.
    continuous_policy: For float actions, `'tanh'`: a Gaussian squashed to the
      bounds; or `'clipped'`: a Gaussian over all numbers, whose samples are
      clipped to the bounds on their way to the environment only.
    initial_log_std: For float actions, initial logarithm of the standard
      deviation, in units of half the distance between the bounds.

  Returns:
    A function from features `[..., F]` to a distribution of batch shape `[...]`
    and event shape `spec.shape`, to be called inside `hk.transform`.

  Raises:
    ValueError: if there is no policy for the spec.
  """
  bounded = isinstance(spec, specs.BoundedArray)
  if bounded and np.issubdtype(spec.dtype, np.integer):
    num_values = np.broadcast_to(
        spec.maximum.astype(np.int64) - spec.minimum + 1, spec.shape)
    return lambda features: _categorical(features, num_values)
  if bounded and np.issubdtype(spec.dtype, np.floating):
    width = spec.maximum - spec.minimum
    if np.all(np.isfinite(width) & (width > 0)):
      make = {'tanh': _tanh_normal, 'clipped': _normal}[continuous_policy]
      return lambda features: make(features, spec, initial_log_std)
  raise ValueError(
      f'Action spec {spec!r} is not supported: it must be a DiscreteArray, a '
      'BoundedArray of integers, or a BoundedArray of floats with finite '
      'bounds that differ.')


def value_head(features: jax.Array) -> jax.Array:
  """Maps features `[..., F]` to values `[...]`, inside `hk.transform`."""
  return hk.Linear(1, w_init=_VALUE_INIT, name='value')(features)[..., 0]


def sample(
    policy: distrax.Distribution,
    keys: types.PRNGKey,
) -> jax.Array:
  """Samples every row with its own key, so that no row depends on another.

  Args:
    policy: Distribution of batch shape `[B]`.
    keys: `[B]` keys.

  Returns:
    Actions `[B, ...]`.
  """
  return jax.vmap(lambda row, key: row.sample(seed=key))(policy, keys)


def to_environment(
    spec: specs.BoundedArray,
    action: types.Array,
) -> types.Array:
  """Turns a policy's action into one that the environment accepts.

  Training uses the policy's own action: the log-probability of a clipped one
  would be that of another action.

  Args:
    spec: The action spec of one environment.
    action: `[B, ...]` as sampled, of numpy or JAX.

  Returns:
    `[B, ...]` within the bounds of the spec and of its dtype.
  """
  if np.issubdtype(spec.dtype, np.integer):
    action = action + spec.minimum
  return action.clip(spec.minimum, spec.maximum).astype(spec.dtype)


def _categorical(
    features: jax.Array,
    num_values: np.ndarray,
) -> distrax.Distribution:
  """Makes one categorical per entry of `num_values`, a joint of them all."""
  logits = hk.Linear(
      int(num_values.sum()), w_init=_POLICY_INIT, name='policy')(features)
  if not num_values.shape:
    return distrax.Categorical(logits)
  # Dimensions may differ in size: spread the logits over a rectangle, where
  # what is past the end of a dimension has probability 0.
  index = np.arange(num_values.max())
  exists = index < num_values[..., None]  # [K, max(num_values)]
  starts = np.cumsum(num_values).reshape(num_values.shape) - num_values
  source = np.where(exists, starts[..., None] + index, 0)
  logits = jnp.where(
      exists, logits[..., source], jnp.finfo(logits.dtype).min)
  return distrax.Independent(distrax.Categorical(logits), num_values.ndim)


def _normal(
    features: jax.Array,
    spec: specs.BoundedArray,
    initial_log_std: float,
) -> distrax.Distribution:
  """Makes a Gaussian at the scale of the bounds, that ignores them."""
  mean, std = _mean_and_std(features, spec, initial_log_std)
  center, radius = _center_and_radius(spec, mean)
  return distrax.Independent(
      distrax.Normal(center + radius * mean, radius * std), len(spec.shape))


def _tanh_normal(
    features: jax.Array,
    spec: specs.BoundedArray,
    initial_log_std: float,
) -> distrax.Distribution:
  """Makes a Gaussian that is squashed to the bounds."""
  mean, std = _mean_and_std(features, spec, initial_log_std)
  return distrax.Independent(
      TanhNormal(mean, std, *_center_and_radius(spec, mean)), len(spec.shape))


def _mean_and_std(
    features: jax.Array,
    spec: specs.BoundedArray,
    initial_log_std: float,
) -> Tuple[jax.Array, jax.Array]:
  """Returns mean (of features) and deviation (of none), both `[..., *shape]`.
  """
  mean = hk.Linear(
      int(np.prod(spec.shape)), w_init=_POLICY_INIT, name='policy')(features)
  mean = mean.reshape(features.shape[:-1] + spec.shape)
  log_std = hk.get_parameter(
      'log_std', spec.shape, init=hk.initializers.Constant(initial_log_std))
  return mean, jnp.broadcast_to(jnp.exp(log_std), mean.shape)


def _center_and_radius(
    spec: specs.BoundedArray,
    like: jax.Array,
) -> Tuple[jax.Array, jax.Array]:
  """Returns the middle between the bounds and half their distance."""
  minimum = spec.minimum.astype(np.float64)
  maximum = spec.maximum.astype(np.float64)
  broadcast = lambda x: jnp.broadcast_to(x.astype(like.dtype), like.shape)
  return broadcast((minimum + maximum) / 2), broadcast((maximum - minimum) / 2)


class TanhNormal(distrax.Transformed):
  """A Gaussian squashed by tanh, then stretched: `center + radius * tanh(x)`.

  Log-probabilities are those of the stretched variable. An action so close to
  a bound that float32 cannot tell it apart counts as the closest one it can, so
  the log-probability of every action is finite, and the same for whoever
  computes it from the action: actor or learner.
  """

  def __init__(
      self,
      loc: jax.Array,
      scale: jax.Array,
      center: jax.Array,
      radius: jax.Array,
  ):
    """Initialises the distribution; all arguments have its batch shape.

    Args:
      loc: Mean of the Gaussian.
      scale: Standard deviation of the Gaussian.
      center: Middle of the support.
      radius: Half the width of the support.
    """
    super().__init__(distrax.Normal(loc, scale), _StretchedTanh(center, radius))

  # The base class finds these by tracing, and remembers them where mapping or
  # indexing over the leaves makes them wrong.
  batch_shape = property(lambda self: self.distribution.batch_shape)
  event_shape = property(lambda self: ())
  dtype = property(lambda self: self.distribution.dtype)

  def mode(self) -> jax.Array:
    """Returns the median, `center + radius * tanh(loc)`: the greedy action.

    The density itself peaks at the bounds once the Gaussian is wide.
    """
    return self.bijector.forward(self.distribution.mode())

  def entropy(self) -> jax.Array:
    """Returns the differential entropy, which has no closed form.

    It is that of the Gaussian plus the expected logarithm of the squashing's
    derivative, which is a smooth integral in one dimension: Gauss-Hermite
    quadrature finds it without samples, to 1e-5 for scales up to 1 and to 1e-3
    for scales up to 2.
    """
    gaussian = self.distribution
    nodes = _NODES.reshape((-1,) + (1,) * gaussian.loc.ndim)
    log_derivatives = self.bijector.forward_log_det_jacobian(
        gaussian.loc + gaussian.scale * nodes.astype(gaussian.dtype))
    return gaussian.entropy() + jnp.tensordot(
        _WEIGHTS.astype(gaussian.dtype), log_derivatives, axes=1)


class _StretchedTanh(distrax.Bijector):
  """`center + radius * tanh(x)`, with an inverse that is finite at the bounds.

  A chain of Distrax's bijectors would remember shapes, as above.
  """

  def __init__(self, center: jax.Array, radius: jax.Array):
    super().__init__(event_ndims_in=0)
    self._center = center
    self._radius = radius

  def forward_and_log_det(self, x: jax.Array) -> Tuple[jax.Array, jax.Array]:
    y, log_det = distrax.Tanh().forward_and_log_det(x)
    return self._center + self._radius * y, log_det + jnp.log(self._radius)

  def inverse_and_log_det(self, y: jax.Array) -> Tuple[jax.Array, jax.Array]:
    y = jnp.clip((y - self._center) / self._radius, -_MAX_TANH, _MAX_TANH)
    x, log_det = distrax.Tanh().inverse_and_log_det(y)
    return x, log_det - jnp.log(self._radius)
