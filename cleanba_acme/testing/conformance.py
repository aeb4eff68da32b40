"""Checks that a user's own parts keep this library's contract.

From one call, on a part of your own:

    conformance.check_environment(batch.DmEnvFactory(MyEnvironment))
    conformance.check_networks(make_my_networks(spec), spec)
    conformance.check_builder(MyBuilder(), make_my_networks, my_factory)

or as one pytest class, with a test per rule:

    class TestMyEnvironment(conformance.EnvironmentTests):

      def make_environment_factory(self):
        return batch.DmEnvFactory(MyEnvironment)

What breaks a rule is an `AssertionError` that names the rule, what was expected
and what was seen. Each check is a function of its own, too.

Shape letters: T, time; B, environments.
"""

from typing import Any, Callable, List, Optional, Tuple

from cleanba_acme import builder as builder_lib
from cleanba_acme import learner_core
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import base as environments
from cleanba_acme.networks import base as networks_lib
from cleanba_acme.networks import heads
from cleanba_acme.testing import collect
import dm_env
import jax
import jax.numpy as jnp
import numpy as np

NetworkFactory = Callable[[specs.EnvironmentSpec], networks_lib.ActorCritic]

_FIRST, _MID, _LAST = dm_env.StepType
# Programs of other shapes sum in another order; float32 has seven digits.
_TOLERANCE = 1e-5


def check_environment(
    factory: environments.EnvironmentFactory,
    *,
    num_steps: int = 200,
    num_envs: int = 3,
    seed: int = 0,
    time_limit: Optional[int] = None,
) -> None:
  """Checks an environment with random actions.

  Args:
    factory: Makes the environments.
    num_steps: How many steps to take; episodes must end within them.
    num_envs: `B`.
    seed: Of the environments and the actions.
    time_limit: Steps after which an episode is truncated, if it has such a
      limit. It must be reached, so an environment is best made with a low one.

  Raises:
    AssertionError: A rule is broken.
  """
  stream = _run(factory, num_steps, num_envs, seed)
  check_stream_matches_spec(factory, stream)
  check_episodes(stream, time_limit)
  check_same_seed_same_stream(factory, stream, seed)
  check_seeds_of_environments(factory, stream, seed)
  check_ignored_actions_do_not_matter(factory, stream, seed)


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


def check_builder(
    builder: builder_lib.Builder,
    network_factory: NetworkFactory,
    environment_factory: environments.EnvironmentFactory,
    *,
    num_envs: int = 8,
    unroll_length: int = 8,
    seed: int = 0,
) -> None:
  """Checks an agent on rollouts of an environment.

  Args:
    builder: The agent.
    network_factory: `(environment_spec) -> ActorCritic`.
    environment_factory: Makes an environment whose episodes end within two
      rollouts.
    num_envs: `B`, which the agent's minibatches must divide.
    unroll_length: `T`.
    seed: Of everything.

  Raises:
    AssertionError: A rule is broken.
  """
  case = _BuilderCase(
      builder, network_factory, environment_factory, num_envs, unroll_length,
      seed)
  check_actor(case)
  check_actions_belong_to_environments(case)
  check_update(case)
  check_update_is_deterministic(case)
  check_dummy_steps_do_not_matter(case)


class EnvironmentTests:
  """One pytest class for an environment: override `make_environment_factory`.

  Attributes:
    num_steps: See `check_environment`.
    num_envs: See `check_environment`.
    seed: See `check_environment`.
    time_limit: See `check_environment`.
  """
  num_steps: int = 200
  num_envs: int = 3
  seed: int = 0
  time_limit: Optional[int] = None

  def make_environment_factory(self) -> environments.EnvironmentFactory:
    """Returns what is to be checked."""
    raise NotImplementedError

  def _run(self):
    factory = self.make_environment_factory()
    return factory, _run(factory, self.num_steps, self.num_envs, self.seed)

  def test_stream_matches_spec(self):
    check_stream_matches_spec(*self._run())

  def test_episodes(self):
    _, stream = self._run()
    check_episodes(stream, self.time_limit)

  def test_same_seed_same_stream(self):
    check_same_seed_same_stream(*self._run(), self.seed)

  def test_seeds_of_environments(self):
    check_seeds_of_environments(*self._run(), self.seed)

  def test_ignored_actions_do_not_matter(self):
    check_ignored_actions_do_not_matter(*self._run(), self.seed)


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


class BuilderTests:
  """One pytest class for an agent: override the three methods.

  Attributes:
    num_envs: See `check_builder`.
    unroll_length: See `check_builder`.
    seed: See `check_builder`.
  """
  num_envs: int = 8
  unroll_length: int = 8
  seed: int = 0

  def make_builder(self) -> builder_lib.Builder:
    """Returns what is to be checked."""
    raise NotImplementedError

  def make_networks(
      self, spec: specs.EnvironmentSpec) -> networks_lib.ActorCritic:
    """Returns networks for it."""
    raise NotImplementedError

  def make_environment_factory(self) -> environments.EnvironmentFactory:
    """Returns an environment for it."""
    raise NotImplementedError

  def _make_case(self):
    return _BuilderCase(
        self.make_builder(), self.make_networks,
        self.make_environment_factory(), self.num_envs, self.unroll_length,
        self.seed)

  def test_actor(self):
    check_actor(self._make_case())

  def test_actions_belong_to_environments(self):
    check_actions_belong_to_environments(self._make_case())

  def test_update(self):
    check_update(self._make_case())

  def test_update_is_deterministic(self):
    check_update_is_deterministic(self._make_case())

  def test_dummy_steps_do_not_matter(self):
    check_dummy_steps_do_not_matter(self._make_case())


# Environments.


class _Stream:
  """What a batch of environments returned, and the actions it was given.

  Attributes:
    timesteps: `T + 1` batched time steps, as they were when returned.
    kept: The same objects, as they are after all steps.
    unclipped: `T + 1` unclipped rewards; the first is None.
    actions: `[T, B, ...]` in the environment's own terms.
  """

  def __init__(self):
    self.timesteps = []
    self.kept = []
    self.unclipped = [None]
    self.actions = []


def _run(
    factory: environments.EnvironmentFactory,
    num_steps: int,
    num_envs: int,
    seed: int,
    actions: Optional[List[np.ndarray]] = None,
) -> _Stream:
  """Steps new environments with the given actions, or random ones."""
  rng = np.random.default_rng(seed)
  stream = _Stream()
  environment = factory(seed, num_envs)
  try:
    _expect_equal(
        environment.num_envs, num_envs, 'num_envs of a new environment')
    timestep = environment.reset()
    for t in range(num_steps + 1):
      stream.kept.append(timestep)
      stream.timesteps.append(_copy(timestep))
      if t == num_steps:
        break
      action = (actions[t] if actions is not None
                else _sample(factory.spec.actions, rng, num_envs))
      stream.actions.append(action)
      given = action.copy()
      timestep = environment.step(given)
      given[...] = factory.spec.actions.minimum  # It is the caller's array.
      stream.unclipped.append(np.array(environment.unclipped_reward))
  finally:
    environment.close()
  return stream


def check_stream_matches_spec(
    factory: environments.EnvironmentFactory, stream: _Stream) -> None:
  """Every array has the shape, type and bounds of its spec, and is kept."""
  spec = factory.spec
  _expect(
      isinstance(spec, specs.EnvironmentSpec), 'spec of the factory',
      'a specs.EnvironmentSpec', spec)
  rows = len(stream.actions[0])
  for t, timestep in enumerate(stream.timesteps):
    for name, dtype in (
        ('step_type', np.int32), ('reward', np.float32),
        ('discount', np.float32)):
      _expect_array(
          getattr(timestep, name), (rows,), dtype, f'{name} of step {t}')
    where = f'observation of step {t}'
    _expect_equal(
        jax.tree.structure(timestep.observation),
        jax.tree.structure(spec.observations), f'structure of the {where}')
    leaves = jax.tree_util.tree_leaves_with_path(timestep.observation)
    for (path, leaf), leaf_spec in zip(leaves, jax.tree.leaves(
        spec.observations)):
      name = where + jax.tree_util.keystr(path)
      _expect_array(leaf, (rows, *leaf_spec.shape), leaf_spec.dtype, name)
      for row in leaf:
        try:
          leaf_spec.validate(row)
        except ValueError as error:
          raise AssertionError(f'{name}: breaks its spec: {error}') from error
    if t:
      unclipped = stream.unclipped[t]
      _expect_array(
          unclipped, (rows,), unclipped.dtype, f'unclipped_reward of step {t}')
  for t, (timestep, kept) in enumerate(zip(stream.timesteps, stream.kept)):
    _expect_same(
        kept, timestep, f'time step {t}, kept by the caller until the end')


def check_episodes(stream: _Stream, time_limit: Optional[int] = None) -> None:
  """Episodes start, end and follow each other by dm_env's rules."""
  num_ends = num_truncated = 0
  ended = np.ones(len(stream.actions[0]), bool)
  lengths = np.zeros(len(ended), int)
  for t, timestep in enumerate(stream.timesteps):
    for i, kind in enumerate(timestep.step_type):
      where = f'environment {i}, step {t}'
      reward, discount = timestep.reward[i], timestep.discount[i]
      _expect(
          kind == _FIRST if ended[i] else kind in (_MID, _LAST),
          f'{where}, step_type',
          'FIRST (0), as the step before was LAST or there was none' if ended[i]
          else 'MID (1) or LAST (2), as the episode goes on', kind)
      lengths[i] += 1
      if kind == _FIRST:
        lengths[i] = 0
        _expect(reward == 0, f'{where}, reward of FIRST', 0, reward)
        _expect(discount == 1, f'{where}, discount of FIRST', 1, discount)
        if t:
          _expect(stream.unclipped[t][i] == 0,
                  f'{where}, unclipped_reward of FIRST', 0,
                  stream.unclipped[t][i])
      elif kind == _MID:
        _expect(0 < discount <= 1, f'{where}, discount of MID',
                'more than 0 and at most 1', discount)
        _expect(
            time_limit is None or lengths[i] < time_limit,
            f'{where}, step_type', f'LAST at the time limit {time_limit}', kind)
      else:
        _expect(
            discount in (0, 1), f'{where}, discount of LAST',
            '0 (terminated) or 1 (truncated)', discount)
        if time_limit is not None:
          _expect(
              discount == 0 or lengths[i] == time_limit,
              f'{where}, discount of LAST',
              f'0, because the time limit is {time_limit} and the episode had '
              f'{lengths[i]} steps', discount)
          num_truncated += discount == 1
        num_ends += 1
      ended[i] = kind == _LAST
  steps = len(stream.actions)
  _expect(num_ends > 0, f'episodes that ended in {steps} steps',
          'at least one; raise num_steps', 0)
  if time_limit is not None:
    _expect(
        num_truncated > 0, f'episodes that were truncated in {steps} steps',
        f'at least one with discount 1 at the time limit {time_limit}', 0)


def check_same_seed_same_stream(
    factory: environments.EnvironmentFactory, stream: _Stream, seed: int,
) -> None:
  """The same seed and actions give the same stream, bit for bit."""
  again = _run(factory, len(stream.actions), len(stream.actions[0]), seed,
               stream.actions)
  for t, (one, other) in enumerate(zip(stream.timesteps, again.timesteps)):
    _expect_same(
        other, one, f'step {t} of a second environment of the same seed')


def check_seeds_of_environments(
    factory: environments.EnvironmentFactory, stream: _Stream, seed: int,
) -> None:
  """Environment `i` of `B` is environment 0 at seed `seed + i`."""
  for i in range(len(stream.actions[0])):
    alone = _run(factory, len(stream.actions), 1, seed + i,
                 [action[i:i + 1] for action in stream.actions])
    for t, (one, other) in enumerate(zip(stream.timesteps, alone.timesteps)):
      _expect_same(
          _rows(one, i, i + 1), other,
          f'step {t} of environment {i} of {len(stream.actions[0])} at seed '
          f'{seed}, which must be as environment 0 at seed {seed + i}')


def check_ignored_actions_do_not_matter(
    factory: environments.EnvironmentFactory, stream: _Stream, seed: int,
) -> None:
  """The action after `LAST` is ignored."""
  rng = np.random.default_rng(seed + 1)
  rows = len(stream.actions[0])
  actions = []
  for timestep, action in zip(stream.timesteps, stream.actions):
    action = action.copy()
    is_last = timestep.last()
    action[is_last] = _sample(factory.spec.actions, rng, rows)[is_last]
    actions.append(action)
  other = _run(factory, len(actions), rows, seed, actions)
  for t, (one, two) in enumerate(zip(stream.timesteps, other.timesteps)):
    _expect_same(two, one, f'step {t} with other actions after LAST, which '
                 'an environment must ignore')


# Networks.


def check_outputs(
    networks: networks_lib.ActorCritic,
    spec: specs.EnvironmentSpec,
    seed: int = 0,
) -> None:
  """Policy, value and state have the right shapes and are finite."""
  length, rows = 3, 4
  params, observation, is_first, state = _make_inputs(
      networks, spec, seed, length, rows)
  _expect_same(
      jax.jit(networks.init)(jax.random.PRNGKey(seed)), params,
      'parameters of a second init with the same key')
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    _expect(
        leaf.shape[:1] == (rows,),
        f'initial_state({rows}){jax.tree_util.keystr(path)}',
        f'a shape that begins with {rows}', leaf.shape)
  policy, value, new_state = jax.jit(networks.apply)(
      params, observation, is_first, state)
  _expect_array(np.asarray(value), (length, rows), np.float32, 'value')
  _expect_equal(tuple(policy.batch_shape), (length, rows), 'policy.batch_shape')
  for leaf in jax.tree.leaves(policy):
    _expect(
        leaf.shape[:2] == (length, rows), 'leaves of the policy',
        f'shapes that begin with {(length, rows)}', leaf.shape)
  _expect_equal(
      jax.tree.map(lambda x: (x.shape, x.dtype), new_state),
      jax.tree.map(lambda x: (x.shape, x.dtype), state),
      'shapes and types of the new state')
  step = jax.tree.map(lambda x: x[0], policy)
  keys = jax.random.split(jax.random.PRNGKey(seed), rows)
  for name, action in (
      ('sampled', heads.sample(step, keys)), ('mode', step.mode())):
    _expect_equal(
        action.shape, (rows, *spec.actions.shape), f'shape of {name} actions')
    for row in np.asarray(heads.to_environment(
        spec.actions, np.asarray(action))):
      try:
        spec.actions.validate(row)
      except ValueError as error:
        raise AssertionError(f'{name} action: breaks its spec: {error}'
                            ) from error
    _expect_array(np.asarray(step.log_prob(action)), (rows,), np.float32,
                  f'log-probability of {name} actions')
  _expect_array(np.asarray(policy.entropy()), (length, rows), np.float32,
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
    _expect_finite(leaf, f'gradient of {jax.tree_util.keystr(path)}')
  _expect(any(np.any(leaf) for leaf in jax.tree.leaves(gradients)),
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
    _expect_same(
        (step_policy, step_value), _rows((policy, value), t, t + 1),
        f'policy and value of a single step at row {t}, where the unroll of '
        f'{length} rows has others', _TOLERANCE)
  _expect_same(state, final, 'state after single steps, where the unroll has '
               'another', _TOLERANCE)


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
  _expect_same(
      apply(params, observation, is_first, other),
      apply(params, observation, is_first, state),
      'outputs after is_first, from another state before it', _TOLERANCE)


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
  _expect_same(
      two, one, 'outputs of environment 0 beside other environments',
      _TOLERANCE)


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
  _expect_same(two, one, 'outputs of rows 0 to 2 before other later rows',
               _TOLERANCE)


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
  _expect_equal(shapes(observed), shapes(params),
                'shapes and types of the parameters after observe')
  _expect_same(observe(params, observation), observed,
               'parameters after observe with the same observations')
  for path, leaf in jax.tree_util.tree_leaves_with_path(observed):
    _expect_finite(
        leaf, f'parameter {jax.tree_util.keystr(path)} after observe')


# Builders.


class _BuilderCase:
  """A builder with what it needs, and rollouts to learn from.

  Attributes:
    factory: Makes the environments.
    actor: The actor core, not jitted.
    evaluator: The greedy one.
    learner: The learner core.
    state: The training state before the first update.
    rollouts: Two successive rollouts by its parameters.
    num_envs: `B`.
    seed: Of everything.
  """

  def __init__(
      self,
      builder: builder_lib.Builder,
      network_factory: NetworkFactory,
      factory: environments.EnvironmentFactory,
      num_envs: int,
      unroll_length: int,
      seed: int,
  ):
    self.factory = factory
    self.num_envs = num_envs
    self.seed = seed
    networks = network_factory(factory.spec)
    self.actor = builder.make_actor_core(networks)
    self.evaluator = builder.make_actor_core(networks, evaluation=True)
    arguments = (networks, builder_lib.RunSizes(
        unroll_length, num_envs, num_updates=4), learner_core.Execution())
    self.learner = builder.make_learner_core(*arguments)
    self.state = self.learner.init(*jax.random.split(jax.random.PRNGKey(seed)))
    self.rollouts = collect.collect(
        factory, self.actor, self.state.params, num_rollouts=2,
        num_envs=num_envs, unroll_length=unroll_length, seed=seed)

  def update(self, rollouts: Optional[List[types.Rollout]] = None):
    """Returns the states after the updates, and the last metrics."""
    states = [self.state]
    for rollout in rollouts or self.rollouts:
      # Actors keep no rollout: a learner may do with it what it likes.
      try:
        state, metrics = self.learner.update(states[-1], _copy(rollout))
      except KeyError as error:
        raise AssertionError(
            f'update: the learner needs {error}, which is not among the '
            f'actor\'s extras {sorted(rollout.extras)}') from error
      states.append(state)
    return states, metrics


def check_actor(case: _BuilderCase) -> None:
  """Actions fit the spec; extras are arrays per environment."""
  for rollout in case.rollouts:
    _expect(isinstance(rollout.extras, dict), 'extras', 'a dict',
            rollout.extras)
    for name, value in rollout.extras.items():
      for leaf in jax.tree.leaves(value):
        _expect(
            leaf.shape[1:2] == (case.num_envs,), f'extras[{name!r}]',
            f'[{case.num_envs}, ...] per step', leaf.shape[1:])
        _expect_finite(leaf, f'extras[{name!r}]')
  greedy = [
      case.evaluator.select_action(
          case.state.params, _first_row(case), case.evaluator.init(
              jax.random.PRNGKey(seed), range(case.num_envs)))[0]
      for seed in (0, 1)]
  _expect_same(greedy[1], greedy[0],
               'greedy actions with another key, which must not matter')


def check_actions_belong_to_environments(case: _BuilderCase) -> None:
  """An environment's actions depend on its index, not on its place."""
  key = jax.random.PRNGKey(case.seed)
  half = case.num_envs // 2
  timestep = _first_row(case)
  select_action = jax.jit(case.actor.select_action)

  def act(indices: range) -> List[Any]:
    state = case.actor.init(key, indices)
    rows = jax.tree.map(lambda x: x[np.array(indices)], timestep)
    actions = []
    for _ in range(8):
      action, extras, state = select_action(case.state.params, rows, state)
      actions.append((action, extras))
    return actions

  whole = act(range(case.num_envs))
  for step, (one, other) in enumerate(zip(
      whole, act(range(half, case.num_envs)))):
    _expect_same(
        other, jax.tree.map(lambda x: x[half:], one),
        f'step {step} of environments {half} to {case.num_envs - 1} as a batch '
        'of their own', _TOLERANCE)


def check_update(case: _BuilderCase) -> None:
  """An update takes the actor's rollouts and changes finite parameters."""
  before = _copy(case.state)
  states, metrics = case.update()
  _expect_same(case.state, before, 'the state given to update, afterwards')
  shapes = lambda tree: jax.tree.map(
      lambda x: (jnp.shape(x), jnp.result_type(x)), tree)
  for update, state in enumerate(states[1:], start=1):
    _expect_equal(shapes(state), shapes(states[0]),
                  f'shapes and types of the state after update {update}')
    _expect_equal(int(state.num_updates), update,
                  f'num_updates after update {update}')
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
      _expect_finite(leaf, f'parameter {jax.tree_util.keystr(path)} after '
                     f'update {update}')
    _expect(not _is_same(state.params, states[update - 1].params),
            f'parameters after update {update}', 'others than before',
            'the same')
  for name, value in metrics.items():
    _expect_equal(jnp.shape(value), (), f'shape of the metric {name!r}')
    _expect_finite(value, f'metric {name!r}')


def check_update_is_deterministic(case: _BuilderCase) -> None:
  """The same state and rollouts give the same parameters, bit for bit."""
  (*_, one), _ = case.update()
  (*_, other), _ = case.update()
  _expect_same(other, one, 'state after the same updates')


def check_dummy_steps_do_not_matter(case: _BuilderCase) -> None:
  """Of the ignored actions after `LAST` nothing is learned."""
  rng = np.random.default_rng(case.seed)
  changed, num_dummies = [], 0
  for rollout in case.rollouts:
    rollout = _copy(rollout)
    is_last = rollout.step_type[:-1] == _LAST
    num_dummies += is_last.sum()
    # The place of another action that the policy could have taken.
    for t, i in np.argwhere(is_last):
      source = rng.integers(len(rollout.action)), rng.integers(case.num_envs)
      rollout.action[t, i] = rollout.action[source]
    changed.append(rollout)
  _expect(num_dummies > 0, 'episodes that ended in two rollouts',
          'at least one; raise unroll_length', 0)
  _expect(
      any((a.action != b.action).any()
          for a, b in zip(changed, case.rollouts)),
      'random actions', 'some that differ', 'only equal ones')
  (*_, one), _ = case.update()
  (*_, other), _ = case.update(changed)
  _expect_same(
      other.params, one.params,
      'parameters after updates with other actions after LAST', _TOLERANCE)


# Helpers.


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
      lambda leaf: _sample(leaf, rng, length, rows), spec.observations)
  is_first = rng.random((length, rows)) < 0.3
  is_first[0, 0] = True
  is_first[1:, -1] = [t % 2 == 0 for t in range(length - 1)]
  return observation, is_first


def _sample(
    spec: specs.Array, rng: np.random.Generator, *batch: int) -> np.ndarray:
  """Returns random values `[*batch, ...]` that a spec allows."""
  shape = (*batch, *spec.shape)
  minimum = np.asarray(getattr(spec, 'minimum', -np.inf), np.float64)
  maximum = np.asarray(getattr(spec, 'maximum', np.inf), np.float64)
  if spec.dtype == np.bool_:
    return rng.random(shape) < 0.5
  if np.issubdtype(spec.dtype, np.integer):
    minimum, maximum = np.clip((minimum, maximum), *(
        (0, 255) if spec.dtype == np.uint8 else (-1000, 1000)))
    return rng.integers(minimum.astype(int), maximum.astype(int),
                        shape, endpoint=True).astype(spec.dtype)
  bounded = np.isfinite(minimum) & np.isfinite(maximum)
  low, high = np.where(bounded, minimum, 0), np.where(bounded, maximum, 1)
  uniform = low + (high - low) * rng.random(shape)
  values = np.where(bounded, uniform, np.clip(
      rng.normal(size=shape), minimum, maximum))
  return values.astype(spec.dtype)


def _first_row(case: _BuilderCase) -> dm_env.TimeStep:
  rollout = case.rollouts[0]
  return jax.tree.map(lambda x: x[0], dm_env.TimeStep(
      rollout.step_type, rollout.reward, rollout.discount, rollout.observation))


def _rows(tree: Any, start: int, stop: int) -> Any:
  return jax.tree.map(lambda x: x[start:stop], tree)


def _copy(tree: Any) -> Any:
  return jax.tree.map(np.array, tree)


def _expect(condition: Any, what: str, expected: Any, seen: Any) -> None:
  """Raises AssertionError unless the condition holds."""
  if not condition:
    raise AssertionError(f'{what}: expected {expected}, saw {seen}')


def _expect_equal(seen: Any, expected: Any, what: str) -> None:
  _expect(seen == expected, what, expected, seen)


def _expect_array(
    seen: Any, shape: Tuple[int, ...], dtype: Any, what: str) -> None:
  """Expects a finite array."""
  _expect(hasattr(seen, 'shape') and hasattr(seen, 'dtype'), what, 'an array',
          seen)
  _expect(seen.shape == shape and seen.dtype == dtype, what,
          f'shape {shape} and dtype {np.dtype(dtype)}',
          f'shape {seen.shape} and dtype {seen.dtype}')
  _expect_finite(seen, what)


def _expect_finite(seen: Any, what: str) -> None:
  seen = np.asarray(seen)
  if np.issubdtype(seen.dtype, np.floating):
    _expect(np.isfinite(seen).all(), what, 'finite numbers',
            seen[~np.isfinite(seen)][:3])


def _expect_same(
    seen: Any, expected: Any, what: str, tolerance: float = 0.) -> None:
  """Expects trees of equal arrays; the tolerance is relative to the largest."""
  _expect_equal(jax.tree.structure(seen), jax.tree.structure(expected),
                f'structure of {what}')
  seen_leaves = jax.tree_util.tree_leaves_with_path(seen)
  for (path, leaf), other in zip(seen_leaves, jax.tree.leaves(expected)):
    leaf, other = np.asarray(leaf), np.asarray(other)
    name = f'{what}, {jax.tree_util.keystr(path)}' if path else what
    _expect_equal(leaf.shape, other.shape, f'shape of {name}')
    if tolerance:
      scale = max(1., np.abs(other).max(initial=0))
      differs = np.abs(
          leaf.astype(np.float64) - other.astype(np.float64)
      ) > tolerance * scale
    else:
      differs = leaf != other
    if differs.any():
      place = tuple(int(index) for index in np.argwhere(differs)[0])
      raise AssertionError(f'{name}: expected {other[place]} at {place}, saw '
                           f'{leaf[place]}')


def _is_same(one: Any, other: Any) -> bool:
  return all(np.array_equal(x, y) for x, y in zip(
      jax.tree.leaves(one), jax.tree.leaves(other)))
