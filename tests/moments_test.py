"""Running moments against numpy's of the same numbers."""

from cleanba_acme import moments as moments_lib
import jax
import numpy as np
import pytest


def _batches(shape, sizes=(3, 1, 200, 17)):
  rng = np.random.default_rng(0)
  # Far from 0, where a sum of squares would lose its digits.
  return [rng.normal(1e3, 2., (size, *shape)).astype(np.float32)
          for size in sizes]


def _check(moments, values):
  assert moments.count == len(values)
  np.testing.assert_allclose(moments.mean, np.mean(values, 0), rtol=1e-6)
  np.testing.assert_allclose(moments.variance, np.var(values, 0), rtol=1e-3)


@pytest.mark.parametrize('jit', [False, True])
@pytest.mark.parametrize('shape', [(), (4,), (2, 3)])
def test_equal_numpys_after_every_batch(shape, jit):
  update = jax.jit(moments_lib.update) if jit else moments_lib.update
  moments, seen = moments_lib.init(shape), []
  for batch in _batches(shape):
    moments = update(moments, batch)
    seen.append(batch)
    _check(moments, np.concatenate(seen).astype(np.float64))


@pytest.mark.parametrize('shape', [(), (4,)])
def test_mask_leaves_values_out(shape):
  moments, seen = moments_lib.init(shape), []
  rng = np.random.default_rng(1)
  for batch in _batches(shape):
    mask = rng.random(len(batch)) < 0.5
    mask[0] |= not seen
    batch[~mask] = 1e9
    moments = moments_lib.update(moments, batch, mask)
    seen.append(batch[mask])
    _check(moments, np.concatenate(seen).astype(np.float64))
  _check(moments_lib.update(moments, batch, np.zeros(len(batch), bool)),
         np.concatenate(seen).astype(np.float64))


def test_new_ones_change_nothing():
  moments = moments_lib.init((2,))
  assert moments.count == 0
  np.testing.assert_array_equal(moments.mean, [0, 0])
  np.testing.assert_allclose(moments_lib.deviation(moments), [1, 1])


def test_deviation_of_a_constant_is_not_zero():
  moments = moments_lib.update(moments_lib.init(), np.full(5, 3., np.float32))
  assert moments.variance == 0
  assert moments_lib.deviation(moments) > 0
