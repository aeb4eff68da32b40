"""The topology of a run as a Launchpad program; who launches it is elsewhere.

    reverb        the tables: two per actor, each a FIFO of one item
    actor x N     parameters/i -> rollouts -> rollout/i
    learner       rollout/* -> updates -> parameters/*

Nodes are `PyClassNode`s: they open no port. (Launchpad's Courier nodes run
whatever code a client sends them.)
"""

import contextlib
import os
import sys
import traceback
from typing import Callable, Dict

from cleanba_acme import channels
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import replay
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import lifeline
from cleanba_acme.launchers import resources
from cleanba_acme.launchers import session as session_lib
import launchpad as lp
from launchpad import address
from launchpad.nodes.python import local_multi_processing

ACTOR = 'actor'
LEARNER = 'learner'
REVERB = 'reverb'


class _ReverbNode(lp.ReverbNode):
  """A server on loopback, if it can be, that doesn't outlive the launcher."""

  def run(self) -> None:
    _run(self._serve)

  def _serve(self) -> None:
    # Where it can't be, it has a network of its own, or the user was warned.
    self._server = replay.make_server(
        self._priority_tables_fn(),
        address.get_port_from_address(self.reverb_address.resolve()),
        must_be_local=False)
    lp.wait_for_stop()


class ActorNode:
  """Runs one actor over Reverb."""

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      session: session_lib.Session,
      index: int,
      client: replay.Client,
  ):
    self._experiment = experiment
    self._session = session
    self._index = index
    self._client = client

  def run(self) -> None:
    """Runs the actor until its last round, or until the program stops."""
    _run(self._work)

  def _work(self) -> None:
    stop = lp.stop_event()
    _, parameters_spec = self._experiment.item_specs()
    actor = session_lib.make_actor(
        self._experiment,
        self._session,
        self._index,
        self._experiment.compile_actor_core(),
        replay.ReverbReader(
            self._client,
            replay.parameters_table(self._index, self._session.token),
            parameters_spec, stop),
        replay.ReverbWriter(
            self._client,
            [replay.rollout_table(self._index, self._session.token)], stop))
    actor.run()


class LearnerNode:
  """Runs the learner over Reverb."""

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      session: session_lib.Session,
      client: replay.Client,
  ):
    self._experiment = experiment
    self._session = session
    self._client = client

  def run(self) -> None:
    """Runs the learner until its last round, or until the program stops."""
    _run(self._work)

  def _work(self) -> None:
    stop = lp.stop_event()
    rollout_spec, _ = self._experiment.item_specs()
    actors = range(self._experiment.num_actors)
    token = self._session.token
    learner = session_lib.make_learner(
        self._experiment, self._session,
        channels.SizeGatedSampler([
            replay.ReverbReader(
                self._client, replay.rollout_table(i, token), rollout_spec,
                stop)
            for i in actors]),
        replay.ReverbWriter(
            self._client, [replay.parameters_table(i, token) for i in actors],
            stop))
    learner.run()


def _run(work: Callable[[], object]) -> None:
  """Does the work of a node's process, and ends it.

  It ends at once: Python takes seconds to end, and closing a writer waits for
  the server, which may be the one that failed.
  """
  lifeline.attach()
  status = exits.WORK_DONE
  try:
    work()
  except channels.Stopped:
    status = exits.DONE  # Told to: not this node's failure.
  except BaseException as error:  # pylint: disable=broad-exception-caught
    traceback.print_exc()
    is_hang = isinstance(error, channels.TimedOut)
    status = exits.HUNG if is_hang else exits.NODE_FAILED
  with contextlib.suppress(OSError):  # The disk is full.
    sys.stdout.flush()
    sys.stderr.flush()
  os._exit(status)


def make_program(
    experiment: experiment_lib.Experiment,
    session: session_lib.Session,
) -> lp.Program:
  """Makes the program of a run.

  Args:
    experiment: The run.
    session: This launch of it.
  """
  program = lp.Program('cleanba_acme')
  num_actors = experiment.num_actors
  item_specs = experiment.item_specs()
  with program.group(REVERB):
    server = program.add_node(_ReverbNode(
        lambda: replay.make_tables(num_actors, *item_specs, session.token)))
  with program.group(LEARNER):
    program.add_node(lp.PyClassNode(
        LearnerNode, experiment, session, server))
  with program.group(ACTOR):
    for i in range(num_actors):
      program.add_node(lp.PyClassNode(
          ActorNode, experiment, session, i, server))
  return program


def make_resources() -> Dict[str, local_multi_processing.PythonProcess]:
  """Returns what `lp.launch` takes as `local_resources`, by group."""
  # A node must find the modules that this process found.
  env = {
      'PYTHONPATH': os.pathsep.join(path for path in sys.path if path),
      **lifeline.environment(),
  }
  # The server computes nothing, and would notice too late that memory is short.
  worker_env = {**env, **resources.kept_memory()}
  return {
      group: local_multi_processing.PythonProcess(env=dict(group_env))
      for group, group_env in (
          (REVERB, env), (LEARNER, worker_env), (ACTOR, worker_env))}
