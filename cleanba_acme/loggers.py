"""Where the numbers of a run go: CSV files and TensorBoard events."""

import csv
import os
import time
from typing import List, Mapping, Protocol, Sequence, Union

from cleanba_acme import ledger
from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2

Row = Mapping[str, Union[int, float, str, None]]


class Logger(Protocol):
  """Takes one row per update."""

  def write(self, row: Row) -> None:
    """Writes a row; its keys are those of the first row, None is "no value".
    """

  def close(self) -> None:
    """Writes what is still held back."""


class CsvLogger:
  """Appends rows to a CSV file, each on disk before `write` returns."""

  def __init__(self, path: str, last_update: int = 0):
    """Opens the file.

    Args:
      path: The file.
      last_update: What a resumed run goes on from: later rows, and one that was
        torn, are what the interrupted run left, and are dropped.
    """
    kept = _read_rows(path, last_update)
    temporary = f'{path}.tmp'
    with open(temporary, 'w', newline='', encoding='utf-8') as file:
      file.writelines(kept)
    os.replace(temporary, path)  # Killed here, nothing is lost.
    self._path = path
    self._file = open(path, 'a', newline='', encoding='utf-8')  # pylint: disable=consider-using-with
    self._has_header = bool(kept)

  def write(self, row: Row) -> None:
    """Writes one row; the first one writes the header too."""
    writer = csv.DictWriter(
        self._file, fieldnames=list(row), lineterminator='\n')
    if not self._has_header:
      writer.writeheader()
      self._has_header = True
    writer.writerow({key: _format(value) for key, value in row.items()})
    try:
      self._file.flush()
    except OSError as error:  # It doesn't know its file.
      raise OSError(error.errno, error.strerror, self._path) from error

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoardLogger:
  """Writes numbers as scalars against the row's `steps`.

  A curve needs no more than a point a second, and event files are slow, so the
  rows between are left out; the last row is always written.
  """

  def __init__(
      self, directory: str, last_steps: int = 0, interval_s: float = 1.0):
    """Starts an event file.

    Args:
      directory: Where it goes, beside those of earlier parts of the run.
      last_steps: What a resumed run goes on from; TensorBoard drops later
        points.
      interval_s: Least time between points.
    """
    # Not `SummaryWriter`, which writes in a thread: when the disk is full, that
    # ends, and `close` waits for it for ever.
    os.makedirs(directory, exist_ok=True)
    self._writer = event_file_writer.EventsWriter(
        os.path.join(directory, 'events'))
    if last_steps:
      self._writer.write_event(event_pb2.Event(
          wall_time=time.time(), step=last_steps + 1,
          session_log=event_pb2.SessionLog(
              status=event_pb2.SessionLog.START)))
    self._interval_s = interval_s
    self._last_time = -float('inf')
    self._held_back = None

  def write(self, row: Row) -> None:
    """Writes the row, or holds it back until the next is due."""
    self._held_back = row
    if time.monotonic() - self._last_time >= self._interval_s:
      self._write_held_back()

  def close(self) -> None:
    """Writes the last row and closes the file."""
    self._write_held_back()
    self._writer.close()

  def _write_held_back(self) -> None:
    if self._held_back is None:
      return
    row, self._held_back = self._held_back, None
    self._last_time = time.monotonic()
    for key, value in row.items():
      if isinstance(value, (int, float)) and key != 'steps':
        self._writer.write_event(event_pb2.Event(
            wall_time=time.time(), step=row['steps'],
            summary=summary.scalar(key, value)))
    self._writer.flush()


class Tee:
  """Writes every row to several loggers."""

  def __init__(self, loggers: Sequence[Logger]):
    self._loggers = loggers

  def write(self, row: Row) -> None:
    """Writes to all."""
    for logger in self._loggers:
      logger.write(row)

  def close(self) -> None:
    """Closes all."""
    for logger in self._loggers:
      logger.close()


def make_progress_logger(
    output_dir: str, last_update: int = 0, last_steps: int = 0) -> Logger:
  """Makes the logger behind `progress.csv` and TensorBoard.

  Args:
    output_dir: The run's directory.
    last_update: Updates that a resumed run has behind it.
    last_steps: Its environment steps.
  """
  return Tee([
      CsvLogger(os.path.join(output_dir, 'progress.csv'), last_update),
      TensorBoardLogger(os.path.join(output_dir, 'tensorboard'), last_steps),
  ])


def make_ledger_logger(output_dir: str, last_update: int = 0) -> Logger:
  """Makes the logger behind `ledger.csv`, the record of the contract.

  Args:
    output_dir: The run's directory.
    last_update: Updates that a resumed run has behind it.
  """
  return CsvLogger(os.path.join(output_dir, ledger.FILE_NAME), last_update)


def count_updates(path: str) -> int:
  """Counts the updates that a `CsvLogger` has written.

  Args:
    path: Its file. A last row that was torn doesn't count.

  Raises:
    ValueError: It can't be read, or doesn't have each update once.
  """
  try:
    header, *lines = ledger.read_whole_lines(path)
  except FileNotFoundError:
    return 0
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f'{path}: can\'t be read: {error}') from error
  if header.split(',')[0] != 'update':
    raise ValueError(f'{path}: its first column must be update, is {header}')
  for expected, line in enumerate(lines, start=1):
    if line.split(',')[0] != str(expected):
      raise ValueError(
          f'{path}: has update {line.split(",")[0]} where {expected} must come')
    if line.count(',') != header.count(','):
      raise ValueError(
          f'{path}: row {expected} must have {header.count(",") + 1} values, '
          f'has {line.count(",") + 1}')
  return len(lines)


def _read_rows(path: str, last_update: int) -> List[str]:
  """Returns header and rows up to an update, nothing if there are none."""
  if not last_update or not os.path.exists(path):
    return []
  header, *lines = ledger.read_whole_lines(path)
  column = header.split(',').index('update')
  return [f'{header}\n', *[
      f'{line}\n' for line in lines
      if int(line.split(',')[column]) <= last_update]]


def _format(value: Union[int, float, str, None]) -> Union[int, str]:
  if value is None:
    return ''
  return f'{value:.6g}' if isinstance(value, float) else value
