"""How a run ends: the exit statuses, and the errors behind them."""

DONE = 0
USER_ERROR = 1
NODE_FAILED = 2
HUNG = 3
DIVERGED = 4
INTERRUPTED = 130

# How long workers may take to stop after they were told to, in seconds; they
# look several times a second, so only one that is computing takes longer.
GRACE_S = 5.0


class NodeFailed(Exception):
  """A worker raised, or its process died.

  Attributes:
    node: Which one.
    report: What it left to read, its traceback at the end.
    is_hang: Whether it gave up waiting for another one.
  """

  def __init__(self, node: str, report: str, is_hang: bool = False):
    super().__init__(f'{node} {"waited in vain" if is_hang else "failed"}')
    self.node = node
    self.report = report
    self.is_hang = is_hang

  @property
  def status(self) -> int:
    """The exit status of the run."""
    return HUNG if self.is_hang else NODE_FAILED
