"""Torsos: Haiku modules from a preprocessed observation to features.

Shape letters:
  N: rows, time and environments flattened into one axis.
  H, W, C: height, width, channels of an image.
  F: features.

Every torso takes one array or any tree of arrays. Leaves of two or three
dimensions beside the row are images to the convolutional torsos; the others
are vectors, which join the image features before the fully connected layers.
"""

from typing import Callable, Optional, Sequence

from cleanba_acme import types
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

# Orthogonal matrices with the gain of ReLU, but for the ResNet's convolutions,
# where Cleanba has Flax's default, LeCun's normal; biases are 0. (In plain
# convolutions the latter halves the variance per layer: learning is slow.)
_HIDDEN_INIT = hk.initializers.Orthogonal(np.sqrt(2))
_RESNET_INIT = hk.initializers.VarianceScaling(1., 'fan_in', 'truncated_normal')


class MLP(hk.Module):
  """Fully connected layers over all leaves, flattened and concatenated."""

  def __init__(
      self,
      hiddens: Sequence[int] = (64, 64),
      activation: Callable[[jax.Array], jax.Array] = jnp.tanh,
      name: Optional[str] = None,
  ):
    """Initialises the torso.

    Args:
      hiddens: Sizes of the layers.
      activation: Applied after every layer.
      name: Name of the module.
    """
    super().__init__(name)
    self._hiddens = hiddens
    self._activation = activation

  def __call__(self, observation: types.ArrayTree) -> jax.Array:
    x = jnp.concatenate(
        [_flatten(leaf) for leaf in jax.tree.leaves(observation)], axis=-1)
    for size in self._hiddens:
      x = self._activation(hk.Linear(size, w_init=_HIDDEN_INIT)(x))
    return x  # [N, F]


class ImageTorso(hk.Module):
  """Base of the convolutional torsos: `body` for images, then a ReLU MLP."""

  def __init__(self, hiddens: Sequence[int], name: Optional[str] = None):
    """Initialises the torso.

    Args:
      hiddens: Sizes of the fully connected layers.
      name: Name of the module.
    """
    super().__init__(name)
    self._hiddens = hiddens

  def body(self, image: jax.Array) -> jax.Array:
    """Maps an image `[N, H, W, C]` to its features `[N, ...]`."""
    raise NotImplementedError

  def __call__(self, observation: types.ArrayTree) -> jax.Array:
    leaves = jax.tree.leaves(observation)
    images = [leaf for leaf in leaves if leaf.ndim in (3, 4)]
    vectors = [leaf for leaf in leaves if leaf.ndim not in (3, 4)]
    if not images:
      raise ValueError(
          f'{type(self).__name__} needs an image, [height, width] or [height, '
          'width, channels], but the observation has leaves of shape '
          f'{[leaf.shape[1:] for leaf in leaves]}; an MLP takes any.')
    features = [self._image_features(image) for image in images]
    return MLP(self._hiddens, jax.nn.relu)(features + vectors)  # [N, F]

  def _image_features(self, image: jax.Array) -> jax.Array:
    if image.ndim == 3:  # A board without channels.
      image = image[..., None]
    features = self.body(image)
    if not features.size:
      raise ValueError(
          f'{type(self).__name__} leaves nothing of an image of shape '
          f'{image.shape[1:]}: too small for its strides; ConvNet and ResNet '
          'take any size.')
    return features


class NatureCNN(ImageTorso):
  """The network of DQN (Mnih et al. 2015, doi:10.1038/nature14236)."""

  def __init__(
      self,
      channels: Sequence[int] = (32, 64, 64),
      hiddens: Sequence[int] = (512,),
      name: Optional[str] = None,
  ):
    """Initialises the torso.

    Args:
      channels: Channels of the three convolutions.
      hiddens: Sizes of the fully connected layers.
      name: Name of the module.
    """
    super().__init__(hiddens, name)
    self._channels = channels

  def body(self, image: jax.Array) -> jax.Array:
    x = image
    for channels, kernel, stride in zip(self._channels, (8, 4, 3), (4, 2, 1)):
      x = jax.nn.relu(hk.Conv2D(
          channels, kernel, stride, padding='VALID', w_init=_HIDDEN_INIT)(x))
    return x


class ConvNet(ImageTorso):
  """Plain convolutions that keep borders, for small images and boards."""

  def __init__(
      self,
      channels: Sequence[int] = (16, 32, 32),
      kernels: Optional[Sequence[int]] = None,
      strides: Optional[Sequence[int]] = None,
      hiddens: Sequence[int] = (256,),
      name: Optional[str] = None,
  ):
    """Initialises the torso.

    Args:
      channels: Channels of every convolution.
      kernels: Their kernel sizes; 3 each by default.
      strides: Their strides; 2 each by default.
      hiddens: Sizes of the fully connected layers.
      name: Name of the module.
    """
    super().__init__(hiddens, name)
    self._channels = channels
    self._kernels = kernels or (3,) * len(channels)
    self._strides = strides or (2,) * len(channels)

  def body(self, image: jax.Array) -> jax.Array:
    x = image
    for channels, kernel, stride in zip(
        self._channels, self._kernels, self._strides, strict=True):
      x = jax.nn.relu(
          hk.Conv2D(channels, kernel, stride, w_init=_HIDDEN_INIT)(x))
    return x


class ResNet(ImageTorso):
  """The deep network of IMPALA (arXiv 1802.01561, figure 3), as in Cleanba."""

  def __init__(
      self,
      channels: Sequence[int] = (16, 32, 32),
      hiddens: Sequence[int] = (256,),
      name: Optional[str] = None,
  ):
    """Initialises the torso.

    Args:
      channels: Channels of every stage, each of which halves the image. Without
        any, the torso is a ReLU MLP.
      hiddens: Sizes of the fully connected layers.
      name: Name of the module.
    """
    super().__init__(hiddens, name)
    self._channels = channels

  def __call__(self, observation: types.ArrayTree) -> jax.Array:
    if not self._channels:
      return MLP(self._hiddens, jax.nn.relu)(observation)
    return super().__call__(observation)

  def body(self, image: jax.Array) -> jax.Array:
    x = image
    for channels in self._channels:
      x = _resnet_conv(channels)(x)
      x = hk.max_pool(x, (3, 3, 1), (2, 2, 1), padding='SAME')
      x = _residual_block(x)
      x = _residual_block(x)
    return jax.nn.relu(x)


def _residual_block(x: jax.Array) -> jax.Array:
  channels = x.shape[-1]
  y = _resnet_conv(channels)(jax.nn.relu(x))
  y = _resnet_conv(channels)(jax.nn.relu(y))
  return x + y


def _resnet_conv(channels: int) -> hk.Conv2D:
  return hk.Conv2D(channels, kernel_shape=3, w_init=_RESNET_INIT)


def _flatten(leaf: jax.Array) -> jax.Array:
  return leaf.reshape(leaf.shape[0], -1)
