"""The description of an environment that networks and channels are built from.
"""

from typing import Any, NamedTuple

from dm_env import specs

# The kinds of leaves an `EnvironmentSpec` is made of.
Array = specs.Array
BoundedArray = specs.BoundedArray
DiscreteArray = specs.DiscreteArray


class EnvironmentSpec(NamedTuple):
  """Specs of *one* environment: shapes carry no batch dimension.

  Attributes:
    observations: Tree of `dm_env.specs.Array`.
    actions: A `dm_env.specs.Array`; a `DiscreteArray` for discrete actions.
    rewards: Spec of the scalar training reward.
    discounts: Spec of the scalar discount.
  """
  observations: Any
  actions: Any
  rewards: specs.Array
  discounts: specs.BoundedArray
