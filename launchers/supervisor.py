"""Starts a Launchpad program's processes, watches them, and ends them all.

Launchpad's own runners lose failures: a peer that waits in C++ is orphaned, and
the launcher's status can be 0 after a crash. So the nodes' commands come from
Launchpad (`local_mp`), and the processes are kept here.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from cleanba_acme.launchers import exits
from cleanba_acme.launchers import isolation
import launchpad as lp
from launchpad import context

_POLL_S = 0.05
_TRACEBACK = 'Traceback (most recent call last):'
# What libraries report on a good day: it stays in the nodes' files.
_INFO = re.compile(rb'I\d{4} |INFO|\[reverb/cc/|Waiting for workers to stop')
# The state of a process, after its name in parentheses.
_STOPPED = re.compile(r'.*\) [Tt] ', re.DOTALL)


class _Output:
  """What one node printed, in a file that it writes to by itself.

  So nothing of it is lost, and nobody waits, when the launcher is gone.
  """

  def __init__(self, path: str):
    self.path = path
    # A resumed run has the output of its earlier launches there.
    self._begin = os.path.getsize(path) if os.path.exists(path) else 0
    self._seen = self._begin

  def new_lines(self, has_ended: bool = False) -> List[bytes]:
    """Returns the lines that were added since the last call.

    Args:
      has_ended: Whether the last line counts even if it has no end.
    """
    if os.path.getsize(self.path) <= self._seen:
      return []
    with open(self.path, 'rb') as file:
      file.seek(self._seen)
      added = file.read()
    if not has_ended:
      added = added[:added.rfind(b'\n') + 1]
    self._seen += len(added)
    return added.splitlines()

  def read(self) -> List[str]:
    """Returns all lines of this launch."""
    with open(self.path, encoding='utf-8', errors='replace') as file:
      file.seek(self._begin)
      return file.read().rstrip().splitlines()


class Supervisor:
  """The processes of a program.

  Usage:

    supervisor = Supervisor(
        program, resources, ['learner/0', 'actor/0'], 'results/run/logs')
    try:
      supervisor.wait()
    finally:
      supervisor.stop()
  """

  def __init__(
      self,
      program: lp.Program,
      resources: Mapping[str, Any],
      workers: Sequence[str],
      log_dir: str,
      network: Optional[isolation.Network] = None,
      say: Callable[[str], None] = print,
  ):
    """Starts every node in a session of its own, its output to a file.

    Args:
      program: The program.
      resources: Launch configuration by group, as for `lp.launch`.
      workers: The nodes whose end is the end of the run, such as `learner/0`;
        they end with `exits.WORK_DONE`. The others serve them.
      log_dir: Gets one file per node, such as `actor-0.log`.
      network: Where the nodes are to live, if not in this process's network.
      say: Called with each line of the nodes' output, but for logs of level
        INFO, with the node's name before it.
    """
    self._workers = workers
    self._say = say
    self._processes: Dict[str, subprocess.Popen] = {}
    self._outputs: Dict[str, _Output] = {}
    self._is_quiet = False
    # Launchpad and Reverb leave files behind where temporary files go.
    self._temporary = tempfile.mkdtemp(prefix='cleanba_acme-')
    try:
      os.makedirs(log_dir, exist_ok=True)
      for command in _make_commands(program, resources, self._temporary):
        node = command.title
        output = self._outputs[node] = _Output(
            os.path.join(log_dir, node.replace('/', '-') + '.log'))
        with open(output.path, 'ab') as log:
          # A session of its own: the terminal's Ctrl-C reaches only the
          # launcher, which stops the nodes in order.
          self._processes[node] = subprocess.Popen(  # pylint: disable=consider-using-with
              network.wrap(command.command_as_list) if network
              else command.command_as_list,
              env={**os.environ, **command.env_overrides,
                   'TMPDIR': self._temporary},
              stdin=subprocess.DEVNULL, stdout=log, stderr=log,
              start_new_session=True)
    except BaseException:
      self.stop()
      raise

  def wait(self, check: Callable[[], None] = lambda: None) -> None:
    """Waits until the workers have done their work while all nodes are well.

    Args:
      check: Called several times a second; what it raises ends the wait.

    Raises:
      exits.NodeFailed: A node's process ended in another way: the first one,
        if others did too.
    """
    while True:
      self._forward_output()
      ended = {node: process.poll()
               for node, process in self._processes.items()}
      failed = [
          node for node, status in ended.items() if status is not None
          and not (status == exits.WORK_DONE and node in self._workers)]
      if failed:
        first = min(failed, key=lambda node: _rank(ended[node]))
        self._forward(first, has_ended=True)
        # What others have to say from now on is a consequence.
        self._is_quiet = True
        raise self._failure(first)
      if all(ended[node] is not None for node in self._workers):
        return
      try:
        check()
      except exits.NodeFailed as failure:
        failure.report = self._list_stopped()
        raise
      time.sleep(_POLL_S)

  def stop(self, grace_s: float = exits.GRACE_S) -> None:
    """Ends all processes.

    Asks the workers first and kills what doesn't stop in time; then kills the
    others, which have nothing to keep but connections to the workers.

    Args:
      grace_s: How long the workers may take.
    """
    workers = [self._processes[node] for node in self._workers
               if node in self._processes]
    try:
      _signal(workers, signal.SIGTERM)
      _signal(workers, signal.SIGCONT)  # One that is stopped can't hear.
      deadline = time.monotonic() + grace_s
      while time.monotonic() < deadline and any(
          process.poll() is None for process in workers):
        time.sleep(_POLL_S)
    finally:  # Ctrl-C, in the meantime, means to hurry.
      for process in self._processes.values():
        # Of a node that has ended, too: environments may have processes.
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)
      for process in self._processes.values():
        process.wait()
      if not self._is_quiet:
        self._forward_output()
      shutil.rmtree(self._temporary, ignore_errors=True)

  def _forward_output(self) -> None:
    for node in self._outputs:
      self._forward(node)

  def _forward(self, node: str, has_ended: bool = False) -> None:
    for line in self._outputs[node].new_lines(has_ended):
      if not _INFO.match(line):
        self._say(f'[{node}] {line.decode(errors="replace")}')

  def _failure(self, node: str) -> exits.NodeFailed:
    """Makes the error of how a node ended; its traceback was shown before."""
    status = self._processes[node].returncode
    how = f'its process exited with status {status}'
    if status < 0:
      how = f'its process was killed by {signal.Signals(-status).name}'
    elif status in (exits.DONE, exits.WORK_DONE):
      how += ' before its work was done'
    output = self._outputs[node]
    lines = output.read()
    report = [f'All of its output: {output.path}', self._list_stopped()]
    cause = how
    if os.statvfs(output.path).f_bavail == 0:
      cause = f'{how}, and the disk for its output is full'
    elif _TRACEBACK in lines:
      cause = lines[-1]
      report.append(f'Of {node}, {how}.')
    return exits.NodeFailed(
        node, cause, '\n'.join(filter(None, report)),
        is_hang=status == exits.HUNG)

  def _list_stopped(self) -> str:
    """Says which processes were stopped by a signal: no wonder that they hang.
    """
    return '\n'.join(
        f'The process of {node} is stopped, by SIGSTOP or in a debugger.'
        for node, process in self._processes.items()
        if process.poll() is None and _is_stopped(process.pid))


def _rank(status: int) -> int:
  """Orders nodes that were found ended at the same time: causes come first.

  Of equals the first that was started is the cause: the servers.
  """
  if status == exits.HUNG:
    return 2  # It waited for another one.
  return 0 if status < 0 else 1


def _is_stopped(pid: int) -> bool:
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return bool(_STOPPED.match(file.read()))
  except OSError:
    return False  # It has ended, or there is no /proc.


def _signal(processes: Sequence[subprocess.Popen], number: int) -> None:
  for process in processes:
    if process.poll() is None:
      os.killpg(process.pid, number)


def _make_commands(
    program: lp.Program, resources: Mapping[str, Any], temporary: str
) -> List[Any]:
  """Returns the commands of all nodes, as Launchpad's `local_mp` makes them.

  The files that they read go into the folder `temporary`. `lp.launch` does the
  same, and then starts them in one of its own terminals; it has no way to do
  only the first half.
  """
  launch_type = context.LaunchType.LOCAL_MULTI_PROCESSING
  for label, nodes in program.groups.items():
    for node in nodes:
      node._initialize_context(launch_type, launch_config=resources[label])  # pylint: disable=protected-access
  for label, nodes in program.groups.items():
    for node in nodes:
      for handle in node.input_handles:
        handle.connect(node, label)
  for node in program.get_all_nodes():
    node.bind_addresses()
  commands = []
  before = tempfile.tempdir
  tempfile.tempdir = temporary  # Launchpad can't be told.
  try:
    for label, nodes in program.groups.items():
      commands.extend(
          nodes[0].to_executables(nodes, label, nodes[0].launch_context))
  finally:
    tempfile.tempdir = before
  return commands
