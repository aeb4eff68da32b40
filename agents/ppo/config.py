"""Settings of PPO. This module imports nothing heavy: `--help` reads it."""

import dataclasses

from cleanba_acme import fields


@dataclasses.dataclass(frozen=True)
class PPOConfig:
  """Settings of PPO, by default Cleanba's; each field knows its own help."""
  discount: float = fields.field(
      0.99, 'Discount factor of a step.', low=0, high=1)
  gae_lambda: float = fields.field(
      0.95, 'Lambda of generalised advantage estimation.', low=0, high=1)
  learning_rate: float = fields.field(
      2.5e-4, 'Learning rate of the first update.', above=0)
  anneal_learning_rate: bool = fields.field(
      True, 'Lower the learning rate linearly to 0 over the run.')
  adam_epsilon: float = fields.field(1e-5, 'Epsilon of Adam.', above=0)
  max_gradient_norm: float = fields.field(
      0.5, 'Gradients of a larger global norm are scaled down to it.', above=0)
  num_epochs: int = fields.field(4, 'Passes over the data of a round.', low=1)
  num_minibatches: int = fields.field(4, 'Gradient steps per pass.', low=1)
  clip_epsilon: float = fields.field(
      0.1, 'How far the probability ratio may move from 1 before it clips.',
      above=0)
  normalize_advantage: bool = fields.field(
      True, 'Give the advantages of a minibatch mean 0 and deviation 1.')
  entropy_cost: float = fields.field(
      0.01, 'Weight of the entropy bonus.', low=0)
  value_cost: float = fields.field(0.5, 'Weight of the value loss.', low=0)
  scale_rewards: bool = fields.field(
      False,
      'Divide rewards by the running deviation of the discounted returns.')

  def __post_init__(self):
    """Raises ValueError for a field out of its range."""
    fields.check(self)
