"""Shows how a run is going, from the file that the run writes anyway."""

import csv
import datetime
import io
import os
import threading
from typing import Dict, Optional, TextIO

# Seconds between looks at the file, on a terminal and in a log.
_LIVE_INTERVAL_S = 0.5
_PLAIN_INTERVAL_S = 10.0
# More than the longest row.
_TAIL_BYTES = 4096


class Display:
  """One live line on a terminal; plain lines, now and then, elsewhere.

  Usage:

    with Display('results/run/progress.csv', total_updates=100, stream=stdout):
      ...
  """

  def __init__(self, path: str, total_updates: int, stream: TextIO):
    """Makes the display; it starts when entered.

    Args:
      path: The `progress.csv`, which may not exist yet.
      total_updates: Updates of the whole run.
      stream: Where to show the lines.
    """
    self._path = path
    self._total_updates = total_updates
    self._stream = stream
    self._is_live = stream.isatty()
    self._shown = None
    self._redraw = False
    self._end = threading.Event()
    self._thread = threading.Thread(
        target=self._run, name='display', daemon=True)

  def __enter__(self) -> 'Display':
    self._thread.start()
    return self

  def __exit__(self, *unused_args) -> None:
    self._end.set()
    self._thread.join()
    self._show()
    if self._is_live and self._shown:
      self._stream.write('\n')
      self._stream.flush()

  def say(self, line: str) -> None:
    """Prints a line, above the live one if there is one."""
    # In one call, so that the thread can't write between.
    self._stream.write(f'\r{line}\x1b[K\n' if self._is_live else f'{line}\n')
    self._stream.flush()
    self._redraw = True

  def _run(self) -> None:
    interval = _LIVE_INTERVAL_S if self._is_live else _PLAIN_INTERVAL_S
    # The first line comes as soon as there is one.
    while not self._end.wait(interval if self._shown else _LIVE_INTERVAL_S):
      self._show()

  def _show(self) -> None:
    row = read_last_row(self._path)
    if row is None:
      return
    line = format_row(row, self._total_updates)
    if line == self._shown and not (self._is_live and self._redraw):
      return
    self._shown, self._redraw = line, False
    self._stream.write(f'\r{line}\x1b[K' if self._is_live else f'{line}\n')
    self._stream.flush()


def read_last_row(path: str) -> Optional[Dict[str, str]]:
  """Returns the last whole row of a CSV file, None if there is none yet."""
  try:
    with open(path, 'rb') as file:
      header = file.readline()
      start = file.tell()
      file.seek(max(start, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
      tail = file.read()
  except FileNotFoundError:
    return None
  lines = tail[:tail.rfind(b'\n') + 1].splitlines()
  if not lines:
    return None
  return next(csv.DictReader(io.StringIO((header + lines[-1]).decode())))


def format_row(row: Dict[str, str], total_updates: int) -> str:
  """Formats a row of `progress.csv` as one line."""
  update = int(row['update'])
  remaining = float(row['seconds']) * (total_updates - update) / update
  returns = row['episode_return']
  return (
      f'update {update}/{total_updates}  '
      f'steps {int(row["steps"]):,}  '
      f'{float(row["sps"]):,.0f} steps/s  '
      f'return {f"{float(returns):.4g}" if returns else "-"}  '
      f'ETA {datetime.timedelta(seconds=round(remaining))}')
