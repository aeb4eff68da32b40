"""Makes an environment factory from the name a user types."""

import dataclasses
import functools
import importlib
from typing import Any, Callable, Mapping

from cleanba_acme import specs
from cleanba_acme.environments import base
from cleanba_acme.environments import batch
from cleanba_acme.environments import catch
import dm_env

_FORMS = """\
an environment is one of
  catch                    the Catch of this library
  Breakout-v5, CartPole-v1, HalfCheetah-v4, ...
                           an id of envpool
  gymnasium:CartPole-v1    an id of gymnasium
  package.module:function  function(seed, num_envs) of your own"""


def make_factory(name: str, /, **options: Any) -> base.EnvironmentFactory:
  """Returns the factory of the environment called `name`.

  Everything that can be wrong with the name, the options and the spaces is
  found here, before any worker starts. The forms of a name:

    * `catch`: `catch.Catch`, with its arguments as options.
    * an id of envpool, for example `Breakout-v5`; `EnvPoolFactory` describes
      its options.
    * `gymnasium:ID`: what `gymnasium.make(ID, **options)` returns, one by one.
    * `package.module:function`: see `FunctionFactory`.

  Args:
    name: The name.
    **options: Options of that environment.

  Returns:
    A picklable factory.

  Raises:
    ValueError: If the name, an option or a space is not supported, a library
      is missing, or making one environment fails; the message says which.
  """
  if name == 'catch':
    make = functools.partial(catch.Catch, **options)
    return _checked(name, lambda: batch.DmEnvFactory(make))
  kind, colon, rest = name.partition(':')
  if not colon:
    return _make_envpool_factory(name, options)
  if kind == 'gymnasium':
    make = functools.partial(_make_gymnasium, rest, options)
    return _checked(name, lambda: batch.DmEnvFactory(make))
  return _checked(name, lambda: FunctionFactory(name, options))


@dataclasses.dataclass(frozen=True)
class FunctionFactory:
  """Makes environments by a user's function; a `base.EnvironmentFactory`.

  The function is called as `function(seed, num_envs, **options)` and returns a
  `base.VectorEnvironment` of `num_envs` environments that also has the
  attribute `spec`, the `specs.EnvironmentSpec` of one of them. Environment `i`
  must depend on `seed + i` alone: then results don't depend on how the
  environments are split over actors. `batch.BatchedEnvironment` does all that
  for dm_env environments:

      def make_catch(seed, num_envs, rows=10):
        return batch.BatchedEnvironment(
            [catch.Catch(seed + i, rows) for i in range(num_envs)])

  On construction the function is called once, with seed 0 and one environment,
  for the spec.

  Attributes:
    path: `package.module:function`. The function is imported wherever the
      factory is called, so it must be importable in workers too.
    options: Further arguments of the function.
    spec: Spec of one environment.
    frame_skip: 1.
  """
  path: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  spec: specs.EnvironmentSpec = dataclasses.field(
      init=False, repr=False, compare=False)
  frame_skip: int = dataclasses.field(default=1, init=False, repr=False)

  def __post_init__(self):
    """Takes the spec.

    Raises:
      ValueError: If there is no such function, or what it returns is no vector
        environment with a spec.
    """
    environment = self(seed=0, num_envs=1)
    try:
      # Frozen for users; this is its initialisation.
      object.__setattr__(self, 'spec', environment.spec)
    finally:
      environment.close()

  def __call__(self, seed: int, num_envs: int) -> base.VectorEnvironment:
    """Calls the function; see `base.EnvironmentFactory`.

    Args:
      seed: Environment `i` is seeded `seed + i`.
      num_envs: Number of environments.

    Returns:
      What the function returned.

    Raises:
      ValueError: If there is no such function, or it returned something else
        than a vector environment of `num_envs` environments with a spec.
    """
    environment = _find_function(self.path)(seed, num_envs, **self.options)
    missing = [name for name in
               ('spec', 'num_envs', 'unclipped_reward', 'reset', 'step',
                'close') if not hasattr(environment, name)]
    if missing:
      raise ValueError(
          f'{self.path} must return a vector environment, for example a '
          f'batch.BatchedEnvironment; {environment!r} has no '
          f'{", no ".join(missing)}')
    if not isinstance(environment.spec, specs.EnvironmentSpec):
      raise ValueError(f'{self.path}: expected its spec to be an '
                       f'EnvironmentSpec, got {environment.spec!r}')
    if environment.num_envs != num_envs:
      raise ValueError(f'{self.path} was asked for {num_envs} environments and '
                       f'returned {environment.num_envs}')
    return environment


def _checked(name: str, make: Callable[[], base.EnvironmentFactory]
             ) -> base.EnvironmentFactory:
  """Returns `make()`, any error in it as a ValueError that has the name.

  It runs code of others on a user's input, so any exception may be the answer
  to a wrong name or option.
  """
  try:
    return make()
  except Exception as error:  # pylint: disable=broad-exception-caught
    kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
    raise ValueError(
        f'environment {name!r} can\'t be made: {kind}{error}') from error


def _make_envpool_factory(
    name: str, options: Mapping[str, Any]) -> base.EnvironmentFactory:
  # Imported late: only users of envpool need it.
  from cleanba_acme.environments import envpool_adapter
  try:
    envpool_adapter.check_id(name)
  except (ImportError, ValueError) as error:
    raise ValueError(f'environment {name!r}: {error}\n{_FORMS}') from error
  return envpool_adapter.EnvPoolFactory(name, options)


def _make_gymnasium(
    task_id: str, options: Mapping[str, Any], seed: int) -> dm_env.Environment:
  # Imported late: only users of gymnasium need it.
  from cleanba_acme.environments import gymnasium_adapter
  return gymnasium_adapter.make(task_id, options, seed)


def _find_function(path: str) -> Callable[..., base.VectorEnvironment]:
  """Imports the function at `package.module:function`.

  Raises:
    ValueError: If the module can't be imported or has no such function.
  """
  module_name, _, function_name = path.partition(':')
  try:
    module = importlib.import_module(module_name)
  except ImportError as error:
    raise ValueError(
        f'module {module_name!r} can\'t be imported: {error}\n{_FORMS}'
    ) from error
  function = getattr(module, function_name, None)
  if not callable(function):
    raise ValueError(
        f'module {module_name!r} has no function {function_name!r}\n{_FORMS}')
  return function
