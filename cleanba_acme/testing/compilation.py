"""How tests keep the time short that XLA takes to compile."""

import contextlib
from typing import Iterator

import jax

_FLAG = 'jax_disable_most_optimizations'


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
  """Compiles what is first called within it fast, instead of to be fast.

  Halves the time of a test of many small programs that run a few times each.
  """
  before = jax.config.read(_FLAG)
  jax.config.update(_FLAG, True)
  try:
    yield
  finally:
    jax.config.update(_FLAG, before)
