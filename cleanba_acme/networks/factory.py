"""Builds the network that a `NetworkConfig` describes."""

from typing import Callable

from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.networks import base
from cleanba_acme.networks import config as config_lib
from cleanba_acme.networks import heads
from cleanba_acme.networks import torsos
import haiku as hk
import jax
import numpy as np


def make_networks(
    spec: specs.EnvironmentSpec,
    config: config_lib.NetworkConfig = config_lib.NetworkConfig(),
) -> base.ActorCritic:
  """Builds the network that a config describes, for an environment.

  Args:
    spec: What the environment shows and accepts.
    config: The choices.

  Returns:
    The `ActorCritic`.

  Raises:
    ValueError: if there is no network for the spec.
  """
  return base.make_actor_critic(
      spec,
      torso=_make_torso_factory(spec.observations, config),
      core=_make_core_factory(config),
      policy_head=heads.make_policy_head(
          spec.actions, config.continuous_policy, config.initial_log_std))


def _make_torso_factory(
    observation_specs: types.ArrayTree,
    config: config_lib.NetworkConfig,
) -> Callable[[], hk.Module]:
  """Returns a function that makes the torso, inside `hk.transform`."""
  name = config.torso
  if name == 'auto':
    leaves = jax.tree.leaves(observation_specs)
    has_pixels = any(
        leaf.dtype == np.uint8 and len(leaf.shape) == 3 for leaf in leaves)
    name = 'resnet' if has_pixels else 'mlp'
  make_torso = {
      'mlp': torsos.MLP,
      'nature': torsos.NatureCNN,
      'resnet': torsos.ResNet,
      'conv': torsos.ConvNet,
  }[name]
  sizes = {
      field: getattr(config, field)
      for field in ('channels', 'kernels', 'strides', 'hiddens')
      if getattr(config, field) is not None}
  return lambda: make_torso(**sizes)


def _make_core_factory(config: config_lib.NetworkConfig):
  """Returns a function that makes the core, or None for a config without."""
  if config.core == 'none':
    return None
  make_core = {'lstm': hk.LSTM, 'gru': hk.GRU}[config.core]
  return lambda: make_core(config.core_size)
