"""What an environment must keep to; see `conformance`.

Shape letters: T, time; B, environments.
"""

from typing import List, Optional

from cleanba_acme import specs
from cleanba_acme.environments import base as environments
from cleanba_acme.testing import expect
from cleanba_acme.testing import sampling
import dm_env
import jax
import numpy as np

_FIRST, _MID, _LAST = dm_env.StepType


def check_environment(
    factory: environments.EnvironmentFactory,
    *,
    num_steps: int = 200,
    num_envs: int = 3,
    seed: int = 0,
    time_limit: Optional[int] = None,
) -> None:
  """Checks an environment with random actions.

  Args:
    factory: Makes the environments.
    num_steps: How many steps to take; episodes must end within them.
    num_envs: `B`.
    seed: Of the environments and the actions.
    time_limit: Steps after which an episode is truncated, if it has such a
      limit. It must be reached, so an environment is best made with a low one.

  Raises:
    AssertionError: A rule is broken.
  """
  stream = _run(factory, num_steps, num_envs, seed)
  check_stream_matches_spec(factory, stream)
  check_episodes(stream, time_limit)
  check_same_seed_same_stream(factory, stream, seed)
  check_seeds_of_environments(factory, stream, seed)
  check_ignored_actions_do_not_matter(factory, stream, seed)


class EnvironmentTests:
  """One pytest class for an environment: override `make_environment_factory`.

  Attributes:
    num_steps: See `check_environment`.
    num_envs: See `check_environment`.
    seed: See `check_environment`.
    time_limit: See `check_environment`.
  """
  num_steps: int = 200
  num_envs: int = 3
  seed: int = 0
  time_limit: Optional[int] = None

  def make_environment_factory(self) -> environments.EnvironmentFactory:
    """Returns what is to be checked."""
    raise NotImplementedError

  def _run(self):
    factory = self.make_environment_factory()
    return factory, _run(factory, self.num_steps, self.num_envs, self.seed)

  def test_stream_matches_spec(self):
    check_stream_matches_spec(*self._run())

  def test_episodes(self):
    _, stream = self._run()
    check_episodes(stream, self.time_limit)

  def test_same_seed_same_stream(self):
    check_same_seed_same_stream(*self._run(), self.seed)

  def test_seeds_of_environments(self):
    check_seeds_of_environments(*self._run(), self.seed)

  def test_ignored_actions_do_not_matter(self):
    check_ignored_actions_do_not_matter(*self._run(), self.seed)


class _Stream:
  """What a batch of environments returned, and the actions it was given.

  Attributes:
    timesteps: `T + 1` batched time steps, as they were when returned.
    kept: The same objects, as they are after all steps.
    unclipped: `T + 1` unclipped rewards; the first is None.
    actions: `[T, B, ...]` in the environment's own terms.
  """

  def __init__(self):
    self.timesteps = []
    self.kept = []
    self.unclipped = [None]
    self.actions = []


def _run(
    factory: environments.EnvironmentFactory,
    num_steps: int,
    num_envs: int,
    seed: int,
    actions: Optional[List[np.ndarray]] = None,
) -> _Stream:
  """Steps new environments with the given actions, or random ones."""
  rng = np.random.default_rng(seed)
  stream = _Stream()
  environment = factory(seed, num_envs)
  try:
    expect.equal(
        environment.num_envs, num_envs, 'num_envs of a new environment')
    timestep = environment.reset()
    for t in range(num_steps + 1):
      stream.kept.append(timestep)
      stream.timesteps.append(jax.tree.map(np.array, timestep))
      if t == num_steps:
        break
      action = (actions[t] if actions is not None
                else sampling.sample(factory.spec.actions, rng, num_envs))
      stream.actions.append(action)
      given = action.copy()
      timestep = environment.step(given)
      given[...] = factory.spec.actions.minimum  # It is the caller's array.
      stream.unclipped.append(np.array(environment.unclipped_reward))
  finally:
    environment.close()
  return stream


def check_stream_matches_spec(
    factory: environments.EnvironmentFactory, stream: _Stream) -> None:
  """Every array has the shape, type and bounds of its spec, and is kept."""
  spec = factory.spec
  expect.that(
      isinstance(spec, specs.EnvironmentSpec), 'spec of the factory',
      'a specs.EnvironmentSpec', spec)
  rows = len(stream.actions[0])
  for t, timestep in enumerate(stream.timesteps):
    for name, dtype in (
        ('step_type', np.int32), ('reward', np.float32),
        ('discount', np.float32)):
      expect.array(
          getattr(timestep, name), (rows,), dtype, f'{name} of step {t}')
    where = f'observation of step {t}'
    expect.equal(
        jax.tree.structure(timestep.observation),
        jax.tree.structure(spec.observations), f'structure of the {where}')
    leaves = jax.tree_util.tree_leaves_with_path(timestep.observation)
    for (path, leaf), leaf_spec in zip(leaves, jax.tree.leaves(
        spec.observations)):
      name = where + jax.tree_util.keystr(path)
      expect.array(leaf, (rows, *leaf_spec.shape), leaf_spec.dtype, name)
      for row in leaf:
        try:
          leaf_spec.validate(row)
        except ValueError as error:
          raise AssertionError(f'{name}: breaks its spec: {error}') from error
    if t:
      unclipped = stream.unclipped[t]
      expect.array(
          unclipped, (rows,), unclipped.dtype, f'unclipped_reward of step {t}')
  for t, (timestep, kept) in enumerate(zip(stream.timesteps, stream.kept)):
    expect.same(
        kept, timestep, f'time step {t}, kept by the caller until the end')


def check_episodes(stream: _Stream, time_limit: Optional[int] = None) -> None:
  """Episodes start, end and follow each other by dm_env's rules."""
  num_ends = num_truncated = 0
  ended = np.ones(len(stream.actions[0]), bool)
  lengths = np.zeros(len(ended), int)
  for t, timestep in enumerate(stream.timesteps):
    for i, kind in enumerate(timestep.step_type):
      where = f'environment {i}, step {t}'
      reward, discount = timestep.reward[i], timestep.discount[i]
      expect.that(
          kind == _FIRST if ended[i] else kind in (_MID, _LAST),
          f'{where}, step_type',
          'FIRST (0), as the step before was LAST or there was none' if ended[i]
          else 'MID (1) or LAST (2), as the episode goes on', kind)
      lengths[i] += 1
      if kind == _FIRST:
        lengths[i] = 0
        expect.that(reward == 0, f'{where}, reward of FIRST', 0, reward)
        expect.that(discount == 1, f'{where}, discount of FIRST', 1, discount)
        if t:
          expect.that(stream.unclipped[t][i] == 0,
                      f'{where}, unclipped_reward of FIRST', 0,
                      stream.unclipped[t][i])
      elif kind == _MID:
        expect.that(0 < discount <= 1, f'{where}, discount of MID',
                    'more than 0 and at most 1', discount)
        expect.that(
            time_limit is None or lengths[i] < time_limit,
            f'{where}, step_type', f'LAST at the time limit {time_limit}', kind)
      else:
        expect.that(
            discount in (0, 1), f'{where}, discount of LAST',
            '0 (terminated) or 1 (truncated)', discount)
        if time_limit is not None:
          expect.that(
              discount == 0 or lengths[i] == time_limit,
              f'{where}, discount of LAST',
              f'0, because the time limit is {time_limit} and the episode had '
              f'{lengths[i]} steps', discount)
          num_truncated += discount == 1
        num_ends += 1
      ended[i] = kind == _LAST
  steps = len(stream.actions)
  expect.that(num_ends > 0, f'episodes that ended in {steps} steps',
              'at least one; raise num_steps', 0)
  if time_limit is not None:
    expect.that(
        num_truncated > 0, f'episodes that were truncated in {steps} steps',
        f'at least one with discount 1 at the time limit {time_limit}', 0)


def check_same_seed_same_stream(
    factory: environments.EnvironmentFactory, stream: _Stream, seed: int,
) -> None:
  """The same seed and actions give the same stream, bit for bit."""
  again = _run(factory, len(stream.actions), len(stream.actions[0]), seed,
               stream.actions)
  for t, (one, other) in enumerate(zip(stream.timesteps, again.timesteps)):
    expect.same(
        other, one, f'step {t} of a second environment of the same seed')


def check_seeds_of_environments(
    factory: environments.EnvironmentFactory, stream: _Stream, seed: int,
) -> None:
  """Environment `i` of `B` is environment 0 at seed `seed + i`."""
  for i in range(len(stream.actions[0])):
    alone = _run(factory, len(stream.actions), 1, seed + i,
                 [action[i:i + 1] for action in stream.actions])
    for t, (one, other) in enumerate(zip(stream.timesteps, alone.timesteps)):
      expect.same(
          jax.tree.map(lambda x: x[i:i + 1], one), other,
          f'step {t} of environment {i} of {len(stream.actions[0])} at seed '
          f'{seed}, which must be as environment 0 at seed {seed + i}')


def check_ignored_actions_do_not_matter(
    factory: environments.EnvironmentFactory, stream: _Stream, seed: int,
) -> None:
  """The action after `LAST` is ignored."""
  rng = np.random.default_rng(seed + 1)
  rows = len(stream.actions[0])
  actions = []
  for timestep, action in zip(stream.timesteps, stream.actions):
    action = action.copy()
    is_last = timestep.last()
    action[is_last] = sampling.sample(factory.spec.actions, rng, rows)[is_last]
    actions.append(action)
  other = _run(factory, len(actions), rows, seed, actions)
  for t, (one, two) in enumerate(zip(stream.timesteps, other.timesteps)):
    expect.same(two, one, f'step {t} with other actions after LAST, which '
                'an environment must ignore')
