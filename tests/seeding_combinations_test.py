"""All keys of a run are distinct, and no other run has one of them."""

import functools

from cleanba_acme import seeding
import jax
import numpy as np
import pytest

_NUM_ENVS = 100
_NUM_STEPS = 100
_NUM_UPDATES = 500
_NUM_EPOCHS = 4
_SEEDS = (0, 1, 2, 3, 1000, seeding.MAX_SEED)


@functools.lru_cache(None)
def _keys(seed):
  """Returns keys `[K, 2]` by what they are for, for each step they are used in.
  """
  fold = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))

  def by_environment_and_step(purpose, num_envs, num_steps):
    keys = seeding.environment_keys(
        seeding.purpose_key(seed, purpose), range(num_envs))
    return np.concatenate([
        keys, *[fold(key, np.arange(num_steps)) for key in keys]])

  shuffling = seeding.purpose_key(seed, seeding.Purpose.SHUFFLING)
  updates = np.asarray(fold(shuffling, np.arange(_NUM_UPDATES)))
  return {
      seeding.Purpose.INIT:
          np.asarray([seeding.purpose_key(seed, seeding.Purpose.INIT)]),
      seeding.Purpose.ACTING: by_environment_and_step(
          seeding.Purpose.ACTING, _NUM_ENVS, _NUM_STEPS),
      # An update splits its key into one per epoch.
      seeding.Purpose.SHUFFLING: np.concatenate([
          updates,
          *np.asarray(jax.vmap(
              lambda key: jax.random.split(key, _NUM_EPOCHS))(updates))]),
      seeding.Purpose.EVALUATION: by_environment_and_step(
          seeding.Purpose.EVALUATION, 10, _NUM_STEPS),
  }


def _count_distinct(keys):
  return len(np.unique(np.asarray(keys), axis=0))


@pytest.mark.parametrize('seed', _SEEDS)
def test_keys_of_a_run_are_distinct_by_purpose_environment_and_step(seed):
  by_purpose = _keys(seed)
  assert set(by_purpose) == set(seeding.Purpose)
  assert len(by_purpose[seeding.Purpose.ACTING]) == (
      _NUM_ENVS * _NUM_STEPS + _NUM_ENVS)
  keys = np.concatenate(list(by_purpose.values()))
  assert len(keys) > 10_000
  assert _count_distinct(keys) == len(keys)


def test_no_two_seeds_share_a_key():
  keys = np.concatenate([
      keys for seed in _SEEDS for keys in _keys(seed).values()])
  assert _count_distinct(keys) == len(keys)


def test_no_two_seeds_share_an_environment_seed():
  # Of 128 environments each, so some 38,000 seeds of environments.
  first = np.sort([
      seeding.environment_seed(seed, boundary)
      for seed in range(100) for boundary in range(2)]
                  + [seeding.environment_seed(seed) for seed in
                     range(2**32 - 100, 2**32)])
  assert np.diff(first).min() >= 128
