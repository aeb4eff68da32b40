"""Fakes that check what they are given, and cause trouble when asked to."""

import os
import random
import resource
import signal
import sys
import time
from typing import Optional

from cleanba_acme import builder as builder_lib
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
import dm_env
import jax
import numpy as np

# What `make_trouble` can do.
RAISE = 'raise'
KILL = 'kill'  # By SIGKILL.
HANG = 'hang'
EXIT = 'exit'  # At once, with `EXIT_STATUS`.
QUIT = 'quit'  # At once, with status 0, as if all were well.
MEMORY = 'memory'  # Uses more memory than there is.
TROUBLES = (RAISE, KILL, HANG, EXIT, QUIT, MEMORY)
# What the learner's update can do beside: not a number in all parameters.
NAN = 'nan'

EXIT_STATUS = 7
# Printed just before.
ANNOUNCEMENT = 'planned trouble'

_MEMORY_LEFT = 2**28


class PlannedError(Exception):
  """What a fake raises when it was asked to fail."""


def make_trouble(kind: str) -> None:
  """Does what one of `TROUBLES` says, in this process."""
  print(f'{ANNOUNCEMENT}: {kind}', file=sys.stderr, flush=True)
  if kind == RAISE:
    raise PlannedError('planned to fail')
  if kind == KILL:
    os.kill(os.getpid(), signal.SIGKILL)
  if kind == HANG:
    time.sleep(1e6)
  if kind == EXIT:
    os._exit(EXIT_STATUS)
  if kind == QUIT:
    os._exit(0)
  if kind == MEMORY:
    with open('/proc/self/statm', encoding='ascii') as file:
      size = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY_LEFT, hard))
    hoard = []
    while True:
      hoard.append(np.ones(2**20))


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
      trouble: One of `TROUBLES`, if any.
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
    if self._trouble and self._num_steps == self._trouble_step:
      make_trouble(self._trouble)
    self._num_steps += 1
    return self._environment.step(action)

  def close(self) -> None:
    assert not self._is_closed, 'closed a second time'
    self._is_closed = True
    self._environment.close()


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


class DisturbedBuilder:
  """A `builder.Builder` whose learner takes longer, or goes wrong."""

  def __init__(
      self,
      builder: builder_lib.Builder,
      max_sleep_s: float = 0.,
      trouble: Optional[str] = None,
      trouble_update: int = 0,
  ):
    """Wraps a builder.

    Args:
      builder: Makes the agent.
      max_sleep_s: Every update begins with a sleep of a random time up to this.
      trouble: One of `TROUBLES`, or `NAN`, if any.
      trouble_update: At which of the updates of this launch, counted from 1.
    """
    self._max_sleep_s = max_sleep_s
    self._builder = builder
    self._trouble = trouble
    self._trouble_update = trouble_update

  def make_actor_core(self, networks, evaluation=False):
    """See `builder.Builder`."""
    return self._builder.make_actor_core(networks, evaluation)

  def make_learner_core(self, networks, sizes, execution):
    """See `builder.Builder`."""
    core = self._builder.make_learner_core(networks, sizes, execution)
    num_updates = 0

    def update(state, rollout):
      nonlocal num_updates
      num_updates += 1
      time.sleep(random.uniform(0, self._max_sleep_s))
      is_time = self._trouble and num_updates == self._trouble_update
      if is_time and self._trouble != NAN:
        make_trouble(self._trouble)
      state, metrics = core.update(state, rollout)
      if is_time:
        print(f'{ANNOUNCEMENT}: {NAN}', file=sys.stderr, flush=True)
        state = state._replace(
            params=jax.tree.map(lambda leaf: leaf * np.nan, state.params))
      return state, metrics

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
