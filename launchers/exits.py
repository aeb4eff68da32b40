"""How a run ends: the exit statuses, and the errors behind them."""

DONE = 0
USER_ERROR = 1
NODE_FAILED = 2
INTERRUPTED = 130

# How long workers may take to stop after they were told to, in seconds; they
# look several times a second, so only one that is computing takes longer.
GRACE_S = 5.0


class NodeFailed(Exception):
  """A worker raised, or its process died.

  Attributes:
    node: Which one.
    report: What it left to read, its traceback at the end.
  """

  def __init__(self, node: str, report: str):
    super().__init__(f'{node} failed')
    self.node = node
    self.report = report
