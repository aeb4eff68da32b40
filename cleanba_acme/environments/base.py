"""What an actor expects of a batch of environments."""

from typing import Protocol

from cleanba_acme import specs
from cleanba_acme import types
import dm_env
import numpy as np


class VectorEnvironment(Protocol):
  """`B` environments, stepped together, that restart by themselves.

  Time steps are batched `dm_env.TimeStep`s: `step_type` `[B]` int32, `reward`
  `[B]` float32 (0 in `FIRST`), `discount` `[B]` float32 (1 in `FIRST`), the
  observation a tree of `[B, ...]`. As in dm_env, the step after a `LAST`
  ignores its action and returns the `FIRST` of the next episode. A truncated
  episode ends with a `LAST` of discount 1, a terminated one with discount 0.

  The arrays of a time step are new at every step, so the caller may keep them.
  Real numbers are float32, integers int32, pixels uint8; images are
  `[B, height, width, channels]`, stacked frames being channels, newest last.
  """

  @property
  def num_envs(self) -> int:
    """`B`."""

  @property
  def unclipped_reward(self) -> np.ndarray:
    """Reward `[B]` of the last step as reported to people, before clipping."""

  def reset(self) -> dm_env.TimeStep:
    """Starts an episode in every environment; called once."""

  def step(self, action: types.Array) -> dm_env.TimeStep:
    """Steps every environment with its row of `action` `[B, ...]`."""

  def close(self) -> None:
    """Frees threads and memory; the environment can't be used after it."""


class EnvironmentFactory(Protocol):
  """Knows the spec without making an environment, and makes batches of them.

  A factory is sent to other processes, so it must be picklable.
  """

  @property
  def spec(self) -> specs.EnvironmentSpec:
    """Spec of one environment."""

  @property
  def frame_skip(self) -> int:
    """Emulator frames per agent step; 1 where there is no such thing."""

  def __call__(self, seed: int, num_envs: int) -> VectorEnvironment:
    """Makes `num_envs` environments; environment `i` is seeded `seed + i`."""
