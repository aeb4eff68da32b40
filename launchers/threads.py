"""Runs an experiment in one process, a thread per worker."""

import queue
import threading
import time
import traceback
from typing import Callable, Dict, NamedTuple, Optional, Sequence

from cleanba_acme import channels
from cleanba_acme import experiment as experiment_lib
from cleanba_acme.launchers import clients
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import session as session_lib
from cleanba_acme.launchers import watch as watch_lib
import jax

_LEARNER = 'learner'
_POLL_S = 0.2


def run(
    experiment: experiment_lib.Experiment,
    session: session_lib.Session,
    channel: str = 'memory',
) -> None:
  """Runs all rounds.

  Args:
    experiment: The run.
    session: This launch of it.
    channel: 'memory', or 'reverb' for the tables that processes use. An
      asynchronous handoff is always in memory.

  Raises:
    exits.NodeFailed: A worker raised; the others have stopped, or are daemon
      threads that won't outlive the process.
  """
  stop = threading.Event()
  ends = _make_ends(channel, experiment, stop, session.token)
  named_workers = {_LEARNER: session_lib.make_learner(
      experiment, session, ends.sampler, ends.publisher)}
  devices: Dict[str, Optional[jax.Device]] = {_LEARNER: None}
  for i in range(experiment.num_actors):
    name = f'actor/{i}'
    devices[name] = clients.get_device(i)
    with jax.default_device(devices[name]):
      core = experiment.compile_actor_core()
    named_workers[name] = session_lib.make_actor(
        experiment, session, i, core, ends.parameters[i], ends.rollouts[i])

  ended = queue.Queue()

  def run_worker(name, worker):
    failure = None
    try:
      with jax.default_device(devices[name]):
        worker.run()
    except channels.Stopped:
      pass
    except BaseException as error:  # pylint: disable=broad-exception-caught
      failure = exits.NodeFailed(
          name, traceback.format_exception_only(type(error), error)[-1].strip(),
          traceback.format_exc().rstrip(),
          is_hang=isinstance(error, channels.TimedOut))
    ended.put((name, failure))

  threads = [
      threading.Thread(target=run_worker, args=pair, name=pair[0], daemon=True)
      for pair in named_workers.items()]
  watch = watch_lib.Watch(session)
  for thread in threads:
    thread.start()
  try:
    name = None
    while name != _LEARNER:
      try:
        name, failure = ended.get(timeout=_POLL_S)
      except queue.Empty:
        watch.check()
        continue
      if failure is not None:
        raise failure
  finally:
    stop.set()
    deadline = time.monotonic() + exits.GRACE_S
    for thread in threads:
      thread.join(max(0.0, deadline - time.monotonic()))
    ends.close()
  while not ended.empty():  # An actor may still fail on its way out.
    name, failure = ended.get()
    if failure is not None:
      raise failure


class _Ends(NamedTuple):
  """All ends of all channels.

  Attributes:
    rollouts: Each actor's end for its rollouts.
    sampler: The learner's end of them.
    publisher: The learner's end for the parameters.
    parameters: Each actor's end of them.
    close: Frees everything.
  """
  rollouts: Sequence[channels.Writer]
  sampler: channels.Sampler
  publisher: channels.Writer
  parameters: Sequence[channels.Reader]
  close: Callable[[], None]


def _make_ends(
    channel: str,
    experiment: experiment_lib.Experiment,
    stop: threading.Event,
    token: str,
) -> _Ends:
  """Makes the channels of a run."""
  num_actors = experiment.num_actors
  if experiment.is_asynchronous:
    rollouts = channels.MemoryChannel('rollouts', stop, capacity=num_actors)
    latest = channels.LatestValue('parameters', stop)
    return _Ends(
        [rollouts] * num_actors,
        channels.ArrivalSampler(rollouts, num_actors),
        latest, [latest] * num_actors, close=lambda: None)
  if channel == 'reverb':
    # Reverb is an extra, and slow to import.
    from cleanba_acme import replay  # pylint: disable=g-import-not-at-top
    try:
      writers, readers, publisher, parameters, close = (
          replay.make_local_channels(
              num_actors, *experiment.item_specs(), stop, token))
    except PermissionError as error:
      raise ValueError(
          'channel=\'reverb\': this system lets only root keep Reverb to the '
          'loopback interface (Linux is older than 5.7); must be \'memory\' '
          'here') from error
    return _Ends(
        writers, channels.SizeGatedSampler(readers), publisher, parameters,
        close)
  rollouts = [
      channels.MemoryChannel(f'rollout/{i}', stop) for i in range(num_actors)]
  parameters = [
      channels.MemoryChannel(f'parameters/{i}', stop)
      for i in range(num_actors)]
  return _Ends(
      rollouts, channels.SizeGatedSampler(rollouts),
      channels.Broadcast(parameters), parameters, close=lambda: None)
