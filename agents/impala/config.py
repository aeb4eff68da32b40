"""Settings of IMPALA. This module imports nothing heavy: `--help` reads it."""

import dataclasses

from cleanba_acme import fields


@dataclasses.dataclass(frozen=True)
class IMPALAConfig:
  """Settings of IMPALA, by default Cleanba's; each field knows its own help."""
  discount: float = fields.field(
      0.99, 'Discount factor of a step.', low=0, high=1)
  vtrace_lambda: float = fields.field(
      1.0, 'Lambda of V-trace: weight of longer returns.', low=0, high=1)
  learning_rate: float = fields.field(
      6e-4, 'Learning rate of the first update.', above=0)
  anneal_learning_rate: bool = fields.field(
      True, 'Lower the learning rate linearly to 0 over the run.')
  rmsprop_decay: float = fields.field(
      0.99, 'Decay of RMSProp\'s mean of squared gradients.', low=0, high=1)
  rmsprop_epsilon: float = fields.field(
      0.01, 'Epsilon of RMSProp, outside the square root as in PyTorch.',
      above=0)
  max_gradient_norm: float = fields.field(
      40.0, 'Gradients of a larger global norm are scaled down to it.',
      above=0)
  num_minibatches: int = fields.field(
      4, 'Gradient steps per round, each on a part of the environments.',
      low=1)
  entropy_cost: float = fields.field(
      0.01, 'Weight of the entropy bonus.', low=0)
  value_cost: float = fields.field(0.5, 'Weight of the value loss.', low=0)
  scale_rewards: bool = fields.field(
      False,
      'Divide rewards by the running deviation of the discounted returns.')

  def __post_init__(self):
    """Raises ValueError for a field out of its range."""
    fields.check(self)
