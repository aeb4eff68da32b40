"""A `gymnasium.Env` as a `dm_env.Environment`."""

from typing import Any, Mapping

from cleanba_acme import types
from cleanba_acme.environments import spaces
import dm_env
import gymnasium
import numpy as np


class GymnasiumEnvironment(dm_env.Environment):
  """Steps a `gymnasium.Env` with dm_env's semantics.

  `terminated` ends an episode with discount 0, `truncated` alone with 1.

  Usage:

      factory = batch.DmEnvFactory(
          lambda seed: GymnasiumEnvironment(gymnasium.make('Acrobot-v1'), seed))
      environment = factory(seed=1, num_envs=8)
  """

  def __init__(self, environment: gymnasium.Env, seed: int):
    """Initialises the environment.

    Args:
      environment: A `gymnasium.Env`.
      seed: Given to its first `reset`; later ones are not seeded, so that
        every episode differs.

    Raises:
      ValueError: If one of its spaces is not supported.
    """
    self._environment = environment
    self._seed = seed
    self._observation_spec = spaces.observation_spec(
        environment.observation_space)
    self._action_spec = spaces.action_spec(environment.action_space)
    self._ended = True

  def reset(self) -> dm_env.TimeStep:
    observation, _ = self._environment.reset(seed=self._seed)
    self._seed = None
    self._ended = False
    return dm_env.restart(observation)

  def step(self, action: types.Array) -> dm_env.TimeStep:
    if self._ended:
      return self.reset()
    # `[()]` makes a scalar of a discrete action, which is hashable.
    action = np.asarray(action, self._environment.action_space.dtype)[()]
    observation, reward, terminated, truncated, _ = self._environment.step(
        action)
    self._ended = terminated or truncated
    if terminated:
      return dm_env.termination(reward, observation)
    if truncated:
      return dm_env.truncation(reward, observation)
    return dm_env.transition(reward, observation)

  def observation_spec(self) -> Any:
    return self._observation_spec

  def action_spec(self) -> Any:
    return self._action_spec

  def close(self) -> None:
    self._environment.close()


def make(task_id: str, options: Mapping[str, Any],
         seed: int) -> GymnasiumEnvironment:
  """Makes a registered environment.

  Args:
    task_id: An id of gymnasium.
    options: Arguments of `gymnasium.make`.
    seed: Seed of the environment.

  Returns:
    The environment.
  """
  return GymnasiumEnvironment(gymnasium.make(task_id, **options), seed)
