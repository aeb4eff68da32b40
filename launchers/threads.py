"""Runs an experiment in one process, a thread per worker."""

import queue
import threading
import time
import traceback
from typing import Callable, List, Tuple

from cleanba_acme import channels
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import workers
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import learner as learner_lib
import jax


def run(
    experiment: experiment_lib.Experiment,
    session: learner_lib.Session,
    channel: str = 'memory',
) -> None:
  """Runs all rounds.

  Args:
    experiment: The run.
    session: This launch of it.
    channel: 'memory', or 'reverb' for the tables that processes use.

  Raises:
    exits.NodeFailed: A worker raised; the others have stopped, or are daemon
      threads that won't outlive the process.
  """
  stop = threading.Event()
  rollout_ends, parameter_ends, close = _make_channels(
      channel, experiment, stop)
  core = experiment.make_actor_core()
  # One jitted function for all actors: it is compiled once.
  core = core._replace(select_action=jax.jit(core.select_action))
  named_workers = [
      ('learner', learner_lib.make_learner(
          experiment, session,
          rollouts=[reader for _, reader in rollout_ends],
          parameters=channels.Broadcast([w for w, _ in parameter_ends])))]
  for i in range(experiment.num_actors):
    named_workers.append((f'actor/{i}', workers.Actor(
        experiment, i, core,
        parameters=parameter_ends[i][1],
        rollouts=rollout_ends[i][0],
        first_round=session.first_round)))

  ended = queue.Queue()

  def run_worker(name, worker):
    report = None
    try:
      worker.run()
    except channels.Stopped:
      pass
    except BaseException:  # pylint: disable=broad-exception-caught
      report = traceback.format_exc()
    ended.put((name, report))

  threads = [
      threading.Thread(target=run_worker, args=pair, name=pair[0], daemon=True)
      for pair in named_workers]
  for thread in threads:
    thread.start()
  try:
    for _ in threads:
      name, report = ended.get()
      if report is not None:
        raise exits.NodeFailed(name, report)
  finally:
    stop.set()
    deadline = time.monotonic() + exits.GRACE_S
    for thread in threads:
      thread.join(max(0.0, deadline - time.monotonic()))
    close()


Ends = List[Tuple[channels.Writer, channels.Reader]]


def _make_channels(
    channel: str,
    experiment: experiment_lib.Experiment,
    stop: threading.Event,
) -> Tuple[Ends, Ends, Callable[[], None]]:
  """Returns (writer, reader) per actor for rollouts and for parameters."""
  actors = range(experiment.num_actors)
  if channel == 'memory':
    rollouts = [channels.MemoryChannel(f'rollout/{i}', stop) for i in actors]
    parameters = [
        channels.MemoryChannel(f'parameters/{i}', stop) for i in actors]
    return ([(c, c) for c in rollouts], [(c, c) for c in parameters],
            lambda: None)
  from cleanba_acme import replay  # Reverb is an extra, and slow to import.  # pylint: disable=g-import-not-at-top
  return replay.make_local_channels(
      experiment.num_actors, *experiment.item_specs(), stop)
