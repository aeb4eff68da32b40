"""Shares the machine's cores and memory between the workers of a run."""

import ctypes
import os
from typing import Dict, Optional

# What libraries with threads of their own read: OpenMP, BLAS, and the pools of
# environments (`environments.envpool_adapter`).
_VARIABLES = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')
# Settings of glibc's allocator: what it reads in the environment when a process
# starts, their number in `mallopt`, and their value. No block is the system's
# own, to go back as soon as it is free; the heap doesn't shrink before 2 GiB
# are free; and threads share it (heaps of their own are of 64 MiB, and go back
# when they are empty).
_MALLOC = (
    ('MALLOC_MMAP_MAX_', -4, 0),
    ('MALLOC_TRIM_THRESHOLD_', -1, 2**31 - 1),
    ('MALLOC_ARENA_MAX', -8, 1),
)


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


def keep_memory() -> None:
  """Has this process use again what memory it frees.

  An update frees what it computed with, and the next one needs as much. Got
  from the system each time, every page of it costs a fault. Does nothing where
  the allocator isn't glibc's, and changes no setting that the user's
  environment makes. To be called before there are threads.
  """
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  for name, number, value in _MALLOC:
    if name not in os.environ and mallopt is not None:
      mallopt(number, value)


def kept_memory() -> Dict[str, str]:
  """Returns what the environment of a process says to have it keep memory."""
  return {name: str(value) for name, _, value in _MALLOC
          if name not in os.environ}
