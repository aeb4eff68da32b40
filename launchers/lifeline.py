"""Ties the life of a node's process to that of the launcher."""

import ctypes
import os
import signal
from typing import Dict

_LAUNCHER = 'CLEANBA_ACME_LAUNCHER_PID'
_PR_SET_PDEATHSIG = 1


def environment() -> Dict[str, str]:
  """Returns the environment variables that a node's process needs."""
  return {_LAUNCHER: str(os.getpid())}


def attach() -> None:
  """Makes the kernel kill this process when the launcher dies, however it does.

  Where there is no such kernel (other than Linux), nothing happens.
  """
  prctl = getattr(ctypes.CDLL(None), 'prctl', None)
  if prctl is None:
    return
  prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != int(os.environ[_LAUNCHER]):
    os.kill(os.getpid(), signal.SIGKILL)  # It died before the call above.
