"""The only loops of a run: an actor's and the learner's.

Both know their number of rounds, so nothing polls for the end. They are the
same under every launcher; only the channels they are given differ.
"""

import collections
from concurrent import futures
import contextlib
import itertools
import threading
import time
from typing import (
    Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple)

from cleanba_acme import actor_core as actor_core_lib
from cleanba_acme import channels
from cleanba_acme import checkpoint as checkpoint_lib
from cleanba_acme import experiment as experiment_lib
from cleanba_acme import fingerprint
from cleanba_acme import learner_core as learner_core_lib
from cleanba_acme import loggers
from cleanba_acme import rollout as rollout_lib
from cleanba_acme import seeding
from cleanba_acme import types
import jax
import jax.numpy as jnp
import numpy as np

# Reported returns and lengths are means over this many latest episodes.
_EPISODE_WINDOW = 100


class Actor:
  """Collects one rollout per round with the version that is due."""

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      index: int,
      core: actor_core_lib.ActorCore,
      parameters: channels.Reader,
      rollouts: channels.Writer,
      first_round: int = 0,
      timeout_s: Optional[float] = None,
  ):
    """Makes the actor of environments `[index * B, (index + 1) * B)`.

    Args:
      experiment: The run.
      index: This actor's index.
      core: How to act, with a jitted or compiled `select_action`.
      parameters: Where the learner's versions come from.
      rollouts: Where the rollouts go.
      first_round: The round to begin with: 0, or that of a checkpoint.
      timeout_s: How long to wait for the learner at most; None for as long as
        the program runs.
    """
    self._experiment = experiment
    self._index = index
    self._timeout_s = timeout_s
    self._core = core
    self._parameters = parameters
    self._rollouts = rollouts
    self._first_round = first_round

  def run(self) -> None:
    """Runs all rounds.

    Raises:
      channels.HandoffError: The parameters are not of the version that is due.
      channels.TimedOut: The learner doesn't do its part.
      channels.Stopped: The program is stopping.
    """
    experiment = self._experiment
    version = params = None
    with contextlib.ExitStack() as stack:
      for round_index in self._rounds():
        if experiment.is_boundary(round_index):
          stack.close()
          unroller = self._restart(round_index, stack)
        if experiment.is_asynchronous:
          version, params = self._get_parameters(round_index)
        elif version != experiment.policy_version(round_index):
          version, params = self._get_parameters(round_index)
          if version != experiment.policy_version(round_index):
            raise channels.HandoffError(
                f'actor {self._index} was given version {version} of the '
                f'parameters in round {round_index}, expected '
                f'{experiment.policy_version(round_index)}')
        keys = unroller.keys
        rollout, episodes = unroller.unroll(params)
        item = types.RolloutItem(
            actor=np.int32(self._index),
            round=np.int32(round_index),
            version=np.int32(version),
            keys=keys,
            rollout=rollout,
            episodes=episodes)
        try:
          self._rollouts.put(item, self._timeout_s)
        except channels.TimedOut as error:
          raise channels.TimedOut(
              f'round {round_index} of actor {self._index} can\'t be handed '
              f'over: {error}') from error

  def _restart(
      self, round_index: int, stack: contextlib.ExitStack
  ) -> rollout_lib.Unroller:
    """Makes new environments, seeded for this boundary; `stack` closes them."""
    experiment = self._experiment
    rows = experiment.envs_per_actor
    first = self._index * rows
    boundary = round_index // experiment.checkpoint_every
    environment = experiment.environment_factory(
        seeding.environment_seed(experiment.seed, boundary) + first, rows)
    stack.callback(environment.close)
    key = seeding.purpose_key(experiment.seed, seeding.Purpose.ACTING)
    state = self._core.init(key, range(first, first + rows))
    return rollout_lib.Unroller(
        environment, experiment.environment_factory.spec, self._core,
        # Steps count on, so that no key is ever used twice.
        state._replace(step=jnp.int32(round_index * experiment.unroll_length)),
        experiment.unroll_length, experiment.num_buffers)

  def _rounds(self) -> Iterable[int]:
    if self._experiment.is_asynchronous:
      # The learner says when to stop.
      return itertools.count(self._first_round)
    return range(self._first_round, self._experiment.num_rounds)

  def _get_parameters(self, round_index: int) -> Tuple[int, types.Params]:
    try:
      item = self._parameters.get(self._timeout_s)
    except channels.TimedOut as error:
      raise channels.TimedOut(
          f'round {round_index} of actor {self._index} lacks the learner\'s '
          f'parameters: {error}') from error
    return int(item.version), jax.device_put(item.params)


class Learner:
  """Makes one update per round and publishes its version."""

  def __init__(
      self,
      experiment: experiment_lib.Experiment,
      core: learner_core_lib.LearnerCore,
      sampler: channels.Sampler,
      parameters: channels.Writer,
      progress: loggers.Logger,
      ledger: loggers.Logger,
      checkpoints: checkpoint_lib.Checkpointer,
      first_round: int = 0,
      timeout_s: Optional[float] = None,
  ):
    """Makes the learner.

    Args:
      experiment: The run.
      core: How to learn.
      sampler: Takes the actors' items.
      parameters: Goes to all actors.
      progress: Takes what people watch.
      ledger: Takes what proves the contract.
      checkpoints: Takes the checkpoints, and has that of `first_round`.
      first_round: The round to begin with: 0, or that of a checkpoint.
      timeout_s: How long to wait for the actors at most; None for as long as
        the program runs.
    """
    self._experiment = experiment
    self._core = core
    self._timeout_s = timeout_s
    self._sampler = sampler
    self._parameters = parameters
    self._progress = progress
    self._ledger = ledger
    self._checkpoints = checkpoints
    self._first_round = first_round
    self._episodes = _EpisodeStatistics()
    # The latest batches; the oldest is written over.
    self._batches = collections.deque()

  def run(self) -> types.TrainingState:
    """Runs all rounds.

    Returns:
      The state after the last update.

    Raises:
      channels.HandoffError: An item is not of the round or version that is due.
      channels.TimedOut: An actor doesn't do its part.
      channels.Stopped: The program is stopping.
      FloatingPointError: A metric or a parameter is not finite any more; the
        state is saved beside the checkpoints.
    """
    outputs = (self._progress, self._ledger, self._checkpoints)
    try:
      state = self._run()
    except BaseException:
      for output in outputs:
        with contextlib.suppress(Exception):  # It would hide what went wrong.
          output.close()
      raise
    for output in outputs:
      output.close()
    return state

  def _run(self) -> types.TrainingState:
    experiment, first_round = self._experiment, self._first_round
    start = self._restore() if first_round else self._begin()
    state = start.state
    self._episodes = _EpisodeStatistics(**start.counters['episodes'])
    params = _copy_to_host(state.params)
    for version, version_params in enumerate(
        [*start.older_params, params],
        start=experiment.policy_version(first_round)):
      self._publish(version, version_params)
    recent = collections.deque(
        start.older_params, maxlen=experiment.policy_lag)
    begin_run = time.monotonic() - start.counters['seconds']

    ahead = None
    for round_index in range(first_round, experiment.num_rounds):
      begin = time.monotonic()
      taken = ahead.result() if ahead else self._take(round_index)
      took = time.monotonic()
      # With a lag, actors hand over the next round while this one is learned.
      if experiment.policy_lag and round_index + 1 < experiment.num_rounds:
        ahead = _start(self._take, round_index + 1)
      recent.append(params)
      state, metrics = jax.block_until_ready(
          self._core.update(state, taken.batch))
      params = _copy_to_host(state.params)
      updated = time.monotonic()
      metrics = jax.device_get(metrics)
      self._check_finite(round_index + 1, metrics, params, state)
      # From here on, actors may write over what they handed over.
      self._publish(round_index + 1, params)
      published = time.monotonic()

      update = round_index + 1
      steps = update * experiment.steps_per_round
      seconds = published - begin_run
      self._episodes.add(taken.items)
      self._ledger.write({
          'update': update,
          'version': min(int(item.version) for item in taken.items),
          'steps': steps,
          'fingerprint': fingerprint.fingerprint(params),
          'keys': taken.keys,
          'data': taken.data,
          'gate_wait_s': took - begin,
          'update_s': updated - took,
          'publish_s': published - updated,
          **taken.actor_columns,
      })
      self._progress.write({
          'update': update,
          'steps': steps,
          'frames': steps * experiment.environment_factory.frame_skip,
          'seconds': seconds,
          'sps': steps / seconds,
          **self._episodes.row(),
          **{key: float(value) for key, value in metrics.items()},
      })
      if experiment.is_boundary(update) or update == experiment.num_rounds:
        self._checkpoints.save(update, checkpoint_lib.Checkpoint(
            state, tuple(recent),
            {'seconds': seconds, 'episodes': self._episodes.counters()}))
    return state

  def _take(self, round_index: int) -> '_Round':
    """Waits for a round's items, and makes them ready to be learned from."""
    items = self._sampler.sample(
        round_index, self._experiment.policy_version(round_index),
        self._timeout_s)
    actor_columns = _actor_columns(items, self._sampler.waits)
    num_buffers = self._experiment.num_buffers
    batch = rollout_lib.join(
        [item.rollout for item in items],
        self._batches.popleft() if len(self._batches) == num_buffers else None)
    if num_buffers is not None:
      self._batches.append(batch)
    return _Round(
        items=items,
        batch=self._core.put(batch),
        keys=fingerprint.fingerprint(
            np.concatenate([item.keys for item in items])),
        data=fingerprint.fingerprint(batch),
        actor_columns=actor_columns)

  def _begin(self) -> checkpoint_lib.Checkpoint:
    seed = self._experiment.seed
    state = self._core.init(*[
        seeding.purpose_key(seed, purpose)
        for purpose in (seeding.Purpose.INIT, seeding.Purpose.SHUFFLING)])
    return checkpoint_lib.Checkpoint(
        state, (), {'seconds': 0.0, 'episodes': {}})

  def _restore(self) -> checkpoint_lib.Checkpoint:
    restored = self._checkpoints.restore(
        self._first_round, self._experiment.checkpoint_spec())
    # Numpy's scalars would not keep their type in arithmetic.
    return restored._replace(state=jax.device_put(restored.state))

  def _check_finite(
      self,
      update: int,
      metrics: learner_core_lib.Metrics,
      params: types.Params,
      state: types.TrainingState,
  ) -> None:
    offenders = [
        f'{name} = {value}' for name, value in metrics.items()
        if not np.isfinite(value)]
    offenders += [
        f'parameter {jax.tree_util.keystr(path)}'
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if not np.isfinite(leaf).all()]
    if offenders:
      path = self._checkpoints.save_for_inspection(update, state)
      raise FloatingPointError(
          f'update {update} is not finite: {", ".join(offenders)}; the state '
          f'after it is in {path}')

  def _publish(self, version: int, params: types.Params) -> None:
    # With a lag, the last versions are nobody's: nothing would take them.
    if version > self._experiment.policy_version(
        self._experiment.num_rounds - 1):
      return
    try:
      self._parameters.put(
          types.ParametersItem(np.int32(version), params), self._timeout_s)
    except channels.TimedOut as error:
      raise channels.TimedOut(
          f'version {version} of the parameters can\'t be handed over: {error}'
      ) from error


class _Round(NamedTuple):
  """A round, ready for the update.

  Attributes:
    items: What the actors handed over.
    batch: Their rollouts, joined, where the update is computed.
    keys: Fingerprint of the items' keys.
    data: Fingerprint of the batch.
    actor_columns: What the ledger says of each item.
  """
  items: List[types.RolloutItem]
  batch: types.Rollout
  keys: str
  data: str
  actor_columns: Dict[str, Any]


def _start(
    function: Callable[[int], _Round], round_index: int) -> futures.Future:
  """Calls a function in a thread, which nobody waits for at the end."""
  future = futures.Future()

  def work():
    try:
      future.set_result(function(round_index))
    except BaseException as error:  # pylint: disable=broad-exception-caught
      future.set_exception(error)

  threading.Thread(target=work, name='next round', daemon=True).start()
  return future


class _EpisodeStatistics:
  """Counts episodes and averages the latest ones."""

  def __init__(
      self,
      count: int = 0,
      returns: Sequence[float] = (),
      lengths: Sequence[int] = (),
  ):
    self._count = count
    self._returns = collections.deque(returns, maxlen=_EPISODE_WINDOW)
    self._lengths = collections.deque(lengths, maxlen=_EPISODE_WINDOW)

  def add(self, items: List[types.RolloutItem]) -> None:
    """Adds the episodes of a round, in order of time, then environment."""
    length = np.concatenate([item.episodes.length for item in items], axis=1)
    returns = np.concatenate([item.episodes.returns for item in items], axis=1)
    ended = length > 0
    self._count += int(ended.sum())
    self._returns.extend(returns[ended].tolist())
    self._lengths.extend(length[ended].tolist())

  def row(self) -> Dict[str, Optional[float]]:
    """Returns the statistics' part of a progress row."""
    return {
        'episodes': self._count,
        'episode_return':
            float(np.mean(self._returns)) if self._returns else None,
        'episode_length':
            float(np.mean(self._lengths)) if self._lengths else None,
    }

  def counters(self) -> Dict[str, Any]:
    """Returns what a checkpoint keeps: the arguments of the constructor."""
    return {
        'count': self._count,
        'returns': list(self._returns),
        'lengths': list(self._lengths),
    }


def _actor_columns(
    items: List[types.RolloutItem], waits: Sequence[float]
) -> Dict[str, Any]:
  """Returns the ledger's columns about each actor's item."""
  columns = {}
  for i, (item, wait) in enumerate(zip(items, waits)):
    columns[f'version_{i}'] = int(item.version)
    columns[f'data_{i}'] = fingerprint.fingerprint(item.rollout)
    columns[f'wait_{i}_s'] = wait
  return columns


def _copy_to_host(params: types.Params) -> types.Params:
  # On CPU, `np.asarray` would be a view of a buffer that jax may reuse.
  return jax.tree.map(np.array, params)
