"""Breaks runs in every way we know of, and measures how they end.

    python -m cleanba_acme.launchers.faults

makes every fault of `CELLS`, one run after the other, checks that the run ends
as it must, and writes the table of docs/reliability.md anew. It takes a quarter
of an hour. `--faults=SIGSTOP` makes those with this word in their name, and
only prints them.

The exit status is 0 (all ended as they must), 1 (wrong arguments), 2 (one
didn't) or 130 (interrupted).
"""

import contextlib
import os
import pathlib
import re
import resource
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from typing import (
    Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple)

from absl import app
from absl import flags
from cleanba_acme import seeding
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import trials
from cleanba_acme.testing import fakes
from cleanba_acme.testing import programs

_FAULTS = flags.DEFINE_list(
    'faults', [],
    'Make only the faults whose names have all of these words, and write no '
    'table.')
_TABLE = flags.DEFINE_string(
    'table', 'docs/reliability.md', 'The file whose table is written anew.')

# From the fault to the end of the run; a hang must be noticed first.
LIMIT_S = 10.0
HANG_TIMEOUT_S = 10.0
_TAIL_LINES = 20
# A run that must end and doesn't gets this much more, to see how late it is.
_EXTRA_S = 60.0
_START_S = 300.0
_STOPPED_S = 1.5 * HANG_TIMEOUT_S

THREADS = 'threads'
PROCESSES = 'processes'

_DISTURBED = 'cleanba_acme.launchers.disturbed'
_SEED = 1
_NUM_ENVS = 4
_EXPERIMENT = (
    '--env=cleanba_acme.testing.fakes:make_catch', f'--seed={_SEED}',
    '--num_actors=2', f'--num_envs={_NUM_ENVS}', '--unroll_length=6',
    '--network.hiddens=(8,)', '--checkpoint_every=10', '--total_steps=1000000')
_SHORT_HANG = (f'--hang_timeout_s={HANG_TIMEOUT_S}',)
# In the fourth round.
_STEP = 20
_UPDATE = 4
# No update for so long is the end of updates.
_QUIET_S = 2.0
_COLUMNS = ('fault', 'node', 'launch', 'exit status', 'seconds to the end',
            'the line that names the cause', 'left over')
_MAX_CAUSE = 100
_BEGIN, _END = '<!-- faults: begin -->', '<!-- faults: end -->'
# Of the second actor, at the first boundary.
_ACTOR_SEED = seeding.environment_seed(_SEED, 0) + _NUM_ENVS // 2


class Skipped(Exception):
  """This system doesn't let us make the fault; says why."""


class Run(NamedTuple):
  """A run that is to be broken.

  Attributes:
    program: Its processes.
    output_dir: Its directory.
  """
  program: programs.Program
  output_dir: pathlib.Path

  def has_printed(self, words: str) -> bool:
    """Whether it, or one of its nodes, has."""
    return words in self.program.output() or any(
        words in path.read_text(encoding='utf-8', errors='replace')
        for path in self.output_dir.glob('logs/*.log'))

  def pid(self, node: str) -> int:
    """Waits for a node's process, such as `actor-1`, and returns it."""
    if node == trials.LAUNCHER:
      return self.program.pid
    return self.program.wait_for(
        lambda: self.program.writer_of(
            self.output_dir / 'logs' / f'{node}.log'), _START_S)

  def wait_for_updates(self, number: int = 3) -> None:
    """Waits until there are so many."""
    self.program.wait_for(
        lambda: trials.count_updates(str(self.output_dir)) >= number, _START_S)


# Prepares a run; gives it environment variables.
_Prepare = Callable[[pathlib.Path, contextlib.ExitStack], Dict[str, str]]


def _until(words: str) -> Callable[[Run], None]:
  """Waits until the run, or a node, has printed that it is broken."""
  def strike(run: Run) -> None:
    run.program.wait_for(lambda: run.has_printed(words), _START_S)
  return strike


class Cell(NamedTuple):
  """One fault: what is done to whom, and how the run must end.

  Attributes:
    fault: What.
    node: To whom.
    launch: `THREADS` or `PROCESSES`.
    status: The exit status that the run must have.
    cause: Must be found in the last lines of the output; a regular expression.
      Empty if nobody is left to say anything.
    strike: Breaks the run, or waits until it breaks by itself; may return the
      time of `time.monotonic` at which it broke.
    flags: More flags of the run.
    module: The script.
    prepare: Called before the run starts.
    is_hang: Whether the run must notice that nothing happens.
    in_ci: Whether CI makes it: one of each kind that ends differently.
  """
  fault: str
  node: str
  launch: str
  status: int
  cause: str
  strike: Callable[[Run], Optional[float]] = _until(fakes.ANNOUNCEMENT)
  flags: Tuple[str, ...] = ()
  module: str = programs.TRAIN
  prepare: _Prepare = lambda output_dir, stack: {}
  is_hang: bool = False
  in_ci: bool = False

  @property
  def name(self) -> str:
    """All three of fault, node and launch."""
    return f'{self.fault}, {self.node}, {self.launch}'

  @property
  def limit_s(self) -> float:
    """How long it may take from the fault to the end."""
    return LIMIT_S + (HANG_TIMEOUT_S if self.is_hang else 0)


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


def _send(node: str, number: int) -> Callable[[Run], None]:
  """Sends a signal to a node, in the middle of the run."""
  def strike(run: Run) -> None:
    run.wait_for_updates()
    os.kill(run.pid(node), number)
  return strike


def _stop_and_continue(run: Run) -> None:
  """Stops the launcher for longer than a worker may hang, as Ctrl-Z does.

  Nobody can act in its place; when it is continued, the run must go on.
  """
  run.wait_for_updates()
  os.kill(run.program.pid, signal.SIGSTOP)
  time.sleep(_STOPPED_S)
  os.kill(run.program.pid, signal.SIGCONT)
  time.sleep(1.)
  run.wait_for_updates(trials.count_updates(str(run.output_dir)) + 3)
  run.program.interrupt()


def _wait_for_last_update(run: Run) -> float:
  """Waits until no more updates come, and returns when the last one came."""
  before, changed = None, time.monotonic()
  while time.monotonic() - changed < _QUIET_S:
    now = trials.count_updates(str(run.output_dir))
    if now != before:
      before, changed = now, time.monotonic()
    time.sleep(0.05)
  return changed


def _take_memory(run: Run) -> float:
  """Lets the Reverb server have no more memory, and waits until it needs some.

  It doesn't end then, nor does it say anything: it only hands over no more.
  """
  run.wait_for_updates()
  resource.prlimit(run.pid('reverb-0'), resource.RLIMIT_AS, (2**20, 2**20))
  return _wait_for_last_update(run)


def _fill(folder: pathlib.Path) -> None:
  with open(folder / 'filler', 'wb', buffering=0) as file:
    with contextlib.suppress(OSError):
      while True:
        file.write(bytes(4096))


def _fill_disk(folder: str) -> Callable[[Run], float]:
  """Fills the disk of a folder, in the middle of the run."""
  def strike(run: Run) -> float:
    run.wait_for_updates()
    _fill(run.output_dir / folder)
    # There is some room left in the last page of every file.
    return _wait_for_last_update(run)
  return strike


def _small_disk(folder: str) -> _Prepare:
  """Puts a folder of the run on a disk of its own."""
  def prepare(output_dir, stack):
    path = output_dir / folder
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', path],
        capture_output=True, text=True, check=False)
    if mounted.returncode:
      raise Skipped(f'can\'t mount a small disk: {mounted.stderr.strip()}')
    stack.callback(subprocess.run, ['umount', '--lazy', path], check=True)
    return {}
  return prepare


def _full_disk(output_dir, stack):
  """Puts the run on a full disk."""
  env = _small_disk('')(output_dir, stack)
  _fill(output_dir)
  return env


def _interrupted(output_dir, stack):
  """Leaves a run there that can be gone on with."""
  del stack
  with programs.Program(
      programs.TRAIN, *_EXPERIMENT, f'--output_dir={output_dir}') as program:
    Run(program, output_dir).wait_for_updates(12)
    program.interrupt()
    program.wait()
  return {}


def _interrupted_and_torn(output_dir, stack):
  """Leaves one there whose checkpoints are torn."""
  env = _interrupted(output_dir, stack)
  _tear(output_dir)
  return env


def _tear(output_dir: pathlib.Path) -> None:
  """Cuts the files of all checkpoints in half."""
  for path in output_dir.glob('checkpoints/*/**/*'):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)


def _tear_behind_the_launcher(run: Run) -> None:
  """Tears the checkpoint after the launcher has read it."""
  run.program.wait_for(
      lambda: 'Going on from' in run.program.output(), _START_S)
  _tear(run.output_dir)
  run.program.wait_for(lambda: run.has_printed('DamagedError'), _START_S)


def _taken_port(output_dir, stack):
  """Makes Launchpad give Reverb a port that somebody listens on."""
  del output_dir
  listener = stack.enter_context(socket.socket(socket.AF_INET6))
  listener.bind(('::', 0))
  listener.listen()
  port = listener.getsockname()[1]

  class Handler(socketserver.BaseRequestHandler):

    def handle(self):
      self.request.recv(64)
      self.request.sendall(f'{port}\n'.encode())

  # Of `portpicker`, which asks such a server if there is one.
  address = os.path.join(
      stack.enter_context(tempfile.TemporaryDirectory()), 'ports')
  server = stack.enter_context(
      socketserver.ThreadingUnixStreamServer(address, Handler))
  threading.Thread(target=server.serve_forever, daemon=True).start()
  stack.callback(server.shutdown)
  return {'PORTSERVER_ADDRESS': address}


def _environment(trouble: str, step: int = _STEP) -> Tuple[str, ...]:
  """Returns flags for environments of the second actor that go wrong."""
  return (f'--env_options=trouble={trouble},trouble_step={step},'
          f'trouble_seed={_ACTOR_SEED}',)


def _make_cells() -> List[Cell]:
  """Returns all cells, in the order of the table."""
  cells = []

  def add(fault, node, launch, status, cause, *args, **kwargs):
    cells.append(Cell(fault, node, launch, status, cause, *args, **kwargs))

  failed, hung, killed = exits.NODE_FAILED, exits.HUNG, -signal.SIGKILL
  actor, learner, reverb, launcher = 'actor', 'learner', 'reverb', 'launcher'
  planned = 'PlannedError: planned to fail'
  for launch in (THREADS, PROCESSES):
    is_threads = launch == THREADS
    the_learner = 'learner' if is_threads else 'learner/0'

    def learner_trouble(trouble):
      return dict(
          module=_DISTURBED,
          flags=(f'--trouble={trouble}', f'--trouble_update={_UPDATE}'))

    def launcher_trouble(trouble):
      return dict(
          module=_DISTURBED, flags=(f'--trouble={trouble}',),
          strike=_send(launcher, signal.SIGUSR1))

    add('raises at once', actor, launch, failed,
        f'actor/1 failed: .*{planned}', flags=_environment(fakes.RAISE, 0))
    add('raises', learner, launch, failed, f'{the_learner} failed: .*{planned}',
        **learner_trouble(fakes.RAISE))
    add('raises', launcher, launch, failed, f'launcher failed: {planned}',
        **launcher_trouble(fakes.RAISE), in_ci=is_threads)
    if is_threads:
      add('os._exit(7)', 'the process', launch, fakes.EXIT_STATUS, '',
          flags=_environment(fakes.EXIT))
      add('SIGKILL', 'the process', launch, killed, '',
          _send(launcher, signal.SIGKILL))
      add('SIGSTOP, SIGCONT', 'the process', launch, exits.INTERRUPTED,
          'Interrupted', _stop_and_continue, flags=_SHORT_HANG)
    else:
      for trouble, cause in (
          (fakes.EXIT, f'status {fakes.EXIT_STATUS}'),
          (fakes.QUIT, 'status 0 before its work was done')):
        name = f'os._exit({0 if trouble == fakes.QUIT else fakes.EXIT_STATUS})'
        add(name, actor, launch, failed,
            f'actor/1 failed: its process exited with {cause}',
            flags=_environment(trouble), in_ci=trouble == fakes.QUIT)
        add(name, learner, launch, failed,
            f'learner/0 failed: its process exited with {cause}',
            **learner_trouble(trouble))
      add('os._exit(7)', launcher, launch, fakes.EXIT_STATUS, '',
          **launcher_trouble(fakes.EXIT))
      for node in ('actor-1', 'learner-0', 'reverb-0'):
        add('SIGKILL', node.split('-')[0], launch, failed,
            f'{node.replace("-", "/")} failed: its process was killed by '
            'SIGKILL', _send(node, signal.SIGKILL), in_ci=node == 'reverb-0')
      add('SIGKILL', launcher, launch, killed, '',
          _send(launcher, signal.SIGKILL), in_ci=True)
      for node in ('actor-1', 'learner-0', 'reverb-0'):
        add('SIGSTOP', node.split('-')[0], launch, hung,
            f'process of {node.replace("-", "/")} is stopped',
            _send(node, signal.SIGSTOP), is_hang=True,
            in_ci=node == 'learner-0')
      add('SIGSTOP, SIGCONT', launcher, launch, exits.INTERRUPTED,
          'Interrupted', _stop_and_continue, flags=_SHORT_HANG)
    add('out of memory', actor, launch, failed,
        'actor/1 failed: .*MemoryError', flags=_environment(fakes.MEMORY))
    add('out of memory', learner, launch, failed,
        f'{the_learner} failed: .*MemoryError', **learner_trouble(fakes.MEMORY))
    if not is_threads:
      # Whichever side is the first to need it.
      add('out of memory', reverb, launch, hung,
          r'round \d+ .*lacks |can\'t be handed over',
          _take_memory, is_hang=True)
      add('out of memory', launcher, launch, failed,
          'launcher failed: .*MemoryError', **launcher_trouble(fakes.MEMORY))
    add('disk full, logs', learner, launch, failed,
        f'{the_learner} failed: .*'
        + ('No space left' if is_threads else 'disk .* full'),
        _fill_disk(''), prepare=_small_disk(''),
        flags=('--checkpoint_every=1000',))
    add('disk full, checkpoints', learner, launch, failed,
        f'{the_learner} failed: .*No space left|ENOSPC',
        _fill_disk('checkpoints'), prepare=_small_disk('checkpoints'),
        in_ci=not is_threads)
    if is_threads:
      add('disk full, start', launcher, launch, exits.USER_ERROR,
          '--output_dir=.*No space left', _until('No space left'),
          prepare=_full_disk)
      add('torn checkpoints', launcher, launch, exits.USER_ERROR,
          '--output_dir=.*checkpoint 10 in .* can\'t be read',
          _until('can\'t be read'), prepare=_interrupted_and_torn)
    else:
      add('torn checkpoint', learner, launch, failed,
          'learner/0 failed: .*DamagedError: checkpoint 10',
          _tear_behind_the_launcher, prepare=_interrupted)
      add('port taken', reverb, launch, failed, 'Address already in use',
          _until('Traceback'), prepare=_taken_port,
          flags=('--noisolate_network',))
    add('environment raises', actor, launch, failed,
        f'actor/1 failed: .*{planned}', flags=_environment(fakes.RAISE),
        in_ci=not is_threads)
    add('environment hangs', actor, launch, hung,
        f'{the_learner} waited in vain: .*'
        r'round 3 lacks actor 1 \(last seen: round 2, \d+ s ago\)',
        flags=_environment(fakes.HANG), is_hang=True, in_ci=is_threads)
    add('NaN', learner, launch, failed,
        f'{the_learner} failed: .*update {_UPDATE} is not finite: ',
        **learner_trouble(fakes.NAN), in_ci=is_threads)
  return cells


CELLS = tuple(_make_cells())


def run(cell: Cell, folder: pathlib.Path) -> Result:
  """Makes a run, breaks it, and waits for its end.

  Args:
    cell: What to do.
    folder: An empty one.

  Raises:
    Skipped: This system doesn't allow it.
    AssertionError: The run did not end at all, or before it was broken.
  """
  output_dir = folder / 'run'
  with contextlib.ExitStack() as stack:
    env = cell.prepare(output_dir, stack)
    with programs.Program(
        cell.module, *_EXPERIMENT, f'--launch={cell.launch}',
        *(_SHORT_HANG if cell.is_hang else ()),
        *cell.flags, f'--output_dir={output_dir}', env=env) as program:
      begin = cell.strike(Run(program, output_dir)) or time.monotonic()
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


def problems(cell: Cell, result: Result, slack_s: float = 0.) -> List[str]:
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
  cells = [cell for cell in CELLS
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
      except Skipped as reason:
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
