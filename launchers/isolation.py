"""A network of a run's own, which nothing outside the run can reach.

Reverb listens on all interfaces, without authentication, and has no option for
less. So the nodes of a run live in a network namespace of their own, where
there is nothing but a loopback interface: no other process, user or machine can
connect, nor can two runs reach each other by accident.

The namespace is kept by a small process, which is this module run as a script;
or a process moves into one itself, with all that it starts later. It is made as
root, or in a user namespace, which most Linux systems allow.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from typing import List, Sequence

from cleanba_acme.launchers import lifeline

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_READY = b'ready\n'
_SCRIPT = (sys.executable, '-m', 'cleanba_acme.launchers.isolation')


class IsolationError(Exception):
  """This system doesn't let us make a network namespace."""


class Network:
  """A network namespace, for as long as it isn't closed.

  Usage:

    network = Network()
    subprocess.Popen(network.wrap(command))
    network.close()
  """

  def __init__(self):
    """Makes the namespace.

    Raises:
      IsolationError: The system doesn't allow it.
    """
    self._keeper = subprocess.Popen(  # pylint: disable=consider-using-with
        _SCRIPT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, **lifeline.environment(),
             'PYTHONPATH': os.pathsep.join(path for path in sys.path if path)})
    if self._keeper.stdout.readline() != _READY:
      error = self._keeper.stderr.read().decode().strip().splitlines()
      self.close()
      raise IsolationError(error[-1] if error else 'it ended without a word')

  def wrap(self, command: Sequence[str]) -> List[str]:
    """Returns the command that runs `command` inside, as the same process."""
    return [*_SCRIPT, str(self._keeper.pid), *command]

  def close(self) -> None:
    """Ends the namespace with the last process that is in it."""
    self._keeper.kill()
    self._keeper.communicate()


def enter() -> None:
  """Gives this process a network of its own, for good.

  Raises:
    IsolationError: The system doesn't allow it, or the process has threads.
  """
  if len(os.listdir('/proc/self/task')) > 1:
    raise IsolationError('this process has threads already')
  try:
    _enter_new_namespace()
  except OSError as error:
    raise IsolationError(error.strerror) from error


def _enter_new_namespace() -> None:
  """Moves this process into a new network namespace, its loopback up."""
  unshare = ctypes.CDLL(None, use_errno=True).unshare
  # As root without a user namespace, where files of other users would be out of
  # reach.
  if unshare(_CLONE_NEWNET):
    uid, gid = os.getuid(), os.getgid()
    if unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
      error = ctypes.get_errno()
      raise OSError(error, os.strerror(error))
    for name, text in (('setgroups', 'deny'), ('uid_map', f'{uid} {uid} 1'),
                       ('gid_map', f'{gid} {gid} 1')):
      with open(f'/proc/self/{name}', 'w', encoding='ascii') as file:
        file.write(text)
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    request = struct.pack('16sh', b'lo', 0)
    name, flags = struct.unpack(
        '16sh', fcntl.ioctl(control, _SIOCGIFFLAGS, request)[:18])
    fcntl.ioctl(
        control, _SIOCSIFFLAGS, struct.pack('16sh', name, flags | _IFF_UP))


def _enter_namespace_of(pid: int) -> None:
  """Moves this process into the namespaces of another one."""
  setns = ctypes.CDLL(None, use_errno=True).setns
  for kind in ('user', 'net'):
    path = f'/proc/{pid}/ns/{kind}'
    if os.readlink(path) == os.readlink(f'/proc/self/ns/{kind}'):
      continue  # One can't join what one is in.
    with open(path, 'rb') as namespace:
      if setns(namespace.fileno(), 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)


def main(argv: Sequence[str]) -> None:
  """Keeps a new namespace, or with a keeper's PID runs a command in its."""
  if len(argv) > 1:
    _enter_namespace_of(int(argv[1]))
    # What is executed keeps it; it takes seconds until it could do so itself.
    lifeline.attach()
    os.execv(argv[2], argv[2:])
  lifeline.attach()
  _enter_new_namespace()
  sys.stdout.buffer.write(_READY)
  sys.stdout.flush()
  while True:  # Until the launcher closes the network, or dies.
    signal.pause()


if __name__ == '__main__':
  main(sys.argv)
