"""Threads of one process that compute on the CPU at the same time.

An XLA client computes on threads of its own, as many as `--xla_threads` says.
All programs of a client share them, whoever calls these; and more threads would
change the bits. So a thread that is to compute beside others needs its own
client, as it would have in a process of its own.
"""

import functools
from typing import Optional

import jax
from jaxlib import xla_client


@functools.cache
def get_device(index: int) -> Optional[jax.Device]:
  """Returns the CPU of a client that is made at the first call.

  Give it to `jax.default_device` in the thread that is to compute there. What
  was compiled for another client is in the compilation cache, if there is one.

  Args:
    index: Which client; none is the one that JAX has by default.

  Returns:
    The device; None where JAX doesn't compute on the CPU.
  """
  if jax.default_backend() != 'cpu':
    return None
  return xla_client.make_cpu_client().local_devices()[0]
