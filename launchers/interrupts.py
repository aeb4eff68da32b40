"""Lets one Ctrl-C end a program, at any moment and within bounded time."""

import os
import signal
import sys
import threading
import time

from cleanba_acme.launchers import exits

# From Ctrl-C to the end of the program, whatever it is doing.
_LIMIT_S = 8.0


class Interrupts:
  """Handles Ctrl-C, in the main thread.

  Attributes:
    can_stop: Whether a `KeyboardInterrupt` makes the program stop in order.
      Until then Ctrl-C ends it at once: modules in C, while they are imported,
      would make an ImportError of the exception.
    came: Whether there was one. Then whatever exception the program ends with
      is a consequence: code in C may replace `KeyboardInterrupt`.
  """

  def __init__(self):
    self.can_stop = False
    self.came = False
    signal.signal(signal.SIGINT, self._handle)
    sys.unraisablehook = _report_unraisable

  def start(self) -> None:
    """Bounds the time; what needs a process without threads comes before."""
    # C code that computes for long holds up Python's signal handlers, and a
    # destructor may swallow what they raise; this thread is told in any case.
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(
        target=self._end, args=(read,), name='interrupts', daemon=True).start()

  def _handle(self, *unused_args) -> None:
    if self.came or not self.can_stop:
      os._exit(exits.INTERRUPTED)  # The kernel kills the nodes.
    self.came = True
    raise KeyboardInterrupt

  def _end(self, pipe: int) -> None:
    while signal.SIGINT not in os.read(pipe, 1):
      pass  # Another signal.
    time.sleep(_LIMIT_S)
    os._exit(exits.INTERRUPTED)


def _report_unraisable(unraisable) -> None:
  """Reports what a destructor or a callback swallowed, but for Ctrl-C."""
  if not issubclass(unraisable.exc_type, KeyboardInterrupt):
    sys.__unraisablehook__(unraisable)
