"""Starts a Launchpad program's processes, watches them, and ends them all.

Launchpad's own runners lose failures: a peer that waits in C++ is orphaned, and
the launcher's status can be 0 after a crash. So the nodes' commands come from
Launchpad (`local_mp`), and the processes are kept here.
"""

import os
import signal
import subprocess
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from cleanba_acme.launchers import exits
from cleanba_acme.launchers import isolation
import launchpad as lp
from launchpad import context

_POLL_S = 0.05
_TRACEBACK = 'Traceback (most recent call last):'
_MAX_REPORT_LINES = 60


class Supervisor:
  """The processes of a program.

  Usage:

    supervisor = Supervisor(program, resources, 'results/run/logs')
    try:
      supervisor.wait_for(['learner/0', 'actor/0'])
    finally:
      supervisor.stop()
  """

  def __init__(
      self,
      program: lp.Program,
      resources: Mapping[str, Any],
      log_dir: str,
      network: Optional[isolation.Network] = None,
  ):
    """Starts every node in a session of its own, its output to a file.

    Args:
      program: The program.
      resources: Launch configuration by group, as for `lp.launch`.
      log_dir: Gets one file per node, such as `actor-0.log`.
      network: Where the nodes are to live, if not in this process's network.
    """
    self._log_dir = log_dir
    self._processes: Dict[str, subprocess.Popen] = {}
    os.makedirs(log_dir, exist_ok=True)
    try:
      for command in _make_commands(program, resources):
        with open(self._log_path(command.title), 'ab') as log:
          # A session of its own: the terminal's Ctrl-C reaches only the
          # launcher, which stops the nodes in order.
          self._processes[command.title] = subprocess.Popen(  # pylint: disable=consider-using-with
              network.wrap(command.command_as_list) if network
              else command.command_as_list,
              env={**os.environ, **command.env_overrides},
              stdin=subprocess.DEVNULL, stdout=log, stderr=log,
              start_new_session=True)
    except BaseException:
      self.stop()
      raise

  def wait_for(self, names: Sequence[str]) -> None:
    """Waits until these nodes are done while all others are well.

    Args:
      names: The nodes whose end is the end of the run, such as `learner/0`.

    Raises:
      exits.NodeFailed: A node's process ended in another way than with status
        0, or one that is not in `names` ended at all.
    """
    while True:
      for node, process in self._processes.items():
        status = process.poll()
        if status or (status == 0 and node not in names):
          raise exits.NodeFailed(
              node, self._report(node), is_hang=status == exits.HUNG)
      if all(self._processes[name].poll() == 0 for name in names):
        return
      time.sleep(_POLL_S)

  def stop(self, grace_s: float = exits.GRACE_S) -> None:
    """Ends all processes: asks first, kills what doesn't stop in time."""
    self._signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(
        process.poll() is None for process in self._processes.values()):
      time.sleep(_POLL_S)
    self._signal(signal.SIGKILL)
    for process in self._processes.values():
      process.wait()

  def _signal(self, number: int) -> None:
    for process in self._processes.values():
      if process.poll() is None:
        os.killpg(process.pid, number)

  def _log_path(self, node: str) -> str:
    return os.path.join(self._log_dir, node.replace('/', '-') + '.log')

  def _report(self, node: str) -> str:
    """Says how a node ended; its last traceback, if it left one, comes last."""
    status = self._processes[node].returncode
    how = (f'was killed by {signal.Signals(-status).name}' if status < 0
           else f'exited with status {status}')
    with open(self._log_path(node), encoding='utf-8', errors='replace') as log:
      lines = log.read().rstrip().splitlines()
    starts = [i for i, line in enumerate(lines) if line == _TRACEBACK]
    tail = lines[starts[-1]:] if starts else lines[-_MAX_REPORT_LINES:]
    return '\n'.join(
        [f'its process {how}; all of its output: {self._log_path(node)}']
        + tail[-_MAX_REPORT_LINES:])


def _make_commands(
    program: lp.Program, resources: Mapping[str, Any]) -> List[Any]:
  """Returns the commands of all nodes, as Launchpad's `local_mp` makes them.

  `lp.launch` does the same, and then starts them in one of its own terminals;
  it has no way to do only the first half.
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
  for label, nodes in program.groups.items():
    commands.extend(
        nodes[0].to_executables(nodes, label, nodes[0].launch_context))
  return commands
