"""Runs of one experiment that must come out the same, each made differently."""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import (
    Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple)

from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.testing import programs

# Which processes of a run can be killed. All but the first need
# --launch=processes.
LAUNCHER = 'launcher'
VICTIMS = (LAUNCHER, 'actor', 'learner', 'reverb')

HELP = f"""\
a run is one of these, or several joined by +
  rerun            the same again
  threads          --launch=threads
  processes        --launch=processes
  reverb           threads that hand over through Reverb
  actors=N         --num_actors=N
  devices=N        --learner_devices=0,...,N-1; CPUs get that many devices
  delays[=MS]      random sleeps, up to 5 ms before each step of the
                   environments, and five times that before each update
  load[=N]         beside 2 loops that keep a core busy each
  kill[=WORKER]    killed by SIGKILL at a random update, then gone on with;
                   WORKER is {", ".join(VICTIMS)}"""

_XLA_FLAGS = 'XLA_FLAGS'
_DEVICE_COUNT = '--xla_force_host_platform_device_count'
_DELAY_MS = 5.
_BUSY_LOOPS = 2
_NEVER = float('inf')
_MAX_REPORT_LINES = 60
# A process needs this to come up under load.
_START_S = 120.
# Ends with its parent, however that ends.
_BUSY_LOOP = 'import os\np = os.getppid()\nwhile os.getppid() == p: pass'


class Trial(NamedTuple):
  """How a run differs from others of the same experiment.

  Attributes:
    name: What the user called it.
    flags: More flags of the train script.
    num_devices: How many devices the learner uses.
    delay_ms: Most time that a step of the environments sleeps.
    busy_loops: Processes that compete with it.
    victim: One of `VICTIMS` to kill in the middle of it, if any.
  """
  name: str = 'reference'
  flags: Tuple[str, ...] = ()
  num_devices: int = 1
  delay_ms: float = 0.
  busy_loops: int = 0
  victim: Optional[str] = None


def parse(text: str) -> Trial:
  """Parses what a user calls a trial, such as `processes+delays=10`.

  Raises:
    ValueError: There is no such trial.
  """
  trial = Trial(text)
  for word in text.split('+'):
    name, _, value = word.partition('=')
    try:
      trial = trial._replace(**_PARSERS[name](trial, value))
    except (KeyError, ValueError) as error:
      raise ValueError(f'{word!r}: {HELP}') from error
  return trial


def _with_flags(*flags: str):
  return lambda trial, value: {'flags': trial.flags + flags + _no(value)}


def _no(value: str) -> Tuple[str, ...]:
  if value:
    raise ValueError(value)
  return ()


def _positive(value: str, default: Optional[str] = None) -> int:
  number = int(value or default or 0)
  if number < 1:
    raise ValueError(value)
  return number


def _parse_actors(trial: Trial, value: str):
  return {'flags': trial.flags + (f'--num_actors={_positive(value)}',)}


def _parse_devices(trial: Trial, value: str):
  number = _positive(value)
  devices = ','.join(str(i) for i in range(number))
  return {'flags': trial.flags + (f'--learner_devices={devices}',),
          'num_devices': number}


def _parse_delays(trial: Trial, value: str):
  del trial
  return {'delay_ms': float(value or _DELAY_MS)}


def _parse_load(trial: Trial, value: str):
  del trial
  return {'busy_loops': _positive(value, str(_BUSY_LOOPS))}


def _parse_kill(trial: Trial, value: str):
  del trial
  if value and value not in VICTIMS:
    raise ValueError(value)
  return {'victim': value or LAUNCHER}


_PARSERS: Dict[str, Callable] = {
    'rerun': _with_flags(),
    'threads': _with_flags('--launch=threads'),
    'processes': _with_flags('--launch=processes'),
    'reverb': _with_flags('--launch=threads', '--channel=reverb'),
    'actors': _parse_actors,
    'devices': _parse_devices,
    'delays': _parse_delays,
    'load': _parse_load,
    'kill': _parse_kill,
}


def make_env(num_devices: int) -> Dict[str, str]:
  """Returns the environment of runs which are to be compared.

  XLA's pool of threads grows with the number of devices, and the bits of
  convolutions depend on it, so all of them get the same number. Each compiles
  for itself: what one found in the cache of another would prove nothing.

  Args:
    num_devices: The most that one of them uses.
  """
  env = {'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  before = os.environ.get(_XLA_FLAGS, '')
  if num_devices > 1 and _DEVICE_COUNT not in before:
    env[_XLA_FLAGS] = f'{before} {_DEVICE_COUNT}={num_devices}'.strip()
  return env


def run(
    trial: Trial,
    flags: Sequence[str],
    output_dir: str,
    env: Optional[Dict[str, str]] = None,
    victim_update: int = 1,
    rng: Optional[random.Random] = None,
) -> None:
  """Runs an experiment by the train script, in processes of its own.

  Args:
    trial: How.
    flags: The train script's flags.
    output_dir: Where its files go.
    env: More environment variables.
    victim_update: After how many updates to kill the victim.
    rng: Chooses which actor is killed.

  Raises:
    ValueError: The flags are wrong, or the run was over before it was killed;
      the message is for the user.
    exits.NodeFailed: The run failed.
  """
  all_flags = [*flags, *trial.flags, f'--output_dir={output_dir}']
  module = programs.TRAIN
  if trial.delay_ms:
    module = 'cleanba_acme.launchers.disturbed'
    all_flags.append(f'--delay_ms={trial.delay_ms}')
  with busy_loops(trial.busy_loops):
    if trial.victim is not None:
      with programs.Program(module, *all_flags, env=env) as program:
        try:
          kill(program, trial.victim, output_dir, rng or random.Random(),
               lambda: count_updates(output_dir) >= victim_update)
        except AssertionError as error:
          raise ValueError(
              'the run ended before it could be killed; it printed\n'
              f'{_tail(program.output())}') from error
    with programs.Program(module, *all_flags, env=env) as program:
      check(trial.name, program.wait(_NEVER))


def check(name: str, ended: programs.Ended) -> None:
  """Raises what `run` does if a run did not end well."""
  if ended.status == exits.USER_ERROR:
    raise ValueError(_tail(ended.output))
  if ended.status != exits.DONE:
    raise exits.NodeFailed(
        f'the run {name!r}',
        f'it ended with status {ended.status} and printed\n'
        f'{_tail(ended.output)}')


def kill(
    program: programs.Program,
    victim: str,
    output_dir: str,
    rng: random.Random,
    is_time: Callable[[], bool],
    max_sleep_s: float = 0.,
    on_kill: Callable[[], object] = lambda: None,
) -> programs.Ended:
  """Kills a process of a run when it is time, and waits for the run's end.

  Args:
    program: The run.
    victim: One of `VICTIMS`.
    output_dir: The run's directory.
    rng: Chooses which actor, and how long to sleep.
    is_time: Whether it is time.
    max_sleep_s: The victim lives up to this longer.
    on_kill: Called when it is done.

  Raises:
    AssertionError: The run was over before.
  """
  program.wait_for(is_time, _NEVER)
  pid = find(program, victim, output_dir, rng)
  time.sleep(rng.uniform(0, max_sleep_s))
  program.kill(pid)
  on_kill()
  return program.wait(_START_S)


def find(
    program: programs.Program,
    victim: str,
    output_dir: str,
    rng: random.Random,
) -> int:
  """Waits for a process of a run and returns it; arguments as of `kill`."""
  def find_pid():
    if victim == LAUNCHER:
      return program.pid
    logs = sorted(pathlib.Path(output_dir).glob(f'logs/{victim}-*.log'))
    return logs and program.writer_of(rng.choice(logs))

  return program.wait_for(find_pid, _START_S)


def count_updates(output_dir: str) -> int:
  """Returns how many whole rows the ledger of a run has, even if unfinished."""
  try:
    with open(os.path.join(output_dir, ledger.FILE_NAME), 'rb') as file:
      return max(0, file.read().count(b'\n') - 1)
  except FileNotFoundError:
    return 0


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
  """Keeps so many cores busy."""
  loops = []
  try:
    for _ in range(number):
      loops.append(subprocess.Popen([sys.executable, '-c', _BUSY_LOOP]))  # pylint: disable=consider-using-with
    yield
  finally:
    for loop in loops:
      loop.send_signal(signal.SIGKILL)
      loop.wait()


def _tail(output: str) -> str:
  lines = re.split(r'[\r\n]+', output.rstrip())
  return '\n'.join(lines[-_MAX_REPORT_LINES:])
