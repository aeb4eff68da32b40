"""How an agent learns: pure functions over one round of data."""

import functools
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

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
    fused: Optional[bool] = None,
) -> LearnerCore:
  """Makes a `LearnerCore` that takes minibatch gradient steps.

  On CPU the loop over minibatches is in Python: XLA:CPU runs a convolution's
  gradient inside its own loops many times slower than outside of them
  (`launchers/benchmark_update.py` measures it). Elsewhere it is one fused
  `jax.lax.scan`.

  Args:
    networks: The networks to train.
    optimizer: Called once per minibatch.
    prepare: What is computed once per round, such as advantages.
    select: `(samples, indices [M]) -> minibatch`, of global statistics such as
      normalised advantages and weights too, so that the loss is a plain sum.
    loss: `(params, minibatch) -> loss, metrics`.
    minibatching: Sizes and order of the minibatches.
    fused: Whether the loop is inside the compiled program; None leaves it to
      the backend.

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

  def step(samples: Samples,
           carry: Tuple[types.Params, types.ArrayTree],
           indices: types.Array):
    """Takes one gradient step."""
    params, optimizer_state = carry
    minibatch = select(samples, indices)
    gradients, metrics = jax.grad(loss, has_aux=True)(params, minibatch)
    updates, optimizer_state = optimizer.update(
        gradients, optimizer_state, params)
    params = optax.apply_updates(params, updates)
    return (params, optimizer_state), dict(
        metrics, gradient_norm=optax.global_norm(gradients))

  jitted_step = jax.jit(step)

  @jax.jit
  def mean(metrics: Sequence[Metrics]) -> Metrics:
    return jax.tree.map(lambda *xs: jnp.mean(jnp.stack(xs)), *metrics)

  @jax.jit
  def scan_steps(samples: Samples, carry, indices: types.Array):
    carry, metrics = jax.lax.scan(
        functools.partial(step, samples), carry, indices)
    return carry, jax.tree.map(jnp.mean, metrics)

  @jax.jit
  def observe(params: types.Params, observation: types.ArrayTree):
    # Row T comes again, as row 0 of the next rollout.
    return networks.observe(params, jax.tree.map(
        lambda x: x[:-1].reshape((-1,) + x.shape[2:]), observation))

  def loop_steps(samples: Samples, carry, indices: types.Array):
    metrics = []
    for row in np.asarray(indices):
      carry, step_metrics = jitted_step(samples, carry, row)
      metrics.append(step_metrics)
    return carry, mean(metrics)

  def update(
      state: types.TrainingState, rollout: types.Rollout,
  ) -> Tuple[types.TrainingState, Metrics]:
    is_fused = jax.default_backend() != 'cpu' if fused is None else fused
    take_steps = scan_steps if is_fused else loop_steps
    rollout = jax.device_put(rollout)
    samples = prepare(rollout)
    (params, optimizer_state), metrics = take_steps(
        samples, (state.params, state.optimizer_state),
        make_indices(state.key, state.num_updates))
    return state._replace(
        params=observe(params, rollout.observation),
        optimizer_state=optimizer_state,
        num_updates=state.num_updates + 1), metrics

  return LearnerCore(init, update)


def select_environments(data: Any, indices: types.Array) -> Any:
  """Takes whole unrolls of some environments.

  Args:
    data: A `types.Rollout`, or any NamedTuple of trees of `[T, B, ...]` with a
      field `core_state` of `[B, ...]`.
    indices: `[M]`, which environments.

  Returns:
    The same with `M` environments.
  """
  columns = jax.tree.map(lambda x: x[:, indices], data._replace(core_state=()))
  return columns._replace(
      core_state=jax.tree.map(lambda x: x[indices], data.core_state))


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
