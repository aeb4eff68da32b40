"""What a user can choose about a network. Imports nothing heavy: `--help` does.
"""

import dataclasses
from typing import Optional, Tuple

from cleanba_acme import fields

TORSOS = ('auto', 'mlp', 'nature', 'resnet', 'conv')
CORES = ('none', 'lstm', 'gru')
CONTINUOUS_POLICIES = ('tanh', 'clipped')


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """Chooses a torso, a core and a policy; `factory.make_networks` builds it.

  Every field's help is in its metadata, where the flags find it too. `None`
  leaves a choice to the torso.
  """
  torso: str = fields.field(
      'auto',
      'From observation to features: mlp (tanh layers), nature (the CNN of '
      'DQN), resnet (of IMPALA), conv (a small CNN for small images and '
      'boards), or auto: resnet for uint8 images, otherwise mlp.',
      choices=TORSOS)
  channels: Optional[Tuple[int, ...]] = fields.field(
      None,
      'Channels of the convolutions, one number per layer (nature: exactly 3) '
      'or per residual stage (resnet; none makes it a plain ReLU MLP).')
  kernels: Optional[Tuple[int, ...]] = fields.field(
      None, 'Kernel sizes of the conv torso, one per layer; 3 each by default.')
  strides: Optional[Tuple[int, ...]] = fields.field(
      None, 'Strides of the conv torso, one per layer; 2 each by default.')
  hiddens: Optional[Tuple[int, ...]] = fields.field(
      None,
      'Sizes of the fully connected layers that end the torso; by default '
      '64,64 for mlp, 512 for nature, 256 for resnet and conv.')
  core: str = fields.field(
      'none', 'Memory between torso and heads: none, lstm or gru.',
      choices=CORES)
  core_size: int = fields.field(
      256, 'Units of the core; unused without one.', low=1)
  continuous_policy: str = fields.field(
      'tanh',
      'Policy over continuous actions: tanh (a Gaussian squashed to the '
      'bounds) or clipped (a Gaussian whose samples are clipped to the bounds '
      'on their way to the environment). Unused for discrete actions.',
      choices=CONTINUOUS_POLICIES)
  initial_log_std: float = fields.field(
      0.,
      'Initial logarithm of the standard deviation of continuous policies, in '
      'units of half the distance between the bounds.', low=-20, high=2)
  separate_value_torso: Optional[bool] = fields.field(
      None,
      'Give the value function a torso of its own, which a core excludes; by '
      'default only mlp does.')
  normalize_observations: bool = fields.field(
      False,
      'Shift and scale float observations by their running mean and deviation.')

  def __post_init__(self):
    fields.check(self)
    for name in ('channels', 'kernels', 'strides', 'hiddens'):
      sizes = getattr(self, name)
      if sizes is None:
        continue
      # Flags and JSON bring lists; only a tuple keeps the config hashable.
      object.__setattr__(self, name, tuple(sizes))
      for size in sizes:
        _check_positive_integer(name, size)
    if self.separate_value_torso and self.core != 'none':
      raise ValueError(
          f'separate_value_torso=True: core={self.core!r} needs one torso.')
    self._check_layers()

  def _check_layers(self):
    """Refuses sizes that the chosen torso would not use."""
    if self.channels is not None and self.torso in ('auto', 'mlp'):
      raise ValueError(
          f'channels={self.channels!r}: torso={self.torso!r} takes none; '
          'choose nature, resnet or conv.')
    if self.torso == 'nature' and len(self.channels or (0,) * 3) != 3:
      raise ValueError(
          f'channels={self.channels!r}: torso=\'nature\' has exactly 3 layers.')
    for name in ('kernels', 'strides'):
      sizes = getattr(self, name)
      if sizes is None:
        continue
      if self.torso != 'conv':
        raise ValueError(
            f'{name}={sizes!r}: only torso=\'conv\' takes them, not '
            f'{self.torso!r}.')
      if self.channels is None or len(sizes) != len(self.channels):
        raise ValueError(
            f'{name}={sizes!r}: must have one number per layer, like '
            f'channels={self.channels!r}.')


def _check_positive_integer(name: str, value: int):
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise ValueError(f'{name}={value!r}: must be a positive integer.')
