"""Checkpoints: what a run needs to go on as if it had never stopped.

Environments can't be saved, so every checkpoint is a boundary at which all of
them restart, in a run that is never interrupted too (see `workers.Actor`).
Orbax writes; a checkpoint is there as a whole or not at all, and its numbers
are checked against their fingerprint when it is read.
"""

import json
import logging
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from cleanba_acme import fingerprint
from cleanba_acme import types
import jax
import numpy as np
from orbax import checkpoint as orbax


class Checkpoint(NamedTuple):
  """The state of a run between two rounds.

  Attributes:
    state: The training state after the last update.
    older_params: The versions, oldest first, that rounds to come will act with
      and that are older than `state.params`; as many as the policy lag.
    counters: What the logs go on from; JSON values.
  """
  state: types.TrainingState
  older_params: Tuple[types.Params, ...]
  counters: Dict[str, Any]


class DamagedError(Exception):
  """There are checkpoints, but none of them can be read."""


class Checkpointer:
  """Saves and finds the checkpoints of one run, named by their update."""

  def __init__(self, directory: str, keep: int = 3):
    """Opens, or makes, the directory.

    Args:
      directory: Where the checkpoints of the run are.
      keep: How many of the latest ones to keep.

    Raises:
      DamagedError: It can't be a directory.
    """
    # Orbax announces every file it looks at.
    logging.getLogger('absl').setLevel(logging.WARNING)
    self._directory = os.path.abspath(directory)
    if os.path.lexists(directory) and not os.path.isdir(directory):
      raise DamagedError(f'{directory} must be a directory')
    self._manager = orbax.CheckpointManager(
        self._directory,
        options=orbax.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False))

  def save(self, update: int, checkpoint: Checkpoint) -> None:
    """Saves a checkpoint; it is on disk when this returns."""
    arrays = _to_numpy((checkpoint.state, checkpoint.older_params))
    self._manager.save(update, args=orbax.args.Composite(
        arrays=orbax.args.StandardSave(_as_dict(arrays)),
        metadata=orbax.args.JsonSave({
            'counters': checkpoint.counters,
            'fingerprint': _fingerprint(
                update, arrays, checkpoint.counters)})))

  def save_for_inspection(
      self, update: int, state: types.TrainingState) -> str:
    """Saves a state that a run must not go on from.

    Args:
      update: The update it is the state after.
      state: The state; its tree is kept as it is, for people.

    Returns:
      Where it is, for `orbax.checkpoint.StandardCheckpointer().restore`.
    """
    path = f'{self._directory}-inspect/{update}'
    with orbax.StandardCheckpointer() as checkpointer:
      checkpointer.save(path, _to_numpy(state)._asdict(), force=True)
    return path

  def restore(
      self, update: int, like: Tuple[types.TrainingState, Any]) -> Checkpoint:
    """Reads one checkpoint.

    Args:
      update: Which one.
      like: `(state, older_params)`, a tree of `jax.ShapeDtypeStruct`.

    Raises:
      DamagedError: It can't be read, or its numbers are not what was saved, or
        not in the shapes and types of `like`.
    """
    # Numpy in, numpy out: reading must not start an accelerator.
    target = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), like)
    try:
      restored = self._manager.restore(update, args=orbax.args.Composite(
          arrays=orbax.args.StandardRestore(_as_dict(target)),
          metadata=orbax.args.JsonRestore()))
      arrays = jax.tree.unflatten(
          jax.tree.structure(like), [
              restored.arrays[str(i)] for i in range(len(restored.arrays))])
      arrays = _to_numpy(arrays)
      counters = restored.metadata['counters']
      expected = restored.metadata['fingerprint']
    except Exception as error:  # Orbax raises what its storage raises.
      raise DamagedError(
          f'checkpoint {update} in {self._directory} can\'t be read: '
          f'{error}') from error
    # Orbax gives what it finds, whatever shape was asked for.
    for (path, leaf), spec in zip(
        jax.tree_util.tree_leaves_with_path(arrays), jax.tree.leaves(like)):
      if leaf.shape != spec.shape:
        raise DamagedError(
            f'checkpoint {update} in {self._directory} is of another '
            f'experiment: {jax.tree_util.keystr(path)} has shape {leaf.shape}, '
            f'must have {spec.shape}')
    if _fingerprint(update, arrays, counters) != expected:
      raise DamagedError(
          f'checkpoint {update} in {self._directory} does not hold the numbers '
          'that were saved, or not in the types of this experiment')
    return Checkpoint(*arrays, counters)

  def find_latest(
      self, like: Tuple[types.TrainingState, Any]
  ) -> Tuple[Optional[int], List[str]]:
    """Finds the latest checkpoint that can be read; puts later ones aside.

    They go into a directory beside that of the checkpoints, `…-damaged`.

    Args:
      like: As for `restore`.

    Returns:
      Its update, None if there is no checkpoint at all, and what was wrong
      with each later one.

    Raises:
      DamagedError: There are checkpoints, but none can be read.
    """
    problems = []
    # Orbax overlooks what is no directory.
    updates = sorted(
        (int(name) for name in os.listdir(self._directory)
         if re.fullmatch('0|[1-9][0-9]*', name)), reverse=True)
    for update in updates:
      try:
        self.restore(update, like)
      except DamagedError as error:
        problems.append(str(error))
        continue
      for damaged in updates[:updates.index(update)]:
        self._put_aside(str(damaged))
      self._manager.reload()
      return update, problems
    if problems:
      raise DamagedError('; '.join(problems))
    return None, problems

  def _put_aside(self, name: str) -> None:
    aside = f'{self._directory}-damaged'
    os.makedirs(aside, exist_ok=True)
    # A name may have been damaged before.
    path = tempfile.mkdtemp(prefix=f'{name}-', dir=aside)
    shutil.move(os.path.join(self._directory, name), path)

  def close(self) -> None:
    """Frees Orbax's threads."""
    self._manager.close()


def _to_numpy(tree: types.ArrayTree) -> types.ArrayTree:
  return jax.tree.map(np.asarray, tree)


def _fingerprint(
    update: int, arrays: types.ArrayTree, counters: Dict[str, Any]) -> str:
  # With its number, so that one checkpoint is never taken for another.
  text = json.dumps([update, counters], sort_keys=True).encode()
  return fingerprint.fingerprint((arrays, np.frombuffer(text, np.uint8)))


def _as_dict(tree: types.ArrayTree) -> Dict[str, np.ndarray]:
  """Numbers the leaves: a checkpoint doesn't depend on the tree's classes."""
  return {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(tree))}
