"""Recurrent cores, reset at the first step of every episode.

Shape letters: T, time; B, environments; F, features.
"""

from typing import Tuple

import chex
from cleanba_acme import types
import haiku as hk
import jax


def unroll(
    core: hk.RNNCore,
    inputs: jax.Array,
    is_first: jax.Array,
    state: types.ArrayTree,
) -> Tuple[jax.Array, types.ArrayTree]:
  """Runs a core over time, from its initial state wherever an episode starts.

  Args:
    core: Any Haiku core, e.g. `hk.LSTM(256)`.
    inputs: `[T, B, F]`.
    is_first: `[T, B]` bool; true in the first row of an episode.
    state: Tree of `[B, ...]`, the state before row 0.

  Returns:
    The outputs `[T, B, F]` and the state after the last row.
  """
  chex.assert_rank([inputs, is_first], [3, 2])
  chex.assert_type(is_first, bool)
  chex.assert_equal_shape_prefix([inputs, is_first], 2)

  core = hk.ResetCore(core)
  if inputs.shape[0] == 1:  # An actor's step needs no loop.
    outputs, state = core((inputs[0], is_first[0]), state)
    return outputs[None], state
  return hk.dynamic_unroll(core, (inputs, is_first), state)
