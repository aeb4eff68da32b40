"""How a run ends: the exit statuses, and the errors behind them."""

import signal
import sys
from typing import Callable

DONE = 0
USER_ERROR = 1
NODE_FAILED = 2
HUNG = 3
DIVERGED = 4
INTERRUPTED = 130

# Of a node's process that has done all of its work. Not 0: that is also how a
# process ends in which an environment calls `sys.exit`.
WORK_DONE = 64

# How long workers may take to stop after they were told to, in seconds; they
# look several times a second, so only one that is computing takes longer.
GRACE_S = 5.0


class NodeFailed(Exception):
  """A worker raised, or its process died.

  Attributes:
    node: Which one.
    cause: Why, in one line if possible.
    report: What else it left to read, such as its traceback.
    is_hang: Whether it gave up waiting for another one.
  """

  def __init__(
      self, node: str, cause: str, report: str = '', is_hang: bool = False):
    super().__init__(f'{node} {"waited in vain" if is_hang else "failed"}')
    self.node = node
    self.cause = cause
    self.report = report
    self.is_hang = is_hang

  @property
  def status(self) -> int:
    """The exit status of the run."""
    return HUNG if self.is_hang else NODE_FAILED

  def explain(self) -> str:
    """Returns all that is known; the last line is the one to read first."""
    return '\n'.join(filter(None, [self.report, f'{self}: {self.cause}']))


def run_script(name: str, work: Callable[[], int]) -> None:
  """Does a script's work, says what went wrong, and exits.

  Args:
    name: The script's.
    work: Returns the exit status. May raise `ValueError`, for what its user did
      wrong, `NodeFailed`, and what `testing.programs` raises.
  """
  # However it is ended, it ends the processes that it started.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    status = work()
  except ValueError as error:
    print(f'{name}: {error}', file=sys.stderr)
    status = USER_ERROR
  except NodeFailed as failure:
    print(failure.explain(), file=sys.stderr)
    status = failure.status
  except AssertionError as error:  # A run ended, or hung; has its output.
    print(f'{name}: {error}', file=sys.stderr)
    status = NODE_FAILED
  except KeyboardInterrupt:
    status = INTERRUPTED
  sys.exit(status)
