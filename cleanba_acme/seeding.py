"""Where randomness comes from: one run seed, split by purpose and environment.

Randomness belongs to the environment, never to the worker that steps it, so
that the same environments split over other actors see the same numbers. No two
purposes, environments or steps of a run share a key, and runs with
neighbouring seeds share neither keys nor environment seeds.
"""

import enum
from typing import Sequence

from cleanba_acme import types
import jax
import jax.numpy as jnp
import numpy as np

# envpool takes a C++ int and seeds environment `i` with `seed + i`; the last
# million stays free so that the sum can't overflow.
MAX_NUM_ENVS = 1_000_000
_MAX_ENVIRONMENT_SEED = 2**31 - 1 - MAX_NUM_ENVS
MAX_SEED = 2**32 - 1


class Purpose(enum.IntEnum):
  """What a key is for. The numbers are part of a run's identity."""
  INIT = 0
  ACTING = 1
  SHUFFLING = 2
  EVALUATION = 3


def purpose_key(seed: int, purpose: Purpose) -> types.PRNGKey:
  """Returns the key of one purpose of the run with this seed."""
  return jax.random.fold_in(jax.random.PRNGKey(seed), int(purpose))


def environment_keys(key: types.PRNGKey,
                     indices: Sequence[int]) -> types.PRNGKey:
  """Returns keys `[B, 2]`, one per *global* environment index."""
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
      key, jnp.asarray(indices, dtype=jnp.uint32))


def environment_seed(seed: int, boundary: int = 0) -> int:
  """Returns the seed of global environment 0; environment `e` adds `e`.

  Args:
    seed: The run's seed.
    boundary: How many times all environments were restarted so far.
  """
  sequence = np.random.SeedSequence(entropy=seed, spawn_key=(boundary,))
  return int(sequence.generate_state(1, np.uint64)[0] % _MAX_ENVIRONMENT_SEED)
