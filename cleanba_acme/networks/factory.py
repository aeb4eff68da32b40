"""Builds the network that a `NetworkConfig` describes."""

from typing import Callable

from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.networks import base
from cleanba_acme.networks import config as config_lib
from cleanba_acme.networks import heads
from cleanba_acme.networks import normalization
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
  name = _choose_torso(spec.observations, config)
  torso = _make_torso_factory(name, config)
  separate = config.separate_value_torso
  if separate is None:
    separate = name == 'mlp' and config.core == 'none'
  networks = base.make_actor_critic(
      spec,
      torso=torso,
      core=_make_core_factory(config),
      policy_head=heads.make_policy_head(
          spec.actions, config.continuous_policy, config.initial_log_std),
      value_torso=torso if separate else None)
  if config.normalize_observations:
    networks = normalization.normalize_observations(
        networks, spec.observations)
  return networks


def _choose_torso(
    observation_specs: types.ArrayTree,
    config: config_lib.NetworkConfig,
) -> str:
  """Returns the name of the torso, in place of 'auto' too."""
  if config.torso != 'auto':
    return config.torso
  has_pixels = any(
      leaf.dtype == np.uint8 and len(leaf.shape) == 3
      for leaf in jax.tree.leaves(observation_specs))
  return 'resnet' if has_pixels else 'mlp'


def _make_torso_factory(
    name: str,
    config: config_lib.NetworkConfig,
) -> Callable[[], hk.Module]:
  """Returns a function that makes the torso, inside `hk.transform`."""
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
