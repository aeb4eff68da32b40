"""What makes an agent: how it acts and how it learns."""

from typing import NamedTuple, Protocol

from cleanba_acme import actor_core
from cleanba_acme import learner_core
from cleanba_acme.networks import base as networks_lib


class RunSizes(NamedTuple):
  """What a learner must know of the run it is built for.

  Attributes:
    unroll_length: `T`.
    num_envs: Environments of all actors together, the global batch's `B`.
    num_updates: Rounds of the whole run.
  """
  unroll_length: int
  num_envs: int
  num_updates: int


class Builder(Protocol):
  """An agent. It is sent to other processes, so it must be picklable."""

  def make_actor_core(
      self,
      networks: networks_lib.ActorCritic,
      evaluation: bool = False,
  ) -> actor_core.ActorCore:
    """Makes the acting half, greedy if `evaluation`."""

  def make_learner_core(
      self,
      networks: networks_lib.ActorCritic,
      sizes: RunSizes,
      execution: learner_core.Execution,
  ) -> learner_core.LearnerCore:
    """Makes the learning half.

    Args:
      networks: The networks to train.
      sizes: Of the run.
      execution: How the machine is to compute an update.

    Raises:
      ValueError: The sizes don't fit the agent or the execution.
    """
