"""How an agent learns: pure functions over one round of data."""

from typing import Any, Callable, Dict, NamedTuple, Tuple

from cleanba_acme import types
from cleanba_acme.networks import base as networks_lib
import jax
import jax.numpy as jnp
import numpy as np
import optax

Metrics = Dict[str, types.Array]
# `samples` is what `prepare` makes of a rollout; `minibatch` what `select`
# takes out of it. Only the agent looks into them.
Samples = Any
Minibatch = Any


class LearnerCore(NamedTuple):
  """Pure functions that define how an agent learns.

  Attributes:
    init: `(init_key, shuffling_key) -> state`.
    update: `(state, rollout) -> state, metrics`: one round's update from the
      global batch `[T+1, B]`; `metrics` are scalars.
  """
  init: Callable[[types.PRNGKey, types.PRNGKey], types.TrainingState]
  update: Callable[[types.TrainingState, types.Rollout],
                   Tuple[types.TrainingState, Metrics]]


class Minibatching(NamedTuple):
  """How an update walks over its samples.

  Attributes:
    num_samples: How many there are, of whatever unit `select` takes by index.
    num_epochs: Passes over the samples.
    num_minibatches: Parts of equal size that a pass is split into.
    shuffle: Whether each pass is in a new random order.
  """
  num_samples: int
  num_epochs: int
  num_minibatches: int
  shuffle: bool


def make_learner_core(
    networks: networks_lib.ActorCritic,
    optimizer: optax.GradientTransformation,
    prepare: Callable[[types.Rollout], Samples],
    select: Callable[[Samples, types.Array], Minibatch],
    loss: Callable[[types.Params, Minibatch], Tuple[types.Array, Metrics]],
    minibatching: Minibatching,
) -> LearnerCore:
  """Makes a `LearnerCore` that takes minibatch gradient steps.

  The loop over minibatches is in Python: on CPU, XLA runs a convolution's
  gradient inside its own loops 20 to 30 times slower than outside of them
  (`launchers/benchmark_update.py` measures it).

  Args:
    networks: The networks to train.
    optimizer: Called once per minibatch.
    prepare: What is computed once per round, such as advantages.
    select: `(samples, indices [M]) -> minibatch`, of global statistics such as
      normalised advantages and weights too, so that the loss is a plain sum.
    loss: `(params, minibatch) -> loss, metrics`.
    minibatching: Sizes and order of the minibatches.

  Raises:
    ValueError: The samples can't be split into the minibatches.
  """
  num_samples, num_epochs, num_minibatches, shuffle = minibatching
  if num_samples % num_minibatches:
    raise ValueError(
        f'num_minibatches={num_minibatches}: must divide the {num_samples} '
        'samples of an update')

  def init(init_key: types.PRNGKey,
           shuffling_key: types.PRNGKey) -> types.TrainingState:
    params = networks.init(init_key)
    return types.TrainingState(
        params=params,
        optimizer_state=optimizer.init(params),
        num_updates=jnp.zeros((), jnp.int32),
        key=shuffling_key)

  prepare = jax.jit(prepare)

  @jax.jit
  def make_indices(key: types.PRNGKey, num_updates: types.Array) -> types.Array:
    """Returns `[num_epochs * num_minibatches, M]` sample indices."""
    def epoch(epoch_key):
      if not shuffle:
        return jnp.arange(num_samples)
      return jax.random.permutation(epoch_key, num_samples)
    keys = jax.random.split(jax.random.fold_in(key, num_updates), num_epochs)
    # Unrolled: a sort under vmap is much slower on CPU.
    orders = jnp.stack([epoch(keys[i]) for i in range(num_epochs)])
    return orders.reshape(num_epochs * num_minibatches, -1)

  @jax.jit
  def step(params: types.Params, optimizer_state: types.ArrayTree,
           samples: Samples, indices: types.Array):
    """Takes one gradient step."""
    minibatch = select(samples, indices)
    gradients, metrics = jax.grad(loss, has_aux=True)(params, minibatch)
    updates, optimizer_state = optimizer.update(
        gradients, optimizer_state, params)
    params = optax.apply_updates(params, updates)
    return params, optimizer_state, dict(
        metrics, gradient_norm=optax.global_norm(gradients))

  @jax.jit
  def mean(metrics: Tuple[Metrics, ...]) -> Metrics:
    return jax.tree.map(lambda *xs: jnp.mean(jnp.stack(xs)), *metrics)

  def update(
      state: types.TrainingState, rollout: types.Rollout,
  ) -> Tuple[types.TrainingState, Metrics]:
    samples = prepare(jax.device_put(rollout))
    params, optimizer_state = state.params, state.optimizer_state
    metrics = []
    for indices in np.asarray(make_indices(state.key, state.num_updates)):
      params, optimizer_state, step_metrics = step(
          params, optimizer_state, samples, indices)
      metrics.append(step_metrics)
    state = state._replace(
        params=params,
        optimizer_state=optimizer_state,
        num_updates=state.num_updates + 1)
    return state, mean(tuple(metrics))

  return LearnerCore(init, update)


def annealed_learning_rate(
    learning_rate: float, num_updates: int, steps_per_update: int
) -> optax.Schedule:
  """Returns Cleanba's schedule: linear to 0, constant within an update.

  Args:
    learning_rate: That of the first update; the last one has
      `learning_rate / num_updates`.
    num_updates: Updates of the whole run.
    steps_per_update: Optimiser steps per update.
  """
  def schedule(count):
    return learning_rate * (1.0 - (count // steps_per_update) / num_updates)
  return schedule
