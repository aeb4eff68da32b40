"""Reads the ledgers of runs, and finds where two of them part ways.

The ledger has a row per update. Within a row, one column follows from another:
with the keys they were given, actors acted with a version of the parameters;
that made the data, and from the data follow the new parameters. So the first
of these that differs is the cause, and what comes after it the effect.
"""

import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence

FILE_NAME = 'ledger.csv'

# What can be the first to differ, in the order of cause and effect.
STEPS = 'steps'
KEYS = 'keys'
VERSION = 'version'
DATA = 'data'
PARAMETERS = 'parameters'
# One ledger goes on where the other ends.
LENGTH = 'length'

_COLUMNS = {
    STEPS: 'steps',
    KEYS: 'keys',
    VERSION: 'version',
    DATA: 'data',
    PARAMETERS: 'fingerprint',
}
# Of these there is one column per actor, too.
_PER_ACTOR = (VERSION, DATA)

_NUMBER = re.compile('[0-9]+')
_HASH = re.compile('[0-9a-f]{16}')


class Ledger(NamedTuple):
  """The whole rows of a ledger; row `i` is of update `i + 1`."""
  rows: Sequence[Dict[str, str]]

  @property
  def num_actors(self) -> int:
    """How many actors the run had."""
    row = self.rows[0] if self.rows else {}
    return sum(name.startswith('data_') for name in row)


class Divergence(NamedTuple):
  """Where two ledgers part ways.

  Attributes:
    update: The first update whose rows differ.
    field: What in it differed first: `STEPS`, `KEYS`, `VERSION`, `DATA`,
      `PARAMETERS`, or `LENGTH`.
    detail: More about it, in words.
  """
  update: int
  field: str
  detail: str

  def __str__(self) -> str:
    return f'update {self.update}: {self.field} ({self.detail})'


def read_whole_lines(path: str) -> List[str]:
  """Returns the lines of a file that a run adds lines to.

  Args:
    path: The file. What comes after the last end of a line, if anything, was
      torn by a kill or is being written, and is left out.

  Returns:
    The lines without their ends; one at least, which may be empty.

  Raises:
    OSError: It can't be read.
    UnicodeDecodeError: It is no text.
  """
  with open(path, newline='', encoding='utf-8') as file:
    return file.read().split('\n')[:-1] or ['']


def read(path: str) -> Ledger:
  """Reads a ledger.

  Args:
    path: The file, or the directory of a run. A last row that was torn, by a
      kill, is left out.

  Raises:
    ValueError: There is no ledger, a row is damaged, or it doesn't have each
      update once.
  """
  if os.path.isdir(path):
    path = os.path.join(path, FILE_NAME)
  try:
    header, *lines = read_whole_lines(path)
  except OSError as error:
    raise ValueError(
        f'{path}: must be a ledger, or a directory with one '
        f'({error.strerror})') from error
  except UnicodeDecodeError as error:
    raise ValueError(f'{path}: is no ledger, it is no text: {error}') from error
  names = header.split(',')
  actors = range(sum(name.startswith('data_') for name in names))
  patterns = {
      'steps': _NUMBER, 'version': _NUMBER,
      'fingerprint': _HASH, 'keys': _HASH, 'data': _HASH,
      **{f'version_{i}': _NUMBER for i in actors},
      **{f'data_{i}': _HASH for i in actors}}
  missing = {'update', *patterns} - set(names)
  if missing:
    raise ValueError(
        f'{path}: is no ledger, it has no column {", ".join(sorted(missing))}')
  if len(set(names)) < len(names):
    raise ValueError(f'{path}: is no ledger, it has a column twice: {header}')
  rows = []
  for expected, line in enumerate(lines, start=1):
    values = line.split(',')
    if len(values) != len(names):
      raise ValueError(
          f'{path}: row {expected} has {len(values)} values where there are '
          f'{len(names)} columns')
    row = dict(zip(names, values))
    if row['update'] != str(expected):
      raise ValueError(
          f'{path}: has update {row["update"]} where {expected} must come, so '
          'it does not have each update exactly once')
    for name, pattern in patterns.items():
      if not pattern.fullmatch(row[name]):
        raise ValueError(
            f'{path}: row {expected} has {name}={row[name]!r}: must be '
            + ('a number' if pattern is _NUMBER else '16 hexadecimal digits'))
    rows.append(row)
  return Ledger(rows)


def compare(ledger: Ledger, other: Ledger) -> Optional[Divergence]:
  """Finds the first update in which two ledgers differ, and what in it did.

  Ledgers of other numbers of actors can be compared: but for the columns about
  each actor, none depends on how the environments are split.

  Args:
    ledger: One ledger.
    other: Another.

  Returns:
    Where they part ways; None if they are identical.
  """
  is_same_layout = ledger.num_actors == other.num_actors
  for update, (row, other_row) in enumerate(
      zip(ledger.rows, other.rows), start=1):
    divergence = _compare_rows(
        update, row, other_row, ledger.num_actors if is_same_layout else 0)
    if divergence is not None:
      return divergence
  lengths = sorted((len(ledger.rows), len(other.rows)))
  if lengths[0] != lengths[1]:
    return Divergence(
        lengths[0] + 1, LENGTH,
        f'one has {lengths[0]} updates, the other {lengths[1]}')
  return None


def _compare_rows(
    update: int, row: Dict[str, str], other: Dict[str, str], num_actors: int
) -> Optional[Divergence]:
  """Compares two rows of an update; `num_actors` is 0 for other layouts."""
  different = []
  for field, column in _COLUMNS.items():
    names = [column]
    if field in _PER_ACTOR:
      names += [f'{column}_{i}' for i in range(num_actors)]
    if any(row[name] != other[name] for name in names):
      different.append(field)
  if not different:
    return None
  field = different[0]
  data, other_data = [
      [ledger_row[f'data_{i}'] for i in range(num_actors)]
      for ledger_row in (row, other)]
  details = []
  moved = _list(i for i in range(num_actors) if data[i] != other_data[i])
  if moved and sorted(data) == sorted(other_data):
    # Their keys and versions moved with them: not the cause, then.
    field = DATA
    details.append(f'the items of actors {moved} have changed places')
  elif field in (KEYS, DATA) and moved:
    details.append(f'of actor {moved}')
  elif field == VERSION:
    names = [f'version_{i}' for i in range(num_actors)] or ['version']
    name = next((name for name in names if row[name] != other[name]), 'version')
    details.append(
        f'{row[name]} and {other[name]}'
        + (f', of actor {name.split("_")[1]}' if '_' in name else ''))
  elif field == STEPS:
    details.append(f'{row["steps"]} and {other["steps"]}')
  same = [name for name in _COLUMNS if name not in different]
  if same:
    details.append(f'with the same {", ".join(same)}')
  return Divergence(update, field, '; '.join(details) or 'nothing is the same')


def _list(actors) -> str:
  numbers: List[str] = [str(i) for i in actors]
  return ' and '.join(filter(None, [', '.join(numbers[:-1]), *numbers[-1:]]))
