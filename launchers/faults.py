"""Breaks runs in every way we know of, and measures how they end.

    python -m cleanba_acme.launchers.faults

makes every fault of `fault_matrix`, one run after the other, checks that the
run ends as it must, and writes the table of docs/reliability.md anew. It takes
a quarter of an hour. `--faults=SIGSTOP` makes those with this word in their
name, and only prints them.

The exit status is 0 (all ended as they must), 1 (wrong arguments), 2 (one
didn't) or 130 (interrupted).
"""

import contextlib
import os
import pathlib
import re
import tempfile
import time
from typing import Iterable, List, NamedTuple, Optional, Sequence, Set

from absl import app
from absl import flags
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import fault_matrix
from cleanba_acme.testing import programs

_FAULTS = flags.DEFINE_list(
    'faults', [],
    'Make only the faults whose names have all of these words, and write no '
    'table.')
_TABLE = flags.DEFINE_string(
    'table', 'docs/reliability.md', 'The file whose table is written anew.')

_TAIL_LINES = 20
# A run that must end and doesn't gets this much more, to see how late it is.
_EXTRA_S = 60.0
_COLUMNS = ('fault', 'node', 'launch', 'exit status', 'seconds to the end',
            'the line that names the cause', 'left over')
_MAX_CAUSE = 100
_BEGIN, _END = '<!-- faults: begin -->', '<!-- faults: end -->'


class Result(NamedTuple):
  """How a broken run ended.

  Attributes:
    status: Its exit status.
    seconds: From the fault to the end.
    cause: The line that names the cause, None if none of the last lines does.
    left_over: What it left behind, in words; nothing, if all is well.
    output: All that it printed.
  """
  status: int
  seconds: float
  cause: Optional[str]
  left_over: Sequence[str]
  output: str


def run(cell: fault_matrix.Cell, folder: pathlib.Path) -> Result:
  """Makes a run, breaks it, and waits for its end.

  Args:
    cell: What to do.
    folder: An empty one.

  Raises:
    fault_matrix.Skipped: This system doesn't allow it.
    AssertionError: The run did not end at all, or before it was broken.
  """
  output_dir = folder / 'run'
  with contextlib.ExitStack() as stack:
    env = cell.prepare(output_dir, stack)
    with programs.Program(
        cell.module, *cell.train_flags, f'--output_dir={output_dir}',
        env=env) as program:
      begin = (cell.strike(fault_matrix.Run(program, output_dir)) or
               time.monotonic())
      pids = program.processes()
      sockets, segments = _listeners(pids), _open_segments(pids)
      ended = program.wait(cell.limit_s + _EXTRA_S)
      seconds = time.monotonic() - begin
      left_over = [f'process {command}'
                   for command in ended.left_over.values()]
      left_over += sockets & _listeners(
          int(pid) for pid in os.listdir('/proc') if pid.isdecimal())
      left_over += [
          segment for segment in segments if os.path.exists(segment)]
  tail = re.split(r'[\r\n]+', ended.output.rstrip())[-_TAIL_LINES:]
  causes = [line for line in tail if re.search(cell.cause, line)]
  return Result(
      ended.status, seconds, causes[-1] if causes else None, left_over,
      ended.output)


def problems(
    cell: fault_matrix.Cell, result: Result, slack_s: float = 0.
) -> List[str]:
  """Returns what is wrong with how a run ended.

  Args:
    cell: What was done.
    result: How it ended.
    slack_s: What a busy machine may take longer.
  """
  found = []
  if result.status != cell.status:
    found.append(f'status {result.status}, expected {cell.status}')
  if result.seconds > cell.limit_s + slack_s:
    found.append(f'it took {result.seconds:.1f} s')
  if result.cause is None:
    found.append(f'no {cell.cause!r} in its last lines')
  return found + [f'left over: {thing}' for thing in result.left_over]


def _listeners(pids: Iterable[int]) -> Set[str]:
  """Returns the ports that processes listen on, and their sockets."""
  found = set()
  for pid in pids:
    with contextlib.suppress(OSError):  # It has ended.
      own = programs.sockets(pid)
      found |= {f'port {port} ({inode})'
                for inode, port in programs.listeners(pid).items()
                if inode in own}
  return found


def _open_segments(pids: Iterable[int]) -> Set[str]:
  """Returns the paths of the shared memory that processes use."""
  found = set()
  for pid in pids:
    with contextlib.suppress(OSError), open(
        f'/proc/{pid}/maps', encoding='utf-8', errors='replace') as file:
      found |= set(re.findall('/dev/shm/.*', file.read()))
  return found


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  exits.run_script('faults', _run_all)


def _run_all() -> int:
  cells = [cell for cell in fault_matrix.CELLS
           if all(word in cell.name for word in _FAULTS.value)]
  if not cells:
    raise ValueError(
        f'--faults={",".join(_FAULTS.value)}: there is no such fault')
  if not (_FAULTS.value or os.path.exists(_TABLE.value)):
    raise ValueError(f'--table={_TABLE.value}: must be a file')
  rows = [_COLUMNS, ['---'] * len(_COLUMNS)]
  are_well = True
  for cell in cells:
    with tempfile.TemporaryDirectory(prefix='faults-') as folder:
      try:
        result = run(cell, pathlib.Path(folder))
      except fault_matrix.Skipped as reason:
        print(f'{cell.name}: skipped, {reason}', flush=True)
        rows.append([cell.fault, cell.node, cell.launch, f'skipped: {reason}',
                     '', '', ''])
        continue
      except AssertionError as error:
        are_well = False
        print(f'{error}\nWRONG: {cell.name}: it did not break as it must',
              flush=True)
        rows.append([cell.fault, cell.node, cell.launch, 'did not break as it '
                     'must', '', '', ''])
        continue
    wrong = problems(cell, result)
    print(f'{cell.name}: status {result.status}, {result.seconds:.1f} s, '
          f'{result.cause!r}', flush=True)
    if wrong:
      are_well = False
      print(f'{result.output}\nWRONG: {"; ".join(wrong)}', flush=True)
    cause = (result.cause or '').replace(folder, 'results').replace('|', '\\|')
    rows.append([
        cell.fault, cell.node, cell.launch, str(result.status),
        f'{result.seconds:.1f}',
        f'`{cause[:_MAX_CAUSE]}{"…" if cause[_MAX_CAUSE:] else ""}`'
        if cell.cause else 'nobody is left to name it',
        ', '.join(result.left_over) or 'nothing'])
  if not _FAULTS.value:
    _write_table(_TABLE.value, rows)
  return exits.DONE if are_well else exits.NODE_FAILED


def _write_table(path: str, rows: Sequence[Sequence[str]]) -> None:
  """Replaces the table in a file, which stands between two comments."""
  with open(path, encoding='utf-8') as file:
    before, _, rest = file.read().partition(_BEGIN)
  _, _, after = rest.partition(_END)
  table = '\n'.join(f'| {" | ".join(row)} |' for row in rows)
  with open(path, 'w', encoding='utf-8') as file:
    file.write(f'{before}{_BEGIN}\n\n{table}\n\n{_END}{after}')


if __name__ == '__main__':
  app.run(main)
