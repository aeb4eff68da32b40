"""Tests of where randomness comes from."""

from cleanba_acme import seeding
import jax
import numpy as np
import pytest


def _rows(keys):
  return {tuple(np.asarray(key).tolist()) for key in keys}


def test_no_two_purposes_environments_or_seeds_share_a_key():
  keys = [
      key for seed in (0, 1, 2, seeding.MAX_SEED)
      for purpose in seeding.Purpose
      for key in [
          seeding.purpose_key(seed, purpose),
          *seeding.environment_keys(
              seeding.purpose_key(seed, purpose), range(100))]]
  assert len(_rows(keys)) == len(keys) == 4 * 4 * 101


def test_keys_of_steps_are_distinct():
  keys = seeding.environment_keys(
      seeding.purpose_key(1, seeding.Purpose.ACTING), range(50))
  fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
  steps = [key for step in range(50) for key in fold(keys, step)]
  assert len(_rows(steps)) == 50 * 50


def test_key_belongs_to_the_environment_and_not_to_its_row():
  key = seeding.purpose_key(3, seeding.Purpose.ACTING)
  whole = seeding.environment_keys(key, range(8))
  halves = [seeding.environment_keys(key, range(first, first + 4))
            for first in (0, 4)]
  np.testing.assert_array_equal(whole, np.concatenate(halves))


def test_environment_seeds_of_neighbouring_runs_do_not_overlap():
  seeds = sorted(
      seeding.environment_seed(seed, boundary)
      for seed in range(30) for boundary in range(30))
  # Environment i has the seed of environment 0 plus i.
  assert np.diff(seeds).min() > 128


@pytest.mark.parametrize('seed', [0, 1, 12345, seeding.MAX_SEED])
def test_environment_seeds_are_what_envpool_takes(seed):
  for boundary in (0, 1, 10**6):
    first = seeding.environment_seed(seed, boundary)
    assert 0 <= first and first + seeding.MAX_NUM_ENVS < 2**31
    assert first == seeding.environment_seed(seed, boundary)


def test_numbers_are_part_of_the_identity_of_a_run():
  # A change here is a change of every run's results.
  assert [seeding.environment_seed(1, boundary) for boundary in (0, 1)] == [
      1321514315, 1811653724]
  assert seeding.purpose_key(1, seeding.Purpose.ACTING).tolist() == [
      1948878966, 4237131848]
