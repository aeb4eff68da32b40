"""Expectations whose failures say what was expected, and what was seen."""

from typing import Any, Tuple

import jax
import numpy as np

# Programs of other shapes sum in another order; float32 has seven digits.
TOLERANCE = 1e-5


def that(condition: Any, what: str, expected: Any, seen: Any) -> None:
  """Raises AssertionError unless the condition holds."""
  if not condition:
    raise AssertionError(f'{what}: expected {expected}, saw {seen}')


def equal(seen: Any, expected: Any, what: str) -> None:
  """Expects values that compare equal."""
  that(seen == expected, what, expected, seen)


def array(
    seen: Any, shape: Tuple[int, ...], dtype: Any, what: str) -> None:
  """Expects a finite array."""
  that(hasattr(seen, 'shape') and hasattr(seen, 'dtype'), what, 'an array',
       seen)
  that(seen.shape == shape and seen.dtype == dtype, what,
       f'shape {shape} and dtype {np.dtype(dtype)}',
       f'shape {seen.shape} and dtype {seen.dtype}')
  finite(seen, what)


def finite(seen: Any, what: str) -> None:
  """Expects no infinite or undefined numbers."""
  seen = np.asarray(seen)
  if np.issubdtype(seen.dtype, np.floating):
    that(np.isfinite(seen).all(), what, 'finite numbers',
         seen[~np.isfinite(seen)][:3])


def same(
    seen: Any, expected: Any, what: str, tolerance: float = 0.) -> None:
  """Expects trees of equal arrays; the tolerance is relative to the largest."""
  equal(jax.tree.structure(seen), jax.tree.structure(expected),
        f'structure of {what}')
  seen_leaves = jax.tree_util.tree_leaves_with_path(seen)
  for (path, leaf), other in zip(seen_leaves, jax.tree.leaves(expected)):
    leaf, other = np.asarray(leaf), np.asarray(other)
    name = f'{what}, {jax.tree_util.keystr(path)}' if path else what
    equal(leaf.shape, other.shape, f'shape of {name}')
    if tolerance:
      scale = max(1., np.abs(other).max(initial=0))
      differs = np.abs(
          leaf.astype(np.float64) - other.astype(np.float64)
      ) > tolerance * scale
    else:
      differs = leaf != other
    if differs.any():
      place = tuple(int(index) for index in np.argwhere(differs)[0])
      raise AssertionError(f'{name}: expected {other[place]} at {place}, saw '
                           f'{leaf[place]}')
