"""Launches an experiment, as threads or as processes, and sees it through."""

import contextlib
import logging
import os
import sys

from cleanba_acme import experiment as experiment_lib
from cleanba_acme.launchers import display
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import plot
from cleanba_acme.launchers import threads

LAUNCHES = ('threads', 'processes')
CHANNELS = ('memory', 'reverb')


def run(
    experiment: experiment_lib.Experiment,
    output_dir: str,
    launch: str = 'threads',
    channel: str = 'memory',
) -> int:
  """Runs an experiment to its end and reports on the terminal.

  Leaves `progress.csv`, `ledger.csv`, `tensorboard/`, `returns.png` and, of
  processes, `logs/` in `output_dir`.

  Args:
    experiment: The run.
    output_dir: Where its files go; made if it doesn't exist.
    launch: One of `LAUNCHES`.
    channel: One of `CHANNELS`; only threads have a choice.

  Returns:
    The exit status, one of `exits`; anything but 0 was explained on stderr.

  Raises:
    ValueError: The launch or the channel is unknown, or the directory already
      holds a run.
  """
  if launch not in LAUNCHES:
    raise ValueError(
        f'launch={launch!r}: must be one of {", ".join(LAUNCHES)}')
  if channel not in CHANNELS:
    raise ValueError(
        f'channel={channel!r}: must be one of {", ".join(CHANNELS)}')
  progress_path = os.path.join(output_dir, 'progress.csv')
  if os.path.exists(progress_path):
    raise ValueError(f'output_dir={output_dir!r}: already holds a run')
  os.makedirs(output_dir, exist_ok=True)
  # Which accelerators there are not is news to nobody.
  logging.getLogger('jax._src.xla_bridge').setLevel(logging.WARNING)

  try:
    with display.Display(progress_path, experiment.num_rounds, sys.stdout):
      if launch == 'threads':
        threads.run(experiment, output_dir, channel)
      else:
        _run_processes(experiment, output_dir)
  except KeyboardInterrupt:
    print('Interrupted.', file=sys.stderr, flush=True)
    return exits.INTERRUPTED
  except exits.NodeFailed as failure:
    print(f'\n{failure}: {failure.report}', file=sys.stderr, flush=True)
    return exits.NODE_FAILED

  image_path = os.path.join(output_dir, 'returns.png')
  if plot.plot_returns(progress_path, image_path):
    print(f'Learning curve: {image_path}')
  else:
    print('No episode ended, so there is no learning curve.')
  return exits.DONE


def _run_processes(
    experiment: experiment_lib.Experiment, output_dir: str) -> None:
  # Launchpad and Reverb are an extra, and slow to import.
  from cleanba_acme.launchers import program  # pylint: disable=g-import-not-at-top
  from cleanba_acme.launchers import supervisor  # pylint: disable=g-import-not-at-top
  # Launchpad's nodes print where they are; that is of no use here.
  with contextlib.redirect_stdout(sys.stderr):
    nodes = supervisor.Supervisor(
        program.make_program(experiment, output_dir),
        program.make_resources(),
        os.path.join(output_dir, 'logs'))
  try:
    nodes.wait_for([
        f'{program.LEARNER}/0',
        *[f'{program.ACTOR}/{i}' for i in range(experiment.num_actors)]])
  finally:
    nodes.stop()
