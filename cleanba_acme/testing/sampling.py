"""Random values that a spec allows."""

from cleanba_acme import specs
import numpy as np


def sample(
    spec: specs.Array, rng: np.random.Generator, *batch: int) -> np.ndarray:
  """Returns random values `[*batch, ...]` that a spec allows."""
  shape = (*batch, *spec.shape)
  minimum = np.asarray(getattr(spec, 'minimum', -np.inf), np.float64)
  maximum = np.asarray(getattr(spec, 'maximum', np.inf), np.float64)
  if spec.dtype == np.bool_:
    return rng.random(shape) < 0.5
  if np.issubdtype(spec.dtype, np.integer):
    minimum, maximum = np.clip((minimum, maximum), *(
        (0, 255) if spec.dtype == np.uint8 else (-1000, 1000)))
    return rng.integers(minimum.astype(int), maximum.astype(int),
                        shape, endpoint=True).astype(spec.dtype)
  bounded = np.isfinite(minimum) & np.isfinite(maximum)
  low, high = np.where(bounded, minimum, 0), np.where(bounded, maximum, 1)
  uniform = low + (high - low) * rng.random(shape)
  values = np.where(bounded, uniform, np.clip(
      rng.normal(size=shape), minimum, maximum))
  return values.astype(spec.dtype)
