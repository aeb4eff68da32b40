"""Tests of the walk over minibatches, and of the learning rate."""

from typing import Any, NamedTuple

from cleanba_acme import learner_core
from cleanba_acme import types
from cleanba_acme.networks import base
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

_SAMPLES, _EPOCHS, _MINIBATCHES = 12, 3, 4


class _Minibatch(NamedTuple):
  """Sample numbers `[1, M]`."""
  index: types.Array
  core_state: Any = ()


def _make_core(shuffle=True, execution=learner_core.Execution(),
               num_minibatches=_MINIBATCHES):
  """A learner with one parameter per sample.

  Gradient step `k`, counted from 0 over all updates, adds `2**k` to the
  parameters of the samples in its minibatch: the bits of a parameter tell in
  which steps the sample was seen, and how often.
  """
  networks = base.ActorCritic(
      init=lambda key: jnp.zeros(_SAMPLES), initial_state=None, apply=None)
  return learner_core.make_learner_core(
      networks,
      optimizer=optax.scale_by_schedule(lambda count: 2.**count),
      prepare=lambda rollout: jnp.arange(_SAMPLES),
      select=lambda samples, indices: _Minibatch(samples[indices][None]),
      loss=lambda params, minibatch: (
          jnp.sum(params[minibatch.index]),
          {'size': jnp.float32(minibatch.index.size)}),
      minibatching=learner_core.Minibatching(
          _SAMPLES, _EPOCHS, num_minibatches, shuffle),
      execution=execution)


def _rollout():
  empty = np.zeros((2, 1), np.float32)
  return types.Rollout(*[empty] * 6, core_state=())


def _steps_of(params):
  """Returns `[samples, steps]`, whether the sample was seen in the step."""
  steps = _EPOCHS * _MINIBATCHES
  params = np.asarray(params).astype(np.int64)
  assert params.max() < 2**steps
  return (params[:, None] >> np.arange(steps)) & 1


def _update(core, seed=0, num_updates=0):
  state = core.init(jax.random.PRNGKey(9), jax.random.PRNGKey(seed))
  return core.update(
      state._replace(num_updates=jnp.int32(num_updates)), _rollout())


_EXECUTIONS = pytest.mark.parametrize('execution', [
    learner_core.Execution(fused=False), learner_core.Execution(fused=True),
    learner_core.Execution(reduction='invariant', micro_batches=3)], ids=str)


@_EXECUTIONS
@pytest.mark.parametrize('shuffle', [False, True])
def test_every_epoch_sees_every_sample_once(shuffle, execution):
  state, metrics = _update(_make_core(shuffle, execution))
  seen = _steps_of(state.params)
  per_epoch = seen.reshape(_SAMPLES, _EPOCHS, _MINIBATCHES)
  np.testing.assert_array_equal(per_epoch.sum(-1), np.ones((_SAMPLES, _EPOCHS)))
  # Minibatches are of equal size.
  np.testing.assert_array_equal(
      seen.sum(0), np.full(_EPOCHS * _MINIBATCHES, _SAMPLES // _MINIBATCHES))
  if execution.reduction == 'fast':
    assert metrics['size'] == _SAMPLES // _MINIBATCHES
  assert int(state.num_updates) == 1


def test_without_shuffling_minibatches_are_in_order():
  state, _ = _update(_make_core(shuffle=False))
  order = _steps_of(state.params).reshape(_SAMPLES, _EPOCHS, _MINIBATCHES)
  for epoch in range(_EPOCHS):
    np.testing.assert_array_equal(
        order[:, epoch].argmax(-1), np.arange(_SAMPLES) // 3)


def test_every_epoch_update_and_run_has_an_order_of_its_own():
  core = _make_core()
  orders = []
  for seed in range(3):
    for num_updates in range(3):
      state, _ = _update(core, seed, num_updates)
      order = _steps_of(state.params).reshape(_SAMPLES, _EPOCHS, _MINIBATCHES)
      orders.extend(
          tuple(order[:, epoch].argmax(-1)) for epoch in range(_EPOCHS))
  assert len(set(orders)) == len(orders) == 27


def test_an_update_is_a_function_of_its_arguments():
  core = _make_core()
  first, second = _update(core, 4, 7), _update(core, 4, 7)
  np.testing.assert_array_equal(first[0].params, second[0].params)


def test_samples_that_cannot_be_split_are_refused():
  with pytest.raises(
      ValueError, match='num_minibatches=5: must divide the 12 samples'):
    _make_core(num_minibatches=5)


def test_annealed_learning_rate():
  schedule = learner_core.annealed_learning_rate(
      0.8, num_updates=4, steps_per_update=3)
  # Constant within an update; Cleanba's 1 - (update - 1) / num_updates.
  np.testing.assert_allclose(
      [schedule(count) for count in range(12)],
      [0.8] * 3 + [0.6] * 3 + [0.4] * 3 + [0.2] * 3, rtol=1e-6)
  np.testing.assert_allclose(
      jax.jit(schedule)(jnp.int32(11)), 0.2, rtol=1e-6)
