"""What networks must keep to; see `conformance`.

Shape letters: T, time; B, environments.
"""

from typing import Any, Tuple

from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.networks import base as networks_lib
from cleanba_acme.networks import heads
from cleanba_acme.testing import expect
from cleanba_acme.testing import sampling
import jax
import jax.numpy as jnp
import numpy as np


def check_networks(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    *,
    seed: int = 0,
) -> None:
  """Checks networks on random observations.

  Args:
    networks: The networks.
    spec: Of the environment they are for.
    seed: Of parameters and observations.

  Raises:
    AssertionError: A rule is broken.
  """
  for check in (
      check_outputs, check_gradients, check_unroll_equals_single_steps,
      check_first_forgets, check_rows_are_independent, check_no_future,
      check_observe):
    check(networks, spec, seed)


class NetworkTests:
  """One pytest class for networks: override the two methods.

  Attributes:
    seed: See `check_networks`.
  """
  seed: int = 0

  def make_networks(
      self, spec: specs.EnvironmentSpec) -> networks_lib.ActorCritic:
    """Returns what is to be checked."""
    raise NotImplementedError

  def make_spec(self) -> specs.EnvironmentSpec:
    """Returns the spec of the environment that they are for."""
    raise NotImplementedError

  def _check(self, check):
    spec = self.make_spec()
    check(self.make_networks(spec), spec, self.seed)

  def test_outputs(self):
    self._check(check_outputs)

  def test_gradients(self):
    self._check(check_gradients)

  def test_unroll_equals_single_steps(self):
    self._check(check_unroll_equals_single_steps)

  def test_first_forgets(self):
    self._check(check_first_forgets)

  def test_rows_are_independent(self):
    self._check(check_rows_are_independent)

  def test_no_future(self):
    self._check(check_no_future)

  def test_observe(self):
    self._check(check_observe)


def check_outputs(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """Policy, value and state have the right shapes and are finite."""
  length, rows = 3, 4
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, length, rows)
  expect.same(
      jax.jit(networks.init)(jax.random.PRNGKey(seed)), params,
      'parameters of a second init with the same key')
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    expect.that(
        leaf.shape[:1] == (rows,),
        f'initial_state({rows}){jax.tree_util.keystr(path)}',
        f'a shape that begins with {rows}', leaf.shape)
  policy, value, new_state = jax.jit(networks.apply)(
      params, observation, is_first, state)
  expect.array(np.asarray(value), (length, rows), np.float32, 'value')
  expect.equal(tuple(policy.batch_shape), (length, rows), 'policy.batch_shape')
  for leaf in jax.tree.leaves(policy):
    expect.that(
        leaf.shape[:2] == (length, rows), 'leaves of the policy',
        f'shapes that begin with {(length, rows)}', leaf.shape)
  expect.equal(
      jax.tree.map(lambda x: (x.shape, x.dtype), new_state),
      jax.tree.map(lambda x: (x.shape, x.dtype), state),
      'shapes and types of the new state')
  step = jax.tree.map(lambda x: x[0], policy)
  keys = jax.random.split(jax.random.PRNGKey(seed), rows)
  for name, action in (
      ('sampled', heads.sample(step, keys)), ('mode', step.mode())):
    expect.equal(
        action.shape, (rows, *spec.actions.shape), f'shape of {name} actions')
    for row in np.asarray(heads.to_environment(
        spec.actions, np.asarray(action))):
      try:
        spec.actions.validate(row)
      except ValueError as error:
        raise AssertionError(f'{name} action: breaks its spec: {error}'
                            ) from error
    expect.array(np.asarray(step.log_prob(action)), (rows,), np.float32,
                 f'log-probability of {name} actions')
  expect.array(np.asarray(policy.entropy()), (length, rows), np.float32,
               'entropy of the policy')


def check_gradients(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """Gradients of what losses are made of are finite, and not all zero."""
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, 5, 4)

  def loss(params):
    policy, value, _ = networks.apply(params, observation, is_first, state)
    action = jax.lax.stop_gradient(policy.mode())
    return (jnp.sum(value) + jnp.sum(policy.log_prob(action))
            + jnp.sum(policy.entropy()))

  gradients = jax.jit(jax.grad(loss))(params)
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
    expect.finite(leaf, f'gradient of {jax.tree_util.keystr(path)}')
  expect.that(any(np.any(leaf) for leaf in jax.tree.leaves(gradients)),
              'gradients', 'some that are not 0', 'only zeros')


def check_unroll_equals_single_steps(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """The learner's unroll computes what the actor's single steps computed."""
  length = 9
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, length, 4)
  apply = jax.jit(networks.apply)
  policy, value, final = apply(params, observation, is_first, state)
  for t in range(length):
    step_policy, step_value, state = apply(
        params, *_rows((observation, is_first), t, t + 1), state)
    expect.same(
        (step_policy, step_value), _rows((policy, value), t, t + 1),
        f'policy and value of a single step at row {t}, where the unroll of '
        f'{length} rows has others', expect.TOLERANCE)
  expect.same(state, final, 'state after single steps, where the unroll has '
              'another', expect.TOLERANCE)


def check_first_forgets(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """Where an episode starts, the state from before it is forgotten."""
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, 3, 4)
  is_first[0] = True
  rng = np.random.default_rng(seed)
  other = jax.tree.map(
      lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), state)
  apply = jax.jit(networks.apply)
  expect.same(
      apply(params, observation, is_first, other),
      apply(params, observation, is_first, state),
      'outputs after is_first, from another state before it', expect.TOLERANCE)


def check_rows_are_independent(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """What is computed of an environment depends on no other environment."""
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, 4, 8)
  other, _ = _sample_inputs(spec, seed + 1, 4, 8)
  mixed = jax.tree.map(lambda x, y: np.concatenate(
      [x[:, :1], y[:, 1:]], axis=1), observation, other)
  apply = jax.jit(networks.apply)
  one, two = [
      (jax.tree.map(lambda x: x[:, 0], (policy, value)),
       jax.tree.map(lambda x: x[0], new_state))
      for policy, value, new_state in (
          apply(params, data, is_first, state)
          for data in (observation, mixed))]
  expect.same(
      two, one, 'outputs of environment 0 beside other environments',
      expect.TOLERANCE)


def check_no_future(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """What is computed of a row depends on no later row."""
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, 6, 4)
  other, _ = _sample_inputs(spec, seed + 1, 6, 4)
  mixed = jax.tree.map(
      lambda x, y: np.concatenate([x[:3], y[3:]]), observation, other)
  apply = jax.jit(networks.apply)
  one, two = [_rows(apply(params, data, is_first, state)[:2], 0, 3)
              for data in (observation, mixed)]
  expect.same(two, one, 'outputs of rows 0 to 2 before other later rows',
              expect.TOLERANCE)


def check_observe(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """`observe` returns finite parameters of the same shapes and types."""
  params, observation, *_ = _make_inputs(networks, spec, seed, 4, 4)
  observation = jax.tree.map(
      lambda x: x.reshape((-1, *x.shape[2:])), observation)
  observe = jax.jit(networks.observe)
  observed = observe(params, observation)
  shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  expect.equal(shapes(observed), shapes(params),
               'shapes and types of the parameters after observe')
  expect.same(observe(params, observation), observed,
              'parameters after observe with the same observations')
  for path, leaf in jax.tree_util.tree_leaves_with_path(observed):
    expect.finite(
        leaf, f'parameter {jax.tree_util.keystr(path)} after observe')


def _make_inputs(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int,
    length: int,
    rows: int,
) -> Tuple[types.Params, types.ArrayTree, np.ndarray, types.ArrayTree]:
  """Returns parameters, observations, is_first and initial state."""
  observation, is_first = _sample_inputs(spec, seed, length, rows)
  return (jax.jit(networks.init)(jax.random.PRNGKey(seed)), observation,
          is_first, networks.initial_state(rows))


def _sample_inputs(
    spec: specs.EnvironmentSpec, seed: int, length: int, rows: int,
) -> Tuple[types.ArrayTree, np.ndarray]:
  """Returns random observations, and where episodes start."""
  rng = np.random.default_rng(seed)
  observation = jax.tree.map(
      lambda leaf: sampling.sample(leaf, rng, length, rows), spec.observations)
  is_first = rng.random((length, rows)) < 0.3
  is_first[0, 0] = True
  is_first[1:, -1] = [t % 2 == 0 for t in range(length - 1)]
  return observation, is_first


def _rows(tree: Any, start: int, stop: int) -> Any:
  return jax.tree.map(lambda x: x[start:stop], tree)
