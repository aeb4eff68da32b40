"""The faults that runs are broken by: who, how, and how the run must end.

`faults` makes them one after the other; tests make some of them.
"""

import contextlib
import os
import pathlib
import resource
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from cleanba_acme import seeding
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import trials
from cleanba_acme.testing import fakes
from cleanba_acme.testing import programs

# From the fault to the end of the run; a hang must be noticed first.
_LIMIT_S = 10.0
_HANG_TIMEOUT_S = 10.0
_START_S = 300.0
_STOPPED_S = 1.5 * _HANG_TIMEOUT_S

THREADS = 'threads'
PROCESSES = 'processes'

_DISTURBED = 'cleanba_acme.launchers.disturbed'
_SEED = 1
_NUM_ENVS = 4
_EXPERIMENT = (
    '--env=cleanba_acme.testing.fakes:make_catch', f'--seed={_SEED}',
    '--num_actors=2', f'--num_envs={_NUM_ENVS}', '--unroll_length=6',
    '--network.hiddens=(8,)', '--checkpoint_every=10', '--total_steps=1000000')
_SHORT_HANG = (f'--hang_timeout_s={_HANG_TIMEOUT_S}',)
# In the fourth round.
_STEP = 20
_UPDATE = 4
# No update for so long is the end of updates.
_QUIET_S = 2.0
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
  def train_flags(self) -> Tuple[str, ...]:
    """All flags of its run but `--output_dir`."""
    return (*_EXPERIMENT, f'--launch={self.launch}',
            *(_SHORT_HANG if self.is_hang else ()), *self.flags)

  @property
  def limit_s(self) -> float:
    """How long it may take from the fault to the end."""
    return _LIMIT_S + (_HANG_TIMEOUT_S if self.is_hang else 0)


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
