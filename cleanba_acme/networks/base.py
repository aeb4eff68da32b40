"""An actor-critic as pure functions, composed of Haiku modules.

Shape letters: T, time; B, environments; N = T * B; F, features.
"""

from typing import Callable, NamedTuple, Optional, Tuple

import chex
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.networks import cores
from cleanba_acme.networks import heads
from cleanba_acme.networks import observations
import distrax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np


class ActorCritic(NamedTuple):
  """A policy and a value function with shared parameters.

  Actor and learner call the same `apply` (an actor with `T = 1`), so they
  cannot disagree about what the network computes.

  Attributes:
    init: From a key to parameters.
    initial_state: From a batch size to the state of the core at the start of an
      episode, a tree of `[B, ...]`; `()` for feed-forward networks.
    apply: From parameters, observations (a tree of `[T, B, ...]`), `is_first`
      (`[T, B]` bool: the rows that start an episode, where the core starts
      anew) and the core's state before row 0 to the policy (a distribution of
      batch shape `[T, B]`), values `[T, B]` and the core's state after row
      `T - 1`.
    observe: From parameters and the observations of a round, a tree of
      `[M, ...]`, to parameters whose running statistics have seen them. The
      learner calls it once per round, after the gradient steps. Most networks
      keep no statistics and return the parameters as they are.
  """
  init: Callable[[types.PRNGKey], types.Params]
  initial_state: Callable[[int], types.ArrayTree]
  apply: Callable[
      [types.Params, types.ArrayTree, types.Array, types.ArrayTree],
      Tuple[distrax.Distribution, jax.Array, types.ArrayTree]]
  observe: Callable[[types.Params, types.ArrayTree], types.Params] = (
      lambda params, observation: params)


def make_actor_critic(
    spec: specs.EnvironmentSpec,
    torso: Callable[[], Callable[[types.ArrayTree], jax.Array]],
    core: Optional[Callable[[], hk.RNNCore]] = None,
    policy_head: Optional[heads.PolicyHead] = None,
    value_torso: Optional[
        Callable[[], Callable[[types.ArrayTree], jax.Array]]] = None,
) -> ActorCritic:
  """Composes a torso, a core and heads.

  ```python
  def torso():
    return hk.Sequential([hk.Flatten(), hk.Linear(32), jax.nn.relu])

  networks = make_actor_critic(spec, torso, core=lambda: hk.LSTM(32))
  ```

  Args:
    spec: What the environment shows and accepts.
    torso: Makes a Haiku module, or any function, from an observation (a tree of
      float32 `[N, ...]`, see `observations.preprocess`) to features `[N, F]`.
    core: Makes a Haiku core, for a network with memory. Its initial state must
      not hold parameters.
    policy_head: From features to a distribution over the actions; by default
      the one `heads.make_policy_head` chooses.
    value_torso: Makes a torso that only the value function uses, so that its
      gradients, often far larger, don't shape the policy's features. By default
      both share one torso.

  Returns:
    The `ActorCritic`.

  Raises:
    ValueError: if the spec's observations or actions are not supported, or a
      network with memory is to have two torsos.
  """
  if core is not None and value_torso is not None:
    raise ValueError('A network with a core shares one torso.')
  observations.check_specs(spec.observations)
  if policy_head is None:
    policy_head = heads.make_policy_head(spec.actions)

  @hk.without_apply_rng
  @hk.transform
  def network(observation, is_first, core_state):
    chex.assert_rank(is_first, 2)
    chex.assert_type(is_first, bool)
    chex.assert_tree_shape_prefix(observation, is_first.shape)
    # Time is flattened away for all but the core: convolutions inside a loop
    # have gradients that are 20 times slower on CPU.
    observation = jax.tree.map(
        lambda x: x.reshape((-1,) + x.shape[2:]), observation)
    observation = observations.preprocess(spec.observations, observation)

    def extract(make_torso):
      features = make_torso()(observation)
      chex.assert_shape(features, (is_first.size, None))
      return features.reshape(is_first.shape + (-1,))  # [T, B, F]

    features = extract(torso)
    if core is not None:
      features, core_state = cores.unroll(
          core(), features, is_first, core_state)
    value_features = features if value_torso is None else extract(value_torso)
    return policy_head(features), heads.value_head(value_features), core_state

  @hk.without_apply_rng
  @hk.transform
  def state_of_new_core(batch_size):
    return core().initial_state(batch_size)

  def initial_state(batch_size: int) -> types.ArrayTree:
    return () if core is None else state_of_new_core.apply({}, batch_size)

  def init(key: types.PRNGKey) -> types.Params:
    observation = jax.tree.map(
        lambda leaf: np.zeros((1, 1) + leaf.shape, leaf.dtype),
        spec.observations)
    return network.init(
        key, observation, jnp.ones((1, 1), bool), initial_state(1))

  return ActorCritic(init, initial_state, network.apply)
