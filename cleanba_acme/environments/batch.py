"""Batches any `dm_env.Environment`s."""

import collections.abc
import dataclasses
from typing import Any, Callable, Sequence, Tuple

from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import spaces
import dm_env
import numpy as np
import tree


class BatchedEnvironment:
  """A `base.VectorEnvironment` that steps `dm_env.Environment`s in turn.

  What the environments return is checked against their specs, so that a wrong
  shape or a missing reward is an error at the step that returned it. Data are
  delivered in the types of `spaces.canonical_dtype`, in new arrays every step.

  Usage:

      environment = BatchedEnvironment(
          [catch.Catch(seed=seed + i) for i in range(8)])
      timestep = environment.reset()  # step_type: [8], observation: [8, 10, 5]
      timestep = environment.step(np.zeros(8, np.int32))
  """

  def __init__(self, environments: Sequence[dm_env.Environment]):
    """Initialises the environment.

    Args:
      environments: Environments of equal specs.

    Raises:
      ValueError: If there are none, their specs differ, or a spec is not
        supported.
    """
    if not environments:
      raise ValueError('a batch needs at least one environment')
    self._environments = list(environments)
    self._spec = make_spec(self._environments[0])
    for i, environment in enumerate(self._environments[1:], start=1):
      spec = make_spec(environment)
      if spec != self._spec:
        raise ValueError(f'environment {i} has the spec {spec}, environment 0 '
                         f'{self._spec}; in a batch they must be equal')
    self._action_dtype = self._environments[0].action_spec().dtype
    # Pairs of a leaf's name and its spec.
    self._observation_specs = [
        (_name(('observation',) + path), spec) for path, spec in
        tree.flatten_with_path(self._spec.observations)]
    self._unclipped_reward = np.zeros(self.num_envs, np.float32)
    self._ended = np.zeros(self.num_envs, bool)

  @property
  def num_envs(self) -> int:
    return len(self._environments)

  @property
  def spec(self) -> specs.EnvironmentSpec:
    """Spec of one environment."""
    return self._spec

  @property
  def unclipped_reward(self) -> np.ndarray:
    return self._unclipped_reward

  def reset(self) -> dm_env.TimeStep:
    self._ended[:] = True
    return self._batch(
        [environment.reset() for environment in self._environments])

  def step(self, action: types.Array) -> dm_env.TimeStep:
    action = spaces.checked_action(
        action, self.num_envs, self._spec.actions, self._action_dtype)
    return self._batch([environment.step(row) for environment, row in
                        zip(self._environments, action)])

  def close(self) -> None:
    for environment in self._environments:
      environment.close()

  def _batch(self, timesteps: Sequence[dm_env.TimeStep]) -> dm_env.TimeStep:
    """Checks and batches the time steps of all environments.

    Raises:
      ValueError: If one of them contradicts the spec or dm_env's rules.
    """
    step_type = np.empty(self.num_envs, np.int32)
    reward = np.zeros(self.num_envs, np.float32)
    discount = np.ones(self.num_envs, np.float32)
    leaves = [np.empty((self.num_envs,) + spec.shape, spec.dtype)
              for _, spec in self._observation_specs]
    for i, timestep in enumerate(timesteps):
      if not isinstance(timestep, dm_env.TimeStep):
        raise ValueError(
            f'environment {i}: expected a dm_env.TimeStep, got {timestep!r}')
      if timestep.first() != self._ended[i]:
        raise ValueError(
            f'environment {i}, step_type: expected '
            + ('FIRST after the end of an episode' if self._ended[i]
               else 'MID or LAST within an episode')
            + f', got {timestep.step_type!r}')
      step_type[i] = timestep.step_type
      self._ended[i] = timestep.last()
      if not timestep.first():
        reward[i] = _scalar(i, 'reward', timestep.reward)
        discount[i] = _scalar(i, 'discount', timestep.discount)
        if not 0 <= discount[i] <= 1:
          raise ValueError(f'environment {i}, discount: expected a number '
                           f'between 0 and 1, got {discount[i]}')
      self._write(i, timestep.observation, leaves)
    self._unclipped_reward = reward
    return dm_env.TimeStep(
        step_type=step_type, reward=reward, discount=discount,
        observation=tree.unflatten_as(self._spec.observations, leaves))

  def _write(self, i: int, observation: Any,
             leaves: Sequence[np.ndarray]) -> None:
    """Writes the observation of environment `i` to its row of `leaves`."""
    try:
      values = tree.flatten_up_to(
          self._spec.observations, observation, check_types=False)
    except (TypeError, ValueError) as error:
      raise ValueError(f'environment {i}, observation: structure differs from '
                       f'its spec: {error}') from error
    for (name, spec), leaf, value in zip(
        self._observation_specs, leaves, values):
      try:
        value = np.asarray(value)
        dtype = spaces.canonical_dtype(value.dtype)
      except ValueError as error:
        raise ValueError(f'environment {i}, {name}: {error}') from error
      if value.shape != spec.shape or dtype != spec.dtype:
        raise ValueError(
            f'environment {i}, {name}: expected shape {spec.shape} and '
            f'dtype {spec.dtype} as in its spec, got shape {value.shape} and '
            f'dtype {value.dtype}')
      leaf[i] = value
      if spec.dtype == np.float32 and np.isnan(leaf[i]).any():
        raise ValueError(f'environment {i}, {name}: contains NaN')


@dataclasses.dataclass(frozen=True)
class DmEnvFactory:
  """Makes batches of a `dm_env.Environment`; a `base.EnvironmentFactory`.

  One environment is made on construction, for its spec, and closed again.

  Usage:

      factory = DmEnvFactory(catch.Catch)  # Called as Catch(seed).
      environment = factory(seed=1, num_envs=8)

  Attributes:
    make: Makes an environment from its seed. It must be picklable where the
      environments run in other processes.
    frame_skip: Emulator frames per step, for reports.
    spec: Spec of one environment.
  """
  make: Callable[[int], dm_env.Environment]
  frame_skip: int = 1
  spec: specs.EnvironmentSpec = dataclasses.field(
      init=False, repr=False, compare=False)

  def __post_init__(self):
    """Takes the spec.

    Raises:
      ValueError: If `make` returns something else than a `dm_env.Environment`,
        or its specs are not supported.
    """
    environment = self.make(0)
    if not isinstance(environment, dm_env.Environment):
      raise ValueError(f'{self.make!r} must return a dm_env.Environment, got '
                       f'{environment!r}')
    try:
      # Frozen for users; this is its initialisation.
      object.__setattr__(self, 'spec', make_spec(environment))
    finally:
      environment.close()

  def __call__(self, seed: int, num_envs: int) -> BatchedEnvironment:
    """Makes environments seeded `seed`, `seed + 1`, …; see `base`."""
    return BatchedEnvironment([self.make(seed + i) for i in range(num_envs)])


def make_spec(environment: dm_env.Environment) -> specs.EnvironmentSpec:
  """Returns the spec of an environment's data as delivered by a batch.

  Args:
    environment: Any dm_env environment.

  Returns:
    Its specs in the types of `spaces.canonical_dtype`.

  Raises:
    ValueError: If the reward or discount is no scalar, the action is no single
      array, a continuous action has no finite bounds, or data are of a type
      that networks can't read.
  """
  for name, spec in (('reward', environment.reward_spec()),
                     ('discount', environment.discount_spec())):
    if not isinstance(spec, specs.Array) or spec.shape:
      raise ValueError(f'{name}: expected the spec of a scalar, got {spec}')
  action_spec = environment.action_spec()
  if not isinstance(action_spec, specs.BoundedArray):
    raise ValueError('action: expected a DiscreteArray or BoundedArray, got '
                     f'{action_spec}')
  actions = _canonical(('action',), action_spec)
  if not (np.isfinite(actions.minimum).all()
          and np.isfinite(actions.maximum).all()):
    raise ValueError(f'action: expected finite bounds, got {action_spec}')
  return specs.EnvironmentSpec(
      observations=_canonical_tree(
          ('observation',), environment.observation_spec()),
      actions=actions,
      rewards=spaces.reward_spec(),
      discounts=spaces.discount_spec())


def _canonical_tree(path: Tuple[Any, ...], spec: Any) -> Any:
  """Returns a tree of specs as one of dicts and tuples; see `_canonical`."""
  if isinstance(spec, collections.abc.Mapping):
    return {key: _canonical_tree(path + (key,), child)
            for key, child in spec.items()}
  if isinstance(spec, (list, tuple)):
    return tuple(_canonical_tree(path + (i,), child)
                 for i, child in enumerate(spec))
  return _canonical(path, spec)


def _canonical(path: Tuple[Any, ...], spec: Any) -> specs.Array:
  """Returns `spec` with the dtype of `spaces.canonical_dtype`."""
  if not isinstance(spec, specs.Array):
    raise ValueError(f'{_name(path)}: expected a dm_env.specs.Array, got '
                     f'{spec!r}')
  try:
    dtype = spaces.canonical_dtype(spec.dtype)
  except ValueError as error:
    raise ValueError(f'{_name(path)}: {error}') from error
  if (isinstance(spec, specs.BoundedArray)
      and not isinstance(spec, specs.DiscreteArray)):
    with np.errstate(over='ignore'):  # The largest float64 means infinity.
      return spec.replace(dtype=dtype, minimum=spec.minimum.astype(dtype),
                          maximum=spec.maximum.astype(dtype))
  return spec.replace(dtype=dtype)


def _scalar(i: int, name: str, value: Any) -> float:
  """Returns the reward or discount `value` of environment `i` as a float."""
  array = np.asarray(value)
  if array.shape or array.dtype.kind not in 'fiub' or not np.isfinite(array):
    raise ValueError(f'environment {i}, {name}: expected a finite number in a '
                     f'step that is not FIRST, got {value!r}')
  return float(array)


def _name(path: Tuple[Any, ...]) -> str:
  """Returns, for example, `observation/camera/0`."""
  return '/'.join(map(str, path))
