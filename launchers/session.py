"""Makes the workers of a launch, the same under every launcher."""

import os
from typing import NamedTuple

from cleanba_acme import actor_core
from cleanba_acme import channels
from cleanba_acme import checkpoint
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import loggers
from cleanba_acme import workers


_ACTOR_PATIENCE_S = 2.0


class Session(NamedTuple):
  """One launch of a run, which may have been launched before.

  Attributes:
    output_dir: The run's directory.
    token: Random; Reverb's clients must know it.
    first_round: The round to begin with: 0, or that of a checkpoint.
    keep_checkpoints: How many of the latest checkpoints to keep.
    hang_timeout_s: A worker that keeps another one waiting for so long counts
      as hung.
    isolate_network: Whether processes get a network of their own.
  """
  output_dir: str
  token: str
  first_round: int = 0
  keep_checkpoints: int = 3
  hang_timeout_s: float = 1800.0
  isolate_network: bool = True


def make_checkpointer(session: Session) -> checkpoint.Checkpointer:
  """Makes the run's checkpointer."""
  return checkpoint.Checkpointer(
      os.path.join(session.output_dir, 'checkpoints'), session.keep_checkpoints)


def make_learner(
    experiment: experiment_lib.Experiment,
    session: Session,
    sampler: channels.Sampler,
    parameters: channels.Writer,
) -> workers.Learner:
  """Makes the learner.

  Args:
    experiment: The run.
    session: This launch of it.
    sampler: Takes the actors' items.
    parameters: Goes to all actors.
  """
  return workers.Learner(
      experiment,
      experiment.make_learner_core(),
      sampler=sampler,
      parameters=parameters,
      progress=loggers.make_progress_logger(
          session.output_dir, session.first_round,
          session.first_round * experiment.steps_per_round),
      ledger=loggers.make_ledger_logger(
          session.output_dir, session.first_round),
      checkpoints=make_checkpointer(session),
      first_round=session.first_round,
      timeout_s=session.hang_timeout_s)


def make_actor(
    experiment: experiment_lib.Experiment,
    session: Session,
    index: int,
    core: actor_core.ActorCore,
    parameters: channels.Reader,
    rollouts: channels.Writer,
) -> workers.Actor:
  """Makes an actor; arguments as of `workers.Actor`.

  It is more patient than the learner, which can tell who keeps the run waiting.
  """
  return workers.Actor(
      experiment, index, core, parameters, rollouts, session.first_round,
      session.hang_timeout_s + _ACTOR_PATIENCE_S)
