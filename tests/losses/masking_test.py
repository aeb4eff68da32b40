"""Tests of the masks and of the statistics under them."""

from cleanba_acme.losses import masking
import jax
import numpy as np
import pytest

FIRST, MID, LAST = 0, 1, 2

# One environment per row here; the functions take time first.
_STEP_TYPE = np.array([
    [FIRST, MID, LAST, FIRST, MID],
    [LAST, FIRST, LAST, FIRST, LAST],
], np.int32).T


def test_step_after_last_is_not_valid():
  np.testing.assert_array_equal(
      masking.valid_steps(_STEP_TYPE).T, [[1, 1, 0, 1], [0, 1, 0, 1]])


def test_trace_breaks_at_step_into_last():
  np.testing.assert_array_equal(
      masking.unbroken_traces(_STEP_TYPE).T, [[1, 0, 1, 1], [1, 0, 1, 0]])


@pytest.mark.parametrize('jit', [False, True])
def test_statistics_are_those_of_the_selected_entries(jit):
  rng = np.random.default_rng(0)
  x = rng.normal(3., 2., (5, 4)).astype(np.float32)
  mask = rng.integers(0, 2, (5, 4)).astype(np.float32)
  wrap = jax.jit if jit else lambda f: f
  selected = x[mask > 0].astype(np.float64)

  np.testing.assert_allclose(
      wrap(masking.masked_mean)(x, mask), selected.mean(), rtol=1e-6)
  np.testing.assert_allclose(
      wrap(masking.masked_std)(x, mask), selected.std(), rtol=1e-6)
  expected = np.zeros(x.shape)
  expected[mask > 0] = (selected - selected.mean()) / selected.std()
  np.testing.assert_allclose(
      wrap(masking.normalize)(x, mask), expected, atol=1e-5)


def test_statistics_of_nothing_are_zero():
  x = np.ones((2, 3), np.float32)
  nothing = np.zeros((2, 3), np.float32)
  assert masking.masked_mean(x, nothing) == 0.
  assert masking.masked_std(x, nothing) == 0.
  np.testing.assert_array_equal(masking.normalize(x, nothing), nothing)


def test_wrong_inputs_are_refused():
  with pytest.raises(AssertionError):
    masking.valid_steps(_STEP_TYPE[:, 0])
  with pytest.raises(AssertionError):
    masking.valid_steps(_STEP_TYPE.astype(np.float32))
  with pytest.raises(AssertionError):
    masking.masked_mean(np.ones((2, 3)), np.ones((2, 1)))
