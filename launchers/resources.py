"""Shares the machine's cores between the workers of a run."""

import os
from typing import Optional

# What libraries with threads of their own read: OpenMP, BLAS, and the pools of
# environments (`environments.envpool_adapter`).
_VARIABLES = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


def num_cores() -> int:
  """Returns how many cores this process may use."""
  return len(os.sched_getaffinity(0))


def threads_per_worker(num_actors: int) -> int:
  """Returns how many threads a worker may have beside XLA's.

  That is what the user's environment says (OMP_NUM_THREADS), or an equal share
  of the cores: actors act at the same time.

  Args:
    num_actors: Actors of the run.

  Raises:
    ValueError: The environment variable is no positive number.
  """
  value = os.environ.get(_VARIABLES[0])
  if value is None:
    return max(1, num_cores() // num_actors)
  if not value.isdecimal() or not int(value):
    raise ValueError(
        f'the environment variable {_VARIABLES[0]}={value!r} must be a '
        'positive number')
  return int(value)


def set_threads(num_actors: int, threads: Optional[int] = None) -> None:
  """Sets the threads of this process's libraries, and of workers to come.

  To be called before they are imported.

  Args:
    num_actors: Actors of the run.
    threads: How many; None for `threads_per_worker`.

  Raises:
    ValueError: As `threads_per_worker` does.
  """
  if threads is None:
    threads = threads_per_worker(num_actors)
    for name in _VARIABLES:
      os.environ.setdefault(name, str(threads))
  else:
    os.environ.update(dict.fromkeys(_VARIABLES, str(threads)))
