"""Checks an installation: `python -m cleanba_acme.launchers.doctor`.

Prints a line per check, and for each that fails the command that mends it. The
exit status is 0 if everything needed is well, 1 if not. It works where almost
nothing does: heavy packages are only imported in processes of their own.
"""

import argparse
import ctypes.util
import importlib.metadata
import os
import pathlib
import re
import socket
import subprocess
import sys
import sysconfig
from typing import Callable, List, NamedTuple, Optional, Sequence

from cleanba_acme.launchers import resources

_SETUP = 'make setup'
_LOCK = pathlib.Path(__file__).resolve().parents[1] / 'requirements.lock'
# What the numbers, and `--launch=processes`, depend on most.
_PACKAGES = (
    'dm-launchpad', 'dm-reverb', 'tensorflow-cpu', 'tensorflow-probability',
    'protobuf', 'jax', 'jaxlib', 'numpy', 'dm-haiku', 'rlax', 'distrax',
    'optax', 'chex', 'dm-env', 'envpool', 'orbax-checkpoint')
_IMPORT_S = 120
_MIN_SHARED_MEMORY = 64 * 2**20


class Finding(NamedTuple):
  """What a check found.

  Attributes:
    is_well: Whether there is nothing to mend.
    what: What was seen.
    mend: The command, or the advice, that mends it.
  """
  is_well: bool
  what: str
  mend: str = ''


def check_python(version: Sequence[int] = sys.version_info) -> Finding:
  """Launchpad's last wheels are for Python 3.10 and need its shared library."""
  text = '.'.join(str(part) for part in version[:3])
  if tuple(version[:2]) != (3, 10):
    return Finding(
        False, f'Python {text}, but Launchpad needs 3.10',
        'make setup, which finds a Python 3.10')
  name = sysconfig.get_config_var('INSTSONAME') or 'libpython3.10.so.1.0'
  folder = sysconfig.get_config_var('LIBDIR') or ''
  if not (os.path.exists(os.path.join(folder, name))
          or ctypes.util.find_library('python3.10')):
    return Finding(
        False, f'Python {text} without the shared library {name}',
        'PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install --force 3.10')
  return Finding(True, f'Python {text} with {name}')


def check_versions(
    lock: Optional[str] = None,
    installed: Callable[[str], str] = importlib.metadata.version,
) -> List[Finding]:
  """Compares what is installed with the lock file.

  Args:
    lock: Text of `requirements.lock`; by default of the one in the repository.
    installed: From a package to its version.
  """
  if lock is None:
    if not _LOCK.exists():
      return [Finding(True, 'no requirements.lock here to compare with')]
    lock = _LOCK.read_text(encoding='utf-8')
  findings = []
  for package in _PACKAGES:
    match = re.search(rf'^{re.escape(package)}==(\S+)', lock, re.MULTILINE)
    if match is None:
      continue
    wanted = match.group(1)
    try:
      version = installed(package)
    except importlib.metadata.PackageNotFoundError:
      version = 'not installed'
    findings.append(Finding(
        version == wanted, f'{package} {version}' + (
            '' if version == wanted else f', but {wanted} is in the lock file'),
        f'pip install {package}=={wanted}'))
  return findings


def check_imports(
    code: str, what: str, mend: str = _SETUP, timeout_s: float = _IMPORT_S
) -> Finding:
  """Runs code in a process of its own; what it prints is shown.

  Args:
    code: Python code that raises if something is wrong.
    what: What it tries.
    mend: What mends it.
    timeout_s: Longer means that something hangs.
  """
  try:
    ended = subprocess.run(
        [sys.executable, '-c', code], timeout=timeout_s, check=False,
        capture_output=True, text=True,
        env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3',
             'PYTHONPATH': os.pathsep.join(path for path in sys.path if path)})
  except subprocess.TimeoutExpired:
    return Finding(False, f'{what}: no answer in {timeout_s:g} s', mend)
  if ended.returncode:
    lines = ended.stderr.strip().splitlines()
    reason = lines[-1] if lines else f'exit status {ended.returncode}'
    return Finding(False, f'{what}: {reason}', mend)
  shown = ended.stdout.strip().splitlines()
  return Finding(True, f'{what}{": " + shown[-1] if shown else ""}')


def check_network() -> Finding:
  """Processes get a network of their own; without, they need ports."""
  code = ('from cleanba_acme.launchers import isolation\n'
          'isolation.Network().close()')
  finding = check_imports(code, 'a network of its own for each run')
  if finding.is_well:
    return finding
  return Finding(
      False, finding.what,
      'allow user namespaces (sysctl -w kernel.unprivileged_userns_clone=1), '
      'or train with --noisolate_network')


def check_ports() -> Finding:
  """Reverb and JAX need ports on loopback."""
  try:
    with socket.socket() as server:
      server.bind(('127.0.0.1', 0))
      server.listen()
      with socket.create_connection(server.getsockname(), timeout=5):
        pass
  except OSError as error:
    return Finding(
        False, f'ports on loopback: {error}', 'ip link set lo up')
  return Finding(True, 'ports on loopback can be opened and reached')


def check_shared_memory(path: str = '/dev/shm') -> Finding:
  """Some environments need it."""
  try:
    status = os.statvfs(path)
  except OSError as error:
    return Finding(False, f'{path}: {error}', f'mount -t tmpfs tmpfs {path}')
  free = status.f_bavail * status.f_frsize
  return Finding(
      free >= _MIN_SHARED_MEMORY, f'{path} has {free >> 20} MiB free',
      f'mount -o remount,size=1G {path}')


def check_cpus(num_actors: int, num_cpus: Optional[int] = None) -> Finding:
  """More workers than cores only wait for each other."""
  if num_cpus is None:
    num_cpus = resources.num_cores()
  try:
    threads = resources.threads_per_worker(num_actors)
  except ValueError as error:
    return Finding(False, str(error), 'unset OMP_NUM_THREADS')
  return Finding(
      num_actors <= num_cpus,
      f'{num_cpus} cores for {num_actors} actors, '
      f'{threads} threads each',
      f'train with --num_actors={num_cpus} at most')


def examine(num_actors: int) -> List[Finding]:
  """Runs all checks."""
  findings = [check_python(), *check_versions()]
  for order in (
      'launchpad, reverb, tensorflow', 'tensorflow, reverb, launchpad'):
    findings.append(check_imports(f'import {order}', f'import {order}'))
  findings += [
      check_imports(
          'import google.protobuf as p\n'
          'assert p.__version__.startswith("3.19."), p.__version__\n'
          'print(p.__version__)',
          'protobuf that TensorFlow 2.8 can use',
          'pip install protobuf==3.19.6'),
      check_imports(
          'from cleanba_acme.environments import registry\n'
          'for name in ("CartPole-v1", "Breakout-v5"):\n'
          '  environment = registry.make_factory(name)(0, 1)\n'
          '  environment.reset()\n'
          '  environment.close()',
          'envpool with the ROMs of Atari', 'pip install envpool==0.8.4'),
      check_imports(
          'import jax, tensorflow\n'
          'gpus = tensorflow.config.list_physical_devices("GPU")\n'
          'assert not gpus, f"TensorFlow sees {gpus}, and would take their '
          'memory"\n'
          'print(*jax.devices())',
          'devices for JAX, none for TensorFlow',
          'pip uninstall tensorflow; pip install tensorflow-cpu==2.8.4'),
      check_network(), check_ports(), check_shared_memory(),
      check_cpus(num_actors)]
  return findings


def report(findings: Sequence[Finding]) -> int:
  """Prints the findings; returns the exit status."""
  for finding in findings:
    print(f'{"ok " if finding.is_well else "BAD"}  {finding.what}')
    if not finding.is_well:
      print(f'     mend: {finding.mend}')
  num_bad = sum(not finding.is_well for finding in findings)
  print(f'{num_bad} of {len(findings)} checks failed.' if num_bad
        else 'Everything is well.')
  return 1 if num_bad else 0


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      '--num_actors', type=int, default=1,
      help='Actors that a run is to have.')
  return report(examine(parser.parse_args().num_actors))


if __name__ == '__main__':
  sys.exit(main())
