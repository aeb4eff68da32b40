"""Notices that a run makes no progress, whoever is to blame."""

import os

from cleanba_acme import channels
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import session as session_lib

# Later than the workers, who can tell who keeps them waiting.
_PATIENCE_S = 4.0
# More time until the first update: processes start, functions are compiled.
_START_S = 120.0


class Watch:
  """Looks at the ledger of a run, which gets a row with every update.

  A worker that waits for another one gives up by itself; this is for when all
  of them hang, or the last one, which nobody waits for.
  """

  def __init__(self, session: session_lib.Session):
    self._path = os.path.join(session.output_dir, ledger.FILE_NAME)
    self._limit_s = session.hang_timeout_s + _PATIENCE_S
    self._state = self._read_state()
    # The first is made when the learner opens it.
    self._num_changes = 0
    self._patience = channels.Patience()

  def check(self) -> None:
    """Must be called several times a second.

    Raises:
      exits.NodeFailed: There was no update for too long.
    """
    state = self._read_state()
    if state != self._state:
      self._state = state
      self._num_changes += 1
      self._patience = channels.Patience()
    limit = self._limit_s
    if self._num_changes < 2:
      limit += _START_S
    if self._patience.seconds() > limit:
      raise exits.NodeFailed(
          'the run', f'no update for {limit:.0f} s, and no worker has said why',
          is_hang=True)

  def _read_state(self):
    try:
      status = os.stat(self._path)
    except FileNotFoundError:
      return None
    return status.st_ino, status.st_mtime_ns
