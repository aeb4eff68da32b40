"""From what an environment shows to what a network computes with.

Shape letters:
  N: rows, time and environments flattened into one axis.
"""

import chex
from cleanba_acme import specs
from cleanba_acme import types
import jax
import jax.numpy as jnp
import numpy as np


def check_specs(observation_specs: types.ArrayTree):
  """Refuses observations that `preprocess` cannot turn into numbers.

  Args:
    observation_specs: Tree of `dm_env.specs.Array`.

  Raises:
    ValueError: if there is no leaf, or one is neither a number nor a boolean.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(observation_specs)
  if not leaves:
    raise ValueError(f'Observation spec {observation_specs!r} has no leaves.')
  for path, spec in leaves:
    kind = np.dtype(spec.dtype).kind if hasattr(spec, 'dtype') else ''
    if not kind or kind not in 'biuf':
      raise ValueError(
          f'Observation spec {spec!r} at {jax.tree_util.keystr(path) or "root"}'
          ' is not supported: leaves must be dm_env specs of booleans, '
          'integers or floats.')


def preprocess(
    observation_specs: types.ArrayTree,
    observation: types.ArrayTree,
) -> types.ArrayTree:
  """Makes every leaf float32, at the scale networks expect.

  Bytes are pixels or memory and are scaled to [0, 1]; choices out of a
  `DiscreteArray` become one-hot vectors; all other numbers keep their value.
  Scaling happens here, on the device, so that rollouts carry bytes.

  Args:
    observation_specs: Tree of `dm_env.specs.Array`.
    observation: Tree of `[N, ...]` of the same structure.

  Returns:
    Tree of float32 `[N, ...]` of the same structure; leaves of a
    `DiscreteArray` gain a last axis.
  """
  return jax.tree.map(_preprocess_leaf, observation_specs, observation)


def _preprocess_leaf(spec: specs.Array, leaf: types.Array) -> jax.Array:
  chex.assert_shape(leaf, (None,) + spec.shape)
  if isinstance(spec, specs.DiscreteArray):
    return jax.nn.one_hot(leaf, spec.num_values, dtype=jnp.float32)
  leaf = jnp.asarray(leaf, jnp.float32)
  return leaf / 255. if spec.dtype == np.uint8 else leaf
