"""Factories that change what another factory's environments show."""

import dataclasses

from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base
import dm_env
import numpy as np


@dataclasses.dataclass(frozen=True)
class ObservationActionReward:
  """Shows the last action and reward, for networks with a memory.

  The observation becomes a dict: `observation` is the original one, `action`
  the action that led to it and `reward` the training reward that came with it.
  Where an episode starts both are zero, as the ignored action of the step
  before led to nothing.

  Usage:

      factory = ObservationActionReward(registry.make_factory('Catch-v0'))

  Attributes:
    factory: Makes the environments to wrap.
  """
  factory: base.EnvironmentFactory

  @property
  def spec(self) -> specs.EnvironmentSpec:
    spec = self.factory.spec
    return spec._replace(observations={
        'observation': spec.observations,
        'action': spec.actions,
        'reward': spec.rewards,
    })

  @property
  def frame_skip(self) -> int:
    return self.factory.frame_skip

  def __call__(self, seed: int, num_envs: int) -> base.VectorEnvironment:
    return _ObservationActionRewardEnvironment(
        self.factory(seed, num_envs), self.factory.spec.actions)


class _ObservationActionRewardEnvironment:
  """The `base.VectorEnvironment` of `ObservationActionReward`."""

  def __init__(self, environment: base.VectorEnvironment,
               action_spec: specs.Array):
    self._environment = environment
    self._action_spec = action_spec

  @property
  def num_envs(self) -> int:
    return self._environment.num_envs

  @property
  def unclipped_reward(self) -> np.ndarray:
    return self._environment.unclipped_reward

  def reset(self) -> dm_env.TimeStep:
    action = np.zeros((self.num_envs,) + self._action_spec.shape,
                      self._action_spec.dtype)
    return self._show(self._environment.reset(), action)

  def step(self, action: types.Array) -> dm_env.TimeStep:
    timestep = self._environment.step(action)
    # A copy, because the caller may reuse its array.
    action = np.array(action, self._action_spec.dtype)
    action[timestep.first()] = 0
    return self._show(timestep, action)

  def close(self) -> None:
    self._environment.close()

  def _show(self, timestep: dm_env.TimeStep,
            action: np.ndarray) -> dm_env.TimeStep:
    return timestep._replace(observation={
        'observation': timestep.observation,
        'action': action,
        'reward': timestep.reward,
    })
