"""Threads of one process that compute on the CPU at the same time.

An XLA client computes on threads of its own, as many as `--xla_threads` says.
All programs of a client share them, whoever calls these; and more threads would
change the bits. So a thread that is to compute beside others needs its own
client, as it would have in a process of its own.
"""

from typing import Optional

import jax
from jaxlib import xla_client


def make_device() -> Optional[jax.Device]:
  """Returns the CPU of a new client.

  Give it to `jax.default_device` in the thread that is to compute there. What
  was compiled for another client is in the compilation cache, if there is one.

  Returns:
    The device; None where JAX doesn't compute on the CPU.
  """
  if jax.default_backend() != 'cpu':
    return None
  return xla_client.make_cpu_client().local_devices()[0]
