"""Settings of PPO. This module imports nothing heavy: `--help` reads it."""

import dataclasses


def _field(default, text: str):
  return dataclasses.field(default=default, metadata={'help': text})


@dataclasses.dataclass(frozen=True)
class PPOConfig:
  """Cleanba's defaults; each field's `help` metadata says what it does."""
  discount: float = _field(0.99, 'Discount factor of a step.')
  gae_lambda: float = _field(
      0.95, 'Lambda of generalised advantage estimation.')
  learning_rate: float = _field(2.5e-4, 'Learning rate of the first update.')
  anneal_learning_rate: bool = _field(
      True, 'Lower the learning rate linearly to 0 over the run.')
  adam_epsilon: float = _field(1e-5, 'Epsilon of Adam.')
  max_gradient_norm: float = _field(
      0.5, 'Gradients of a larger global norm are scaled down to it.')
  num_epochs: int = _field(4, 'Passes over the data of a round.')
  num_minibatches: int = _field(4, 'Gradient steps per pass.')
  clip_epsilon: float = _field(
      0.1, 'How far the probability ratio may move from 1 before it clips.')
  normalize_advantage: bool = _field(
      True, 'Give the advantages of a minibatch mean 0 and deviation 1.')
  entropy_cost: float = _field(0.01, 'Weight of the entropy bonus.')
  value_cost: float = _field(0.5, 'Weight of the value loss.')

  def __post_init__(self):
    """Raises ValueError for a field out of its range."""
    for name, (low, high) in {
        'discount': (0, 1), 'gae_lambda': (0, 1),
        'entropy_cost': (0, float('inf')), 'value_cost': (0, float('inf')),
    }.items():
      value = getattr(self, name)
      if not low <= value <= high:
        raise ValueError(f'{name}={value}: must be in [{low}, {high}]')
    for name in ('learning_rate', 'adam_epsilon', 'max_gradient_norm',
                 'clip_epsilon'):
      value = getattr(self, name)
      if not 0 < value < float('inf'):
        raise ValueError(f'{name}={value}: must be positive and finite')
    for name in ('num_epochs', 'num_minibatches'):
      value = getattr(self, name)
      if value < 1:
        raise ValueError(f'{name}={value}: must be at least 1')
