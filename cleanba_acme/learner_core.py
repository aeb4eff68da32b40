"""How an agent learns: pure functions over one round of data."""

import functools
from typing import (
    Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple)

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
# Parameters and optimiser state.
Carry = Tuple[types.Params, types.ArrayTree]


class LearnerCore(NamedTuple):
  """Pure functions that define how an agent learns.

  Attributes:
    init: `(init_key, shuffling_key) -> state`.
    update: `(state, rollout) -> state, metrics`: one round's update from the
      global batch `[T+1, B]`; `metrics` are scalars. The arrays of the rollout
      are written over after it; what is to be kept must be copied.
    put: `rollout -> rollout`: puts the global batch where `update` computes;
      called while the update before is under way, if there is a policy lag.
  """
  init: Callable[[types.PRNGKey, types.PRNGKey], types.TrainingState]
  update: Callable[[types.TrainingState, types.Rollout],
                   Tuple[types.TrainingState, Metrics]]
  put: Callable[[types.Rollout], types.Rollout] = lambda rollout: rollout


class Execution(NamedTuple):
  """How the machine computes an update, which defines nothing of the agent.

  Attributes:
    devices: Indices of the local devices that share the global batch.
    reduction: How gradients are summed. `fast`: one gradient of a minibatch,
      sharded over the devices by XLA; another number of devices gives sums in
      another order, so other last bits. `invariant`: gradients of micro-batches
      of one fixed shape, each on some device, summed pairwise in a fixed order:
      the same bits on any number of devices with the same thread count.
    micro_batches: Into how many micro-batches `invariant` splits a minibatch;
      part of the arithmetic.
    fused: Whether the loop over minibatches is inside the compiled program;
      None leaves it to the backend. Only for `fast`.
  """
  devices: Tuple[int, ...] = (0,)
  reduction: str = 'fast'
  micro_batches: int = 4
  fused: Optional[bool] = None


REDUCTIONS = ('fast', 'invariant')


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
    execution: Execution,
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
    select: `(samples, indices [M]) -> minibatch`, a NamedTuple of trees of
      `[T, M, ...]` with a field `core_state` of `[M, ...]`. Global statistics,
      such as normalised advantages and weights, are made here, so that the loss
      is a plain sum over `M`.
    loss: `(params, minibatch) -> loss, metrics`, sums over `M`.
    minibatching: Sizes and order of the minibatches.
    execution: Where and in which order it is computed.

  Raises:
    ValueError: The samples can't be split into the minibatches, or these over
      the devices.
  """
  num_samples, num_epochs, num_minibatches, shuffle = minibatching
  if num_samples % num_minibatches:
    raise ValueError(
        f'num_minibatches={num_minibatches}: must divide the {num_samples} '
        'samples of an update')
  _check_execution(execution, num_samples // num_minibatches)

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

  def apply_gradients(carry: Carry, gradients, metrics: Metrics):
    """Takes one optimiser step."""
    params, optimizer_state = carry
    updates, optimizer_state = optimizer.update(
        gradients, optimizer_state, params)
    params = optax.apply_updates(params, updates)
    return (params, optimizer_state), dict(
        metrics, gradient_norm=optax.global_norm(gradients))

  gradients_of = jax.grad(loss, has_aux=True)
  if execution.reduction == 'fast':
    take_steps = _make_fast_steps(
        select, gradients_of, apply_gradients, execution)
  else:
    take_steps = _make_invariant_steps(
        select, gradients_of, apply_gradients, execution)

  @jax.jit
  def observe(params: types.Params, observation: types.ArrayTree):
    # Row T comes again, as row 0 of the next rollout.
    return networks.observe(params, jax.tree.map(
        lambda x: x[:-1].reshape((-1,) + x.shape[2:]), observation))

  def put(rollout: types.Rollout) -> types.Rollout:
    if execution.devices == (0,):
      # Bound to no device, as the first state is: else a second compilation.
      return jax.device_put(rollout)
    if len(execution.devices) == 1 or execution.reduction == 'invariant':
      return jax.device_put(rollout, jax.local_devices()[execution.devices[0]])
    return jax.device_put(rollout, _shardings(rollout, execution))

  def update(
      state: types.TrainingState, rollout: types.Rollout,
  ) -> Tuple[types.TrainingState, Metrics]:
    rollout = put(rollout)  # No copy of what is there already.
    (params, optimizer_state), metrics = take_steps(
        prepare(rollout), (state.params, state.optimizer_state),
        make_indices(state.key, state.num_updates))
    return state._replace(
        params=observe(params, rollout.observation),
        optimizer_state=optimizer_state,
        num_updates=state.num_updates + 1), metrics

  return LearnerCore(init, update, put)


def _check_execution(execution: Execution, minibatch_size: int) -> None:
  """Raises ValueError for an execution that is not possible."""
  devices, reduction, micro_batches, _ = execution
  if reduction not in REDUCTIONS:
    raise ValueError(
        f'reduction={reduction!r}: must be one of {", ".join(REDUCTIONS)}')
  if not devices or len(set(devices)) < len(devices) or min(devices) < 0:
    raise ValueError(
        f'learner_devices={devices}: must be different indices of devices')
  parts = len(devices)
  if reduction == 'invariant':
    if micro_batches % parts:
      raise ValueError(
          f'learner_devices={devices}: their number must divide the '
          f'{micro_batches} micro-batches of a minibatch')
    parts = micro_batches
  if minibatch_size % parts:
    raise ValueError(
        f'learner_devices={devices}: a minibatch of {minibatch_size} samples '
        f'can\'t be split into {parts} equal parts')


def _make_fast_steps(select, gradients_of, apply_gradients, execution):
  """Returns `(samples, carry, indices) -> carry, metrics`, XLA's own sums."""

  def step(samples: Samples, carry: Carry, indices: types.Array):
    minibatch = select(samples, indices)
    if len(execution.devices) > 1:
      minibatch = jax.lax.with_sharding_constraint(
          minibatch, _shardings(minibatch, execution))
    gradients, metrics = gradients_of(carry[0], minibatch)
    return apply_gradients(carry, gradients, metrics)

  # The carry isn't donated: XLA:CPU doesn't vectorise loops that may write over
  # what they read.
  jitted_step = jax.jit(step)

  @jax.jit
  def scan_steps(samples: Samples, carry: Carry, indices: types.Array):
    carry, metrics = jax.lax.scan(
        functools.partial(step, samples), carry, indices)
    return carry, jax.tree.map(jnp.mean, metrics)

  def loop_steps(samples: Samples, carry: Carry, indices: types.Array):
    metrics = []
    for row in np.asarray(indices):
      carry, step_metrics = jitted_step(samples, carry, row)
      metrics.append(step_metrics)
    return carry, _mean(metrics)

  def take_steps(samples: Samples, carry: Carry, indices: types.Array):
    fused = execution.fused
    if fused is None:
      fused = jax.default_backend() != 'cpu'
    return (scan_steps if fused else loop_steps)(samples, carry, indices)

  return take_steps


def _make_invariant_steps(select, gradients_of, apply_gradients, execution):
  """Returns `(samples, carry, indices) -> carry, metrics`, sums in fixed order.

  Each micro-batch's gradient is one program of one shape, whichever device runs
  it. (A loop over them inside one program is not invariant: its length changes
  how XLA compiles the body.)
  """
  parts = execution.micro_batches
  gradients_of = jax.jit(gradients_of)
  apply_gradients = jax.jit(apply_gradients)

  @jax.jit
  def select_parts(samples: Samples, indices: types.Array) -> List[Minibatch]:
    minibatch = select(samples, indices)
    size = indices.shape[0] // parts
    return [
        select_environments(minibatch, jnp.arange(i * size, (i + 1) * size))
        for i in range(parts)]

  @jax.jit
  def add(terms: List[types.ArrayTree]) -> types.ArrayTree:
    while len(terms) > 1:
      pairs = [jax.tree.map(jnp.add, *terms[i:i + 2])
               for i in range(0, len(terms) - 1, 2)]
      terms = pairs + terms[2 * len(pairs):]
    return terms[0]

  def take_steps(samples: Samples, carry: Carry, indices: types.Array):
    devices = [jax.local_devices()[i] for i in execution.devices]
    metrics = []
    for row in np.asarray(indices):
      params = [jax.device_put(carry[0], device) for device in devices]
      terms = []
      for i, part in enumerate(select_parts(samples, row)):
        device = i * len(devices) // parts
        terms.append(gradients_of(
            params[device], jax.device_put(part, devices[device])))
      gradients, step_metrics = add(jax.device_put(terms, devices[0]))
      carry, step_metrics = apply_gradients(carry, gradients, step_metrics)
      metrics.append(step_metrics)
    return carry, _mean(metrics)

  return take_steps


@jax.jit
def _mean(metrics: Sequence[Metrics]) -> Metrics:
  return jax.tree.map(lambda *xs: jnp.mean(jnp.stack(xs)), *metrics)


def _shardings(data: Any, execution: Execution) -> Any:
  """Returns shardings of `data` along its environments or samples."""
  mesh = jax.sharding.Mesh(
      [jax.local_devices()[i] for i in execution.devices], ('batch',))

  def along(axis: int) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(*[None] * axis, 'batch'))

  shardings = jax.tree.map(lambda _: along(1), data._replace(core_state=()))
  return shardings._replace(
      core_state=jax.tree.map(lambda _: along(0), data.core_state))


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
