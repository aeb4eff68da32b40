"""Fakes that check what they are given, and cause trouble when asked to."""

import os
import random
import signal
import time
from typing import Optional

from cleanba_acme import builder as builder_lib
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
import dm_env
import numpy as np

# What `Troublemaker` can do.
RAISE = 'raise'
KILL = 'kill'
HANG = 'hang'


class PlannedError(Exception):
  """What a fake raises when it was asked to fail."""


class Troublemaker:
  """A `base.VectorEnvironment` that checks its caller and can go wrong.

  It shows what the environment in it shows: sleeping changes nothing but the
  time that a step takes.
  """

  def __init__(
      self,
      environment: base.VectorEnvironment,
      spec: specs.EnvironmentSpec,
      max_sleep_s: float = 0.,
      trouble: Optional[str] = None,
      trouble_step: int = 0,
  ):
    """Wraps an environment.

    Args:
      environment: What to show.
      spec: Its spec.
      max_sleep_s: Every step begins with a sleep of a random time up to this.
      trouble: `RAISE`, `KILL` (this process, by SIGKILL) or `HANG`, if any.
      trouble_step: At which step, counted from 0.
    """
    self.spec = spec
    self._environment = environment
    self._max_sleep_s = max_sleep_s
    self._trouble = trouble
    self._trouble_step = trouble_step
    self._num_steps = 0
    self._is_reset = False
    self._is_closed = False

  @property
  def num_envs(self) -> int:
    return self._environment.num_envs

  @property
  def unclipped_reward(self) -> np.ndarray:
    return self._environment.unclipped_reward

  def reset(self) -> dm_env.TimeStep:
    assert not self._is_reset, 'reset a second time'
    self._is_reset = True
    return self._environment.reset()

  def step(self, action: types.Array) -> dm_env.TimeStep:
    assert self._is_reset and not self._is_closed, 'not between reset and close'
    assert len(action) == self.num_envs, action
    for row in action:
      self.spec.actions.validate(row)
    if self._max_sleep_s:
      time.sleep(random.uniform(0, self._max_sleep_s))
    if self._num_steps == self._trouble_step:
      self._make_trouble()
    self._num_steps += 1
    return self._environment.step(action)

  def close(self) -> None:
    assert not self._is_closed, 'closed a second time'
    self._is_closed = True
    self._environment.close()

  def _make_trouble(self) -> None:
    if self._trouble == RAISE:
      raise PlannedError(f'planned to fail in step {self._num_steps}')
    if self._trouble == KILL:
      os.kill(os.getpid(), signal.SIGKILL)
    if self._trouble == HANG:
      time.sleep(1e6)


def make_catch(
    seed: int,
    num_envs: int,
    rows: int = 4,
    columns: int = 3,
    max_sleep_s: float = 0.,
    trouble: Optional[str] = None,
    trouble_step: int = 0,
    trouble_seed: Optional[int] = None,
) -> Troublemaker:
  """Makes a small Catch; a function for `registry.FunctionFactory`.

  Args:
    seed: Environment `i` is seeded `seed + i`.
    num_envs: Number of environments.
    rows: Height of the board.
    columns: Width of the board.
    max_sleep_s: See `Troublemaker`.
    trouble: See `Troublemaker`.
    trouble_step: See `Troublemaker`.
    trouble_seed: If given, only the batch with this seed sleeps or goes wrong.
  """
  environment = batch.BatchedEnvironment(
      [catch.Catch(seed + i, rows, columns) for i in range(num_envs)])
  if trouble_seed not in (None, seed):
    max_sleep_s, trouble = 0., None
  return Troublemaker(
      environment, environment.spec, max_sleep_s, trouble, trouble_step)


class Endless(dm_env.Environment):
  """A game that never ends but for its time limit: reward 1 at every step.

  The observation is always the same, so one number is the value of all rows:
  `1 / (1 - gamma)`, whatever the limit.
  """

  def __init__(self, seed: int, limit: int = 10):
    del seed
    self._limit = limit
    self._num_steps = limit

  def reset(self) -> dm_env.TimeStep:
    self._num_steps = 0
    return dm_env.restart(np.ones(1, np.float32))

  def step(self, action: int) -> dm_env.TimeStep:
    if self._num_steps == self._limit:
      return self.reset()
    self._num_steps += 1
    kind = (dm_env.truncation if self._num_steps == self._limit
            else dm_env.transition)
    return kind(reward=1., observation=np.ones(1, np.float32))

  def observation_spec(self) -> specs.Array:
    return specs.Array((1,), np.float32, name='nothing')

  def action_spec(self) -> specs.DiscreteArray:
    return specs.DiscreteArray(2, np.int32, name='action')


class SleepyBuilder:
  """A `builder.Builder` whose learner takes a random time more."""

  def __init__(self, builder: builder_lib.Builder, max_sleep_s: float):
    self._max_sleep_s = max_sleep_s
    self._builder = builder

  def make_actor_core(self, networks, evaluation=False):
    """See `builder.Builder`."""
    return self._builder.make_actor_core(networks, evaluation)

  def make_learner_core(self, networks, sizes, execution):
    """See `builder.Builder`."""
    core = self._builder.make_learner_core(networks, sizes, execution)

    def update(state, rollout):
      time.sleep(random.uniform(0, self._max_sleep_s))
      return core.update(state, rollout)

    return core._replace(update=update)


class SleepyFactory:
  """A `base.EnvironmentFactory` whose environments sleep at every step."""

  def __init__(self, factory: base.EnvironmentFactory, max_sleep_s: float):
    self.spec = factory.spec
    self.frame_skip = factory.frame_skip
    self._factory = factory
    self._max_sleep_s = max_sleep_s

  def __call__(self, seed: int, num_envs: int) -> Troublemaker:
    """See `base.EnvironmentFactory`."""
    return Troublemaker(
        self._factory(seed, num_envs), self.spec, self._max_sleep_s)
