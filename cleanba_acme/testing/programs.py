"""Runs a script as a user does, and leaves none of its processes behind."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import (
    Callable, Dict, Mapping, NamedTuple, Optional, Set, Union)
import uuid

TRAIN = 'cleanba_acme.launchers.train'

_MARK = 'CLEANBA_ACME_TEST_PROGRAM'
_POLL_S = 0.05
# The state of a socket, in /proc.
_LISTENS = '0A'
# What the kernel needs to end processes that were sent SIGKILL.
_KILL_S = 5.0


class Ended(NamedTuple):
  """How a program ended.

  Attributes:
    status: Its exit status, negative for a signal.
    output: All that it printed, on stdout and stderr.
    left_over: Command lines of those of its processes that outlived it.
  """
  status: int
  output: str
  left_over: Dict[int, str]


class Program:
  """A script and all processes that come of it.

  Usage:

    with Program(TRAIN, '--env=catch', f'--output_dir={tmp_path}') as program:
      program.wait_for(lambda: (tmp_path / 'ledger.csv').exists())
      program.interrupt()
      ended = program.wait()

  Its processes, orphans too, are told by a variable in their environment; they
  are killed on leaving the block.
  """

  def __init__(self, module: str, *flags: str,
               env: Optional[Mapping[str, str]] = None):
    """Starts `python -m module flags` in a session, as a shell does.

    Args:
      module: The script's name.
      *flags: Its arguments.
      env: Further environment variables.
    """
    self._mark = f'{_MARK}={uuid.uuid4().hex}'
    self._output = tempfile.TemporaryFile(mode='w+', encoding='utf-8')  # pylint: disable=consider-using-with
    # A run in this process has left the place of its own compilation cache.
    inherited = {
        key: value for key, value in os.environ.items()
        if key != 'JAX_COMPILATION_CACHE_DIR'}
    self._process = subprocess.Popen(  # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
        [sys.executable, '-m', module, *flags],
        env={
            **inherited,
            'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
            **(env or {}),
            **dict([self._mark.split('=')])},
        stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
        start_new_session=True, preexec_fn=_heed_interrupts)

  def __enter__(self) -> 'Program':
    return self

  def __exit__(self, *unused_args) -> None:
    deadline = time.monotonic() + _KILL_S
    while True:
      # One of them may be starting another.
      for pid in self.processes():
        self.kill(pid)
      if self._process.poll() is not None and not self.processes():
        break
      if time.monotonic() > deadline:
        raise TimeoutError(f'can\'t be killed: {self.processes()}')
      time.sleep(_POLL_S)
    self._output.close()

  @property
  def pid(self) -> int:
    """The script's own process."""
    return self._process.pid

  def processes(self) -> Dict[int, str]:
    """Returns the command lines of all its living processes by id."""
    found = {}
    for folder in pathlib.Path('/proc').glob('[0-9]*'):
      try:
        # That of a zombie is empty.
        environ = (folder / 'environ').read_bytes().split(b'\0')
        command = (folder / 'cmdline').read_bytes().replace(b'\0', b' ')
      except OSError:
        continue  # It has ended, or is another user's.
      if self._mark.encode() in environ:
        found[int(folder.name)] = command.decode()
    return found

  def writer_of(self, path: pathlib.Path) -> Optional[int]:
    """Returns the process whose standard output is this file, if any."""
    for pid in self.processes():
      if pid == self.pid:
        continue
      try:
        if os.path.samefile(f'/proc/{pid}/fd/1', path):
          return pid
      except OSError:
        continue
    return None

  def has_loaded(self, name: str) -> bool:
    """Whether the script's process has loaded a library of this name yet."""
    try:
      return name in pathlib.Path(f'/proc/{self.pid}/maps').read_text(
          encoding='utf-8')
    except OSError:
      return False

  def output(self) -> str:
    """Returns what it has printed so far."""
    size = os.fstat(self._output.fileno()).st_size
    return os.pread(self._output.fileno(), size, 0).decode()

  def wait_for(self, condition: Callable[[], object],
               timeout: float = 180.) -> object:
    """Waits until the condition is true, and returns its value.

    Raises:
      AssertionError: Not within `timeout` seconds, or the program ended before.
    """
    deadline = time.monotonic() + timeout
    while True:
      is_running = self._process.poll() is None
      value = condition()
      if value:
        return value
      assert is_running and time.monotonic() < deadline, self.output()
      time.sleep(_POLL_S)

  def interrupt(self) -> None:
    """Does what Ctrl-C does in a terminal."""
    try:
      os.killpg(self.pid, signal.SIGINT)
    except ProcessLookupError:
      pass

  def kill(self, pid: int) -> None:
    """Kills one of its processes."""
    try:
      os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
      pass

  def wait(self, timeout: float = 240.) -> Ended:
    """Waits for the script's end.

    Args:
      timeout: Seconds.

    Raises:
      AssertionError: It did not end in time.
    """
    try:
      status = self._process.wait(timeout)
    except subprocess.TimeoutExpired:
      raise AssertionError(
          f'still running after {timeout:g} s; it printed:\n{self.output()}'
      ) from None
    # A killed launcher's nodes are killed by the kernel, a moment later.
    deadline = time.monotonic() + _KILL_S
    while self.processes() and status < 0 and time.monotonic() < deadline:
      time.sleep(_POLL_S)
    return Ended(status, self.output(), self.processes())


def _heed_interrupts() -> None:
  # What a script's background job inherits ignores Ctrl-C.
  signal.signal(signal.SIGINT, signal.SIG_DFL)


def listeners(pid: Union[int, str]) -> Dict[str, int]:
  """Returns what listens in the network of a process: ports by their inodes.

  Args:
    pid: The process, or 'self'.

  Raises:
    OSError: It has ended.
  """
  found = {}
  for name in ('tcp', 'tcp6'):
    path = pathlib.Path(f'/proc/{pid}/net/{name}')
    if path.parent.is_dir() and not path.exists():
      continue  # A system without IPv6.
    for line in path.read_text(encoding='ascii').splitlines()[1:]:
      _, address, _, state, *_, inode = line.split()[:10]
      if state == _LISTENS:
        found[inode] = int(address.split(':')[1], 16)
  return found


def sockets(pid: int) -> Set[str]:
  """Returns the inodes of a process's sockets.

  Args:
    pid: The process.

  Raises:
    OSError: It has ended.
  """
  found = set()
  for link in pathlib.Path(f'/proc/{pid}/fd').iterdir():
    with contextlib.suppress(FileNotFoundError):  # Closed just now.
      match = re.fullmatch(r'socket:\[(\d+)\]', os.readlink(link))
      if match:
        found.add(match[1])
  return found


def train(*flags: str, timeout: float = 240.) -> Ended:
  """Runs the experiment script to its end; see `Program`."""
  with Program(TRAIN, *flags) as program:
    return program.wait(timeout)
