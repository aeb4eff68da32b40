"""The smallest task that needs the first action of an episode to be trained."""

from cleanba_acme import specs
import dm_env
import numpy as np


class Bandit(dm_env.Environment):
  """A bandit of four arms, one of which pays 1; an episode is one step.

  Half of all transitions are dummies: an agent that pairs actions with rewards
  of other rows learns from ignored actions only, and stays at chance, 0.25.
  """
  NUM_ARMS = 4
  GOOD_ARM = 2

  def __init__(self, seed: int):
    del seed  # Nothing here is random.
    self._has_ended = True

  def reset(self) -> dm_env.TimeStep:
    self._has_ended = False
    return dm_env.restart(np.ones(1, np.float32))

  def step(self, action: int) -> dm_env.TimeStep:
    if self._has_ended:
      return self.reset()
    self._has_ended = True
    return dm_env.termination(
        reward=float(action == self.GOOD_ARM),
        observation=np.ones(1, np.float32))

  def observation_spec(self) -> specs.Array:
    return specs.Array((1,), np.float32, name='nothing')

  def action_spec(self) -> specs.DiscreteArray:
    return specs.DiscreteArray(self.NUM_ARMS, np.int32, name='arm')
