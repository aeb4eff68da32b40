"""Networks that normalise their observations by running statistics.

The statistics are part of the parameters: checkpoints and fingerprints cover
them, and they reach the actors with the version they belong to. They change
only when the learner calls `observe`, once per round.
"""

from typing import Any, NamedTuple

from cleanba_acme import moments as moments_lib
from cleanba_acme import types
from cleanba_acme.networks import base
import jax
import jax.numpy as jnp
import numpy as np

# Normalised values further out are clipped, as is customary.
_MAX_DEVIATIONS = 10.0


class NormalizedParams(NamedTuple):
  """Parameters of a network that normalises its observations.

  Attributes:
    network: Parameters of the network proper.
    moments: Tree of `Moments` like the observation, None for the leaves that
      are left as they are.
  """
  network: types.Params
  moments: Any


def normalize_observations(
    networks: base.ActorCritic,
    observation_spec: types.ArrayTree,
) -> base.ActorCritic:
  """Makes networks that shift and scale their float observations.

  Args:
    networks: What sees the normalised observations.
    observation_spec: Tree of specs; leaves that aren't floats stay as they are.
  """
  def init(key: types.PRNGKey) -> NormalizedParams:
    return NormalizedParams(networks.init(key), jax.tree.map(
        lambda spec: (
            moments_lib.init(spec.shape)
            if np.issubdtype(spec.dtype, np.floating) else None),
        observation_spec))

  def apply(params: NormalizedParams, observation, is_first, core_state):
    def normalize(leaf, moments):
      if moments is None:
        return leaf
      moments = jax.lax.stop_gradient(moments)  # Not for the optimiser.
      deviations = (leaf - moments.mean) / moments_lib.deviation(moments)
      return jnp.clip(deviations, -_MAX_DEVIATIONS, _MAX_DEVIATIONS)
    return networks.apply(
        params.network,
        jax.tree.map(normalize, observation, params.moments),
        is_first, core_state)

  def observe(params: NormalizedParams, observation) -> NormalizedParams:
    return params._replace(
        network=networks.observe(params.network, observation),
        moments=jax.tree.map(
            lambda leaf, moments: (
                None if moments is None else moments_lib.update(moments, leaf)),
            observation, params.moments))

  return base.ActorCritic(init, networks.initial_state, apply, observe)
