"""Compares two ways to compute a PPO update on CPU.

`python -m cleanba_acme.launchers.benchmark_update` prints, side by side, the
CPU seconds that an update of the default ResNet takes when the loop over its
minibatches is in Python, as the library runs it on CPU, and when it is a
`jax.lax.scan`. Sizes are Cleanba's for Atari, but for the number of
minibatches: each costs the same, so two will do. `--num_epochs=4
--num_minibatches=4 --unroll_length=128` is the whole update; it takes half an
hour.

`--compare=reduction` compares `--reduction=fast` with `--reduction=invariant`.
"""

import os
import time
from typing import Sequence

from absl import app
from absl import flags

# Heavy modules are imported in `main`, after XLA's thread count is set.

_COMPARE = flags.DEFINE_enum(
    'compare', 'loop', ['loop', 'reduction'], 'Which two ways to compare.')
_ENV = flags.DEFINE_string(
    'env', 'Breakout-v5', 'The environment that sizes the network.')
_REPEATS = flags.DEFINE_integer(
    'repeats', 1, 'Updates to take the mean over.', lower_bound=1)
_NUM_ENVS = flags.DEFINE_integer('num_envs', 8, 'Environments.', lower_bound=1)
_UNROLL_LENGTH = flags.DEFINE_integer(
    'unroll_length', 64, 'Steps of a rollout.', lower_bound=1)
_NUM_EPOCHS = flags.DEFINE_integer(
    'num_epochs', 1, 'Passes over the rollout.', lower_bound=1)
_NUM_MINIBATCHES = flags.DEFINE_integer(
    'num_minibatches', 2,
    'Minibatches of a pass. Two at least: XLA removes a loop over one.',
    lower_bound=2)
_XLA_THREADS = flags.DEFINE_integer(
    'xla_threads', 1, 'Threads of XLA\'s pool.', lower_bound=1)


def main(argv: Sequence[str]) -> None:
  del argv
  os.environ['NPROC'] = str(_XLA_THREADS.value)

  from cleanba_acme import builder  # pylint: disable=g-import-not-at-top
  from cleanba_acme import learner_core  # pylint: disable=g-import-not-at-top
  from cleanba_acme import types  # pylint: disable=g-import-not-at-top
  from cleanba_acme.agents.ppo import builder as ppo  # pylint: disable=g-import-not-at-top
  from cleanba_acme.agents.ppo import config  # pylint: disable=g-import-not-at-top
  from cleanba_acme.environments import registry  # pylint: disable=g-import-not-at-top
  from cleanba_acme.networks import factory  # pylint: disable=g-import-not-at-top
  import jax  # pylint: disable=g-import-not-at-top
  import numpy as np  # pylint: disable=g-import-not-at-top

  length, rows = _UNROLL_LENGTH.value, _NUM_ENVS.value
  spec = registry.make_factory(_ENV.value).spec
  networks = factory.make_networks(spec)
  rng = np.random.default_rng(0)
  shape = (length + 1, rows, *spec.observations.shape)
  rollout = types.Rollout(
      observation=(
          rng.integers(0, 256, shape, np.uint8)
          if spec.observations.dtype == np.uint8
          else rng.normal(size=shape).astype(np.float32)),
      reward=np.zeros((length + 1, rows), np.float32),
      discount=np.ones((length + 1, rows), np.float32),
      step_type=np.ones((length + 1, rows), np.int32),
      action=rng.integers(0, spec.actions.num_values, (length, rows), np.int32),
      extras={
          'log_prob': np.full((length + 1, rows), -2.9, np.float32),
          'value': np.zeros((length + 1, rows), np.float32)},
      core_state=())

  def measure(name: str, **execution) -> float:
    core = ppo.PPOBuilder(
        config.PPOConfig(
            num_epochs=_NUM_EPOCHS.value,
            num_minibatches=_NUM_MINIBATCHES.value)).make_learner_core(
                networks, builder.RunSizes(length, rows, num_updates=1000),
                learner_core.Execution(**execution))
    key = jax.random.PRNGKey(0)
    # The first call compiles.
    state, _ = jax.block_until_ready(core.update(core.init(key, key), rollout))
    begin = time.process_time()
    for _ in range(_REPEATS.value):
      jax.block_until_ready(core.update(state, rollout))
    seconds = (time.process_time() - begin) / _REPEATS.value
    print(f'{name:20} {seconds:11.4f} CPU-s', flush=True)
    return seconds

  print(f'{_NUM_EPOCHS.value} x {_NUM_MINIBATCHES.value} minibatches of '
        f'{length * rows // _NUM_MINIBATCHES.value} samples')
  if _COMPARE.value == 'loop':
    first = measure('loop in Python', fused=False)
    second = measure('loop in lax.scan', fused=True)
  else:
    first = measure('fast', reduction='fast')
    second = measure('invariant', reduction='invariant')
  print(f'{"ratio":20} {second / first:11.2f}')


if __name__ == '__main__':
  app.run(main)
