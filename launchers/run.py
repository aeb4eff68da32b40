"""Launches an experiment, as threads or as processes, and sees it through."""

import contextlib
import json
import logging
import os
import secrets
import sys
import tempfile
from typing import Any, Callable, Dict, Mapping, Optional

from cleanba_acme import checkpoint
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import fingerprint
from cleanba_acme import ledger
from cleanba_acme import loggers
from cleanba_acme.launchers import display
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import plot
from cleanba_acme.launchers import session as session_lib
from cleanba_acme.launchers import threads
import jax

LAUNCHES = ('threads', 'processes')
CHANNELS = ('memory', 'reverb')

# Fields of an experiment that JSON can hold, and that its numbers depend on.
_SIZES = ('seed', 'num_actors', 'num_envs', 'unroll_length', 'total_steps',
          'policy_lag', 'checkpoint_every', 'handoff')
# What `config.json` records beside the settings.
_RECORD = 'record'
# Stands for the value of a setting that is not there.
_NOTHING = object()


def run(
    experiment: experiment_lib.Experiment,
    output_dir: str,
    launch: str = 'threads',
    channel: str = 'memory',
    *,
    settings: Optional[Mapping[str, Any]] = None,
    record: Optional[Mapping[str, Any]] = None,
    keep_checkpoints: int = 3,
    max_restarts: int = 0,
    hang_timeout_s: float = 1800.0,
    isolate_network: bool = True,
) -> int:
  """Runs an experiment to its end and reports on the terminal.

  Leaves `config.json`, `progress.csv`, `ledger.csv`, `checkpoints/`,
  `tensorboard/`, `returns.png` and, of processes, `logs/` in `output_dir`. A
  directory that holds an interrupted run of the same experiment is gone on
  with, from its latest checkpoint, to the same numbers.

  Args:
    experiment: The run.
    output_dir: Where its files go; made if it doesn't exist.
    launch: One of `LAUNCHES`.
    channel: One of `CHANNELS`; only threads have a choice.
    settings: More that the run's numbers depend on, such as the agent's config;
      a run is only resumed with the same. JSON values.
    record: What is written down, but may differ in a run that is resumed.
    keep_checkpoints: How many of the latest checkpoints to keep.
    max_restarts: How often to go on by itself, from the latest checkpoint,
      after a worker failed; only processes can.
    hang_timeout_s: A worker that keeps another one waiting for so long counts
      as hung; at least the time of the longest round.
    isolate_network: Whether processes get a network of their own, see
      `isolation`. Without, other users of this machine can read and write the
      run's data.

  Returns:
    The exit status, one of `exits`; anything but 0 was explained on stderr.

  Raises:
    ValueError: An argument is not allowed, the directory can't be written to or
      holds a run with other settings, or none of its checkpoints can be read.
  """
  if launch not in LAUNCHES:
    raise ValueError(
        f'launch={launch!r}: must be one of {", ".join(LAUNCHES)}')
  if channel not in CHANNELS:
    raise ValueError(
        f'channel={channel!r}: must be one of {", ".join(CHANNELS)}')
  if experiment.is_asynchronous and (launch, channel) != ('threads', 'memory'):
    raise ValueError(
        f'handoff={experiment.handoff!r}: needs launch=threads and '
        'channel=memory')
  if keep_checkpoints < 1:
    raise ValueError(f'keep_checkpoints={keep_checkpoints}: must be at least 1')
  if max_restarts < 0 or (max_restarts and launch != 'processes'):
    raise ValueError(
        f'max_restarts={max_restarts}: must be at least 0, and 0 with '
        'launch=threads: a thread that hangs can\'t be ended')
  if (launch == 'processes' or channel == 'reverb') and not isolate_network:
    print('Warning: Reverb has no authentication: other users of this machine '
          '(and of others, before Linux 5.7) can read and write the run\'s '
          'data.', file=sys.stderr, flush=True)
  if not hang_timeout_s > 0:
    raise ValueError(f'hang_timeout_s={hang_timeout_s}: must be positive')
  # Which accelerators there are not is news to nobody.
  logging.getLogger('jax._src.xla_bridge').setLevel(logging.WARNING)
  _enable_compilation_cache()
  _make_output_dir(output_dir)
  print(f'Output: {output_dir}', flush=True)
  _write_config(
      os.path.join(output_dir, 'config.json'),
      {**{name: getattr(experiment, name) for name in _SIZES},
       **(settings or {})},
      record or {})
  session = session_lib.Session(
      output_dir, token=secrets.token_hex(16),
      keep_checkpoints=keep_checkpoints,
      hang_timeout_s=hang_timeout_s, isolate_network=isolate_network)
  progress_path = os.path.join(output_dir, 'progress.csv')
  status = None
  while status is None:
    session = _resume(experiment, session)
    try:
      with display.Display(
          progress_path, experiment.num_rounds, sys.stdout) as shown:
        _launch(experiment, session, launch, channel, shown.say)
      status = exits.DONE
    except KeyboardInterrupt:
      print('Interrupted; the same command goes on from the last checkpoint.',
            file=sys.stderr, flush=True)
      return exits.INTERRUPTED
    except exits.NodeFailed as failure:
      print(failure.explain(), file=sys.stderr, flush=True)
      if not max_restarts:
        return failure.status
      max_restarts -= 1
      print(f'Restarting; {max_restarts} more restarts are left.',
            file=sys.stderr, flush=True)

  image_path = os.path.join(output_dir, 'returns.png')
  if plot.plot_returns(progress_path, image_path):
    print(f'Learning curve: {image_path}')
  else:
    print('No episode ended, so there is no learning curve.')
  return exits.DONE


def _make_output_dir(path: str) -> None:
  """Makes the directory; ValueError if it can't be written to."""
  try:
    os.makedirs(path, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      pass
  except OSError as error:
    raise ValueError(
        f'output_dir={path}: must be a directory that can be written to '
        f'({error})') from error


def _enable_compilation_cache() -> None:
  """Lets this process and the nodes' keep what XLA compiles for the next run.

  A cache of the user's own, JAX_COMPILATION_CACHE_DIR, is respected.
  """
  # Programs are compiled for a number of threads, which the key doesn't tell.
  directory = os.path.join(
      os.environ.get('XDG_CACHE_HOME', os.path.expanduser('~/.cache')),
      'cleanba_acme', f'xla-{os.environ.get("NPROC", "default")}-threads')
  for name, value in (
      ('jax_compilation_cache_dir', directory),
      ('jax_persistent_cache_min_compile_time_secs', 0),
      ('jax_persistent_cache_min_entry_size_bytes', -1)):
    if name.upper() not in os.environ:
      os.environ[name.upper()] = str(value)
      jax.config.update(name, value)


def _launch(
    experiment: experiment_lib.Experiment,
    session: session_lib.Session,
    launch: str,
    channel: str,
    say: Callable[[str], None],
) -> None:
  """Runs what is left of the run; what processes print goes to `say`."""
  if session.first_round == experiment.num_rounds:
    return
  if launch == 'threads':
    threads.run(experiment, session, channel)
  else:
    _run_processes(experiment, session, say)


def _resume(
    experiment: experiment_lib.Experiment, session: session_lib.Session
) -> session_lib.Session:
  """Finds the round to begin with."""
  spec = experiment.checkpoint_spec()
  try:
    checkpoints = session_lib.make_checkpointer(session)
    with contextlib.closing(checkpoints):
      update, problems = checkpoints.find_latest(spec)
      if update is not None:
        _check_logs(
            session.output_dir, update,
            checkpoints.restore(update, spec).state.params)
  except (ValueError, checkpoint.DamagedError) as error:
    raise ValueError(f'output_dir={session.output_dir}: {error}') from error
  for problem in problems:
    print(f'Warning: {problem}; going back to the one before.',
          file=sys.stderr, flush=True)
  if update is None:
    return session._replace(first_round=0)
  if update == experiment.num_rounds:
    print(f'All {update} updates are done already.', flush=True)
  else:
    print(f'Going on from the checkpoint after update {update}.', flush=True)
  return session._replace(first_round=update)


def _check_logs(output_dir: str, update: int, params: Any) -> None:
  """Checks that the logs lead up to a checkpoint.

  Raises:
    ValueError: A file lacks an update, or the ledger is of another run.
  """
  rows = ledger.read(output_dir).rows
  for name, last_update in (
      (ledger.FILE_NAME, len(rows)),
      ('progress.csv', loggers.count_updates(
          os.path.join(output_dir, 'progress.csv')))):
    if last_update < update:
      raise ValueError(
          f'{name} has {last_update} updates, fewer than the checkpoint after '
          f'update {update}; without that one, checkpoints/{update}, the run '
          'goes on from an earlier one')
  expected = rows[update - 1]['fingerprint']
  actual = fingerprint.fingerprint(params)
  if actual != expected:
    raise ValueError(
        f'checkpoints/{update} is of another run: its parameters have the '
        f'fingerprint {actual}, those of {ledger.FILE_NAME} {expected}')


def _write_config(
    path: str,
    settings: Dict[str, Any],
    record: Mapping[str, Any],
) -> None:
  """Writes `config.json`, or compares with the one that is there.

  Raises:
    ValueError: A setting differs.
  """
  settings = json.loads(json.dumps(settings))  # Tuples become lists.
  before = read_config(path)
  checkpoints = os.path.join(os.path.dirname(path), 'checkpoints')
  if before is None and os.path.isdir(checkpoints) and os.listdir(checkpoints):
    raise ValueError(
        f'{path}: is missing, so nobody can tell which run {checkpoints} '
        'belong to; must be there, or output_dir be another')
  if before is not None:
    before.pop(_RECORD, None)
    differences = _find_differences(before, settings)
    if differences:
      raise ValueError(
          f'output_dir={os.path.dirname(path)}: holds a run with other '
          'settings:' + ''.join(f'\n  {line}' for line in differences))
  temporary = f'{path}.tmp'
  try:
    with open(temporary, 'w', encoding='utf-8') as file:
      json.dump({**settings, _RECORD: record}, file, indent=2)
      file.write('\n')
    os.replace(temporary, path)
  except OSError as error:
    raise ValueError(
        f'output_dir={os.path.dirname(path)}: must be a directory that can be '
        f'written to ({error})') from error


def read_config(path: str) -> Optional[Dict[str, Any]]:
  """Reads a `config.json`; None if there is none.

  Raises:
    ValueError: It can't be read, or is no JSON object.
  """
  try:
    with open(path, encoding='utf-8') as file:
      config = json.load(file)
  except FileNotFoundError:
    return None
  except (OSError, ValueError, RecursionError) as error:
    raise ValueError(f'{path}: can\'t be read as JSON: {error}') from error
  if not isinstance(config, dict):
    raise ValueError(
        f'{path}: must be a JSON object like {{"seed": 1, ...}}, is a '
        f'{type(config).__name__}')
  return config


def _find_differences(before: Any, now: Any, prefix: str = '') -> list:
  """Lists the fields that differ, nested ones by their path."""
  if not isinstance(before, dict) or not isinstance(now, dict):
    if before == now:
      return []
    before, now = [
        'nothing' if value is _NOTHING else json.dumps(value)
        for value in (before, now)]
    return [f'{prefix}: {before} there, {now} here']
  return [
      line
      for key in sorted({*before, *now})
      for line in _find_differences(
          before.get(key, _NOTHING), now.get(key, _NOTHING),
          f'{prefix}.{key}' if prefix else key)]


def _run_processes(
    experiment: experiment_lib.Experiment,
    session: session_lib.Session,
    say: Callable[[str], None],
) -> None:
  # Launchpad and Reverb are an extra, and slow to import.
  from cleanba_acme.launchers import isolation  # pylint: disable=g-import-not-at-top
  from cleanba_acme.launchers import program  # pylint: disable=g-import-not-at-top
  from cleanba_acme.launchers import supervisor  # pylint: disable=g-import-not-at-top
  from cleanba_acme.launchers import watch  # pylint: disable=g-import-not-at-top
  with contextlib.ExitStack() as stack:
    network = None
    if session.isolate_network:
      try:
        network = isolation.Network()
      except isolation.IsolationError as error:
        raise ValueError(
            'isolate_network=True: this system allows no network of the run\'s '
            f'own ({error}); False lets other users of this machine reach '
            'Reverb, which has no authentication') from error
      stack.callback(network.close)
    actors = range(experiment.num_actors)
    # Launchpad's nodes print where they are; that is of no use here.
    with contextlib.redirect_stdout(sys.stderr):
      nodes = supervisor.Supervisor(
          program.make_program(experiment, session),
          program.make_resources(),
          [f'{program.LEARNER}/0', *[f'{program.ACTOR}/{i}' for i in actors]],
          os.path.join(session.output_dir, 'logs'),
          network, say)
    stack.callback(nodes.stop)
    nodes.wait(watch.Watch(session).check)
