"""Where the numbers of a run go: CSV files and TensorBoard events."""

import csv
import os
import time
from typing import Mapping, Protocol, Sequence, Union

import tensorboardX

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

  def __init__(self, path: str):
    # A run never overwrites another one's numbers.
    self._file = open(path, 'x', newline='', encoding='utf-8')  # pylint: disable=consider-using-with
    self._writer = None

  def write(self, row: Row) -> None:
    """Writes one row; the first one writes the header too."""
    if self._writer is None:
      self._writer = csv.DictWriter(
          self._file, fieldnames=list(row), lineterminator='\n')
      self._writer.writeheader()
    self._writer.writerow(
        {key: _format(value) for key, value in row.items()})
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoardLogger:
  """Writes numbers as scalars against the row's `steps`.

  A curve needs no more than a point a second, and event files are slow, so the
  rows between are left out; the last row is always written.
  """

  def __init__(self, directory: str, interval_s: float = 1.0):
    self._writer = tensorboardX.SummaryWriter(directory, flush_secs=10)
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
        self._writer.add_scalar(key, value, global_step=row['steps'])


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


def make_progress_logger(output_dir: str) -> Logger:
  """Makes the logger behind `progress.csv` and TensorBoard."""
  return Tee([
      CsvLogger(os.path.join(output_dir, 'progress.csv')),
      TensorBoardLogger(os.path.join(output_dir, 'tensorboard')),
  ])


def make_ledger_logger(output_dir: str) -> Logger:
  """Makes the logger behind `ledger.csv`, the record of the contract."""
  return CsvLogger(os.path.join(output_dir, 'ledger.csv'))


def _format(value: Union[int, float, str, None]) -> Union[int, str]:
  if value is None:
    return ''
  return f'{value:.6g}' if isinstance(value, float) else value
