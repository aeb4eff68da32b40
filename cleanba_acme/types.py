"""The data that flows between the rooms of this library.

Shape letters, used throughout:
  T: time, the number of steps of an unroll.
  B: environments of one actor (after the sampler: of all actors).
"""

from typing import Any, NamedTuple, Union

import jax
import numpy as np

Array = Union[np.ndarray, jax.Array]
# A nest (tuples, dicts, NamedTuples) whose leaves are arrays.
ArrayTree = Any
Params = ArrayTree
PRNGKey = jax.Array


class Rollout(NamedTuple):
  """`T` steps of `B` environments, all acted by one version of the parameters.

  Rows keep dm_env's alignment: row `t` holds an observation together with the
  reward and discount that arrived with it. The action of row `t` leads to row
  `t + 1`. After a `LAST` row the environment ignores the action and row `t + 1`
  is a `FIRST`: that transition is a dummy and every loss masks it.

  Attributes:
    observation: Tree of `[T+1, B, ...]`.
    reward: `[T+1, B]` float32; 0 in `FIRST` rows.
    discount: `[T+1, B]` float32, the environment's own discount: 0 in the
      `LAST` row of an episode that terminated, 1 in one that was truncated.
    step_type: `[T+1, B]` int32, values of `dm_env.StepType`.
    action: `[T, B, ...]`.
    extras: Dict of `[T+1, B, ...]`: what the `ActorCore` returned beside each
      action. The actor evaluates row `T` too, so a value estimate among the
      extras bootstraps without a forward pass in the learner.
    core_state: Tree of `[B, ...]`, the recurrent state before row 0; `()` for
      feed-forward networks.
  """
  observation: ArrayTree
  reward: Array
  discount: Array
  step_type: Array
  action: Array
  extras: ArrayTree
  core_state: ArrayTree


class Episodes(NamedTuple):
  """Episodes that ended within a rollout, where `length > 0`.

  Attributes:
    returns: `[T, B]` float32, undiscounted sum of *unclipped* rewards of the
      whole episode that ended with the step at this row; 0 elsewhere.
    length: `[T, B]` int32, its number of agent steps; 0 elsewhere.
  """
  returns: np.ndarray
  length: np.ndarray


class RolloutItem(NamedTuple):
  """What one actor hands to the learner in one round.

  Attributes:
    actor: int32 scalar array, index of the actor.
    round: int32 scalar array, counted from 0.
    version: int32 scalar array, the policy version that acted.
    keys: `[B, 3]` uint32, per environment the key and the step that its action
      in row 0 was drawn with; only the ledger reads them.
    rollout: The `Rollout`.
    episodes: The `Episodes` that ended in it.
  """
  actor: np.ndarray
  round: np.ndarray
  version: np.ndarray
  keys: np.ndarray
  rollout: Rollout
  episodes: Episodes


class ParametersItem(NamedTuple):
  """One policy version, handed by the learner to every actor.

  Attributes:
    version: int32 scalar array: how many updates made these parameters.
    params: Tree of numpy arrays.
  """
  version: np.ndarray
  params: Params


class TrainingState(NamedTuple):
  """All that an update reads and writes.

  Attributes:
    params: Network parameters.
    optimizer_state: State of the optax optimiser.
    num_updates: int32 scalar, how many updates were made so far.
    key: Key of the run's minibatch shuffling; the key of one update is derived
      from it and `num_updates`, so it never changes.
    reward_statistics: What `reward_scaling` keeps, `()` without it.
  """
  params: Params
  optimizer_state: ArrayTree
  num_updates: Array
  key: PRNGKey
  reward_statistics: ArrayTree = ()
