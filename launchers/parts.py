"""Measures every part of a run alone; `bench` runs this for each experiment.

`python -m cleanba_acme.launchers.parts --parts_json=FILE` takes the flags of
the train script, measures instead of training, and writes what it measured.
"""

import functools
import json
import os
import statistics
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List

from absl import app
from absl import flags
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import train

# Heavy modules are imported by the train script, once the flags are right.

_JSON = flags.DEFINE_string(
    'parts_json', None, 'Where the measurements go.', required=True)

# A part is repeated until it has been so often, or has taken so long.
_REPEATS = 5
_MAX_S = 5.0


def _measure(experiment: Any) -> Any:
  """Writes the parts of an experiment, and exits."""
  parts = _Parts(experiment)
  report = {
      'num_actors': experiment.num_actors,
      'num_envs': experiment.num_envs,
      'policy_lag': experiment.policy_lag,
      'threads_per_worker': int(os.environ['OMP_NUM_THREADS']),
      'steps_per_round': experiment.steps_per_round,
      'item_bytes': parts.item_bytes,
      'parts': parts.measure(),
  }
  with open(_JSON.value, 'w', encoding='utf-8') as file:
    json.dump(report, file, indent=2)
  os._exit(exits.DONE)  # There is nothing to train.


class _Parts:
  """The parts of one experiment, each ready to be called."""

  def __init__(self, experiment: Any):
    import jax  # pylint: disable=g-import-not-at-top
    from cleanba_acme import rollout  # pylint: disable=g-import-not-at-top
    from cleanba_acme import seeding  # pylint: disable=g-import-not-at-top
    from cleanba_acme import types  # pylint: disable=g-import-not-at-top
    import numpy as np  # pylint: disable=g-import-not-at-top
    self._experiment = experiment
    self._rollout_lib = rollout
    self._rows = experiment.envs_per_actor
    self._spec = experiment.environment_factory.spec
    self._core = experiment.compile_actor_core()
    self._learner_core = experiment.make_learner_core()
    key = jax.random.PRNGKey(0)
    self._state = self._learner_core.init(key, key)
    self._params = jax.tree.map(np.array, self._state.params)
    self._acting = self._core.init(
        seeding.purpose_key(experiment.seed, seeding.Purpose.ACTING),
        range(self._rows))
    unroller = self._make_unroller(
        experiment.environment_factory(1, self._rows), self._core)
    packed, episodes = unroller.unroll(self._state.params)
    self._packed = [packed] * experiment.num_actors
    self._batch = rollout.join(self._packed)
    self._item = types.RolloutItem(
        np.int32(0), np.int32(0), np.int32(0), unroller.keys, packed, episodes)
    self._parameters_item = types.ParametersItem(np.int32(0), self._params)
    self.item_bytes = sum(
        leaf.nbytes for leaf in jax.tree.leaves(self._item))
    self._scratch = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with

  def _make_unroller(self, environment: Any, core: Any) -> Any:
    return self._rollout_lib.Unroller(
        environment, self._spec, core, self._acting,
        self._experiment.unroll_length, self._experiment.num_buffers)

  def measure(self) -> Dict[str, Dict[str, float]]:
    """Returns CPU and wall seconds per round, of all actors together."""
    actors = self._experiment.num_actors
    memory, reverb = self._channels()
    measured = {
        'environment': _time(self._environment(), actors),
        'inference': _time(self._inference(), actors),
        'assembly': _time(self._assembly(), actors),
        'put and get (memory)': _time(memory, actors),
        'put and get (reverb)': _time(reverb, actors),
        'join': _time(self._join()),
        'data fingerprint': _time(self._data_fingerprint),
        'update': _time(self._update),
        **self._publication(),
        'fingerprint': _time(self._fingerprint),
        'logging': _time(self._logging()),
        'checkpoint': _time(
            self._checkpoint(), 1 / self._experiment.checkpoint_every),
    }
    self._close()
    self._scratch.cleanup()
    return measured

  def _environment(self) -> Callable[[], None]:
    import numpy as np  # pylint: disable=g-import-not-at-top
    from cleanba_acme.networks import heads  # pylint: disable=g-import-not-at-top
    environment = self._experiment.environment_factory(1, self._rows)
    environment.reset()
    actions = [heads.to_environment(self._spec.actions, action)
               for action in np.array(self._packed[0].action)]

    def step():
      for action in actions:
        environment.step(action)

    return step

  def _inference(self) -> Callable[[], None]:
    import jax  # pylint: disable=g-import-not-at-top
    import numpy as np  # pylint: disable=g-import-not-at-top
    rows = self._rollout_lib.pad_rows(self._rows)
    pad = lambda x: np.resize(np.asarray(x), (rows, *np.shape(x)[1:]))
    timestep = jax.tree.map(pad, self._timestep())
    first = self._acting._replace(
        keys=pad(self._acting.keys),
        core_state=jax.tree.map(pad, self._acting.core_state))

    def act():
      state = first
      for _ in range(self._experiment.unroll_length + 1):
        action, extras, state = self._core.select_action(
            self._state.params, timestep, state)
        jax.tree.map(np.asarray, (action, extras))

    return act

  def _timestep(self) -> Any:
    import jax  # pylint: disable=g-import-not-at-top
    environment = self._experiment.environment_factory(1, self._rows)
    timestep = environment.reset()
    environment.close()
    return jax.tree.map(lambda x: x.copy(), timestep)

  def _assembly(self) -> Callable[[], None]:
    """An unroll where neither environment nor network computes anything."""
    import numpy as np  # pylint: disable=g-import-not-at-top
    timestep = self._timestep()
    rows = self._rows

    class Still:
      """Shows one time step, over and over."""
      num_envs = rows
      unclipped_reward = timestep.reward
      reset = lambda self: timestep
      step = lambda self, action: timestep._replace(
          step_type=np.ones(rows, np.int32))

    padded = self._rollout_lib.pad_rows(rows)
    fixed = lambda x: np.resize(x, (padded, *x.shape[1:]))
    action = fixed(self._packed[0].action[0])
    extras = {
        name: fixed(column[0])
        for name, column in self._packed[0].extras.items()}
    core = self._core._replace(
        select_action=lambda params, timestep, state: (action, extras, state))
    # All frames alike move on as they should.
    unroller = self._make_unroller(Still(), core)
    return lambda: unroller.unroll(None)

  def _channels(self) -> List[Callable[[], None]]:
    from cleanba_acme import channels  # pylint: disable=g-import-not-at-top
    from cleanba_acme import replay  # pylint: disable=g-import-not-at-top
    stop = threading.Event()
    memory = channels.MemoryChannel('rollout', stop)
    # The last end closes the server, which must live till then.
    writers, readers, self._publisher, self._parameters, self._close = (
        replay.make_local_channels(
            self._experiment.num_actors, *self._experiment.item_specs(), stop,
            token='parts'))

    def through(writer, reader):
      def hand_over():
        writer.put(self._item)
        reader.get()
      return hand_over

    return [through(memory, memory), through(writers[0], readers[0])]

  def _publication(self) -> Dict[str, Dict[str, float]]:
    """Parameters to the host, to all actors, and to their devices."""
    import jax  # pylint: disable=g-import-not-at-top
    import numpy as np  # pylint: disable=g-import-not-at-top

    def copy():
      params = jax.tree.map(np.array, self._state.params)
      for _ in self._parameters:
        jax.block_until_ready(jax.device_put(params))

    def publish():
      copy()
      self._publisher.put(self._parameters_item)
      for reader in self._parameters:
        reader.get()

    return {'parameters (memory)': _time(copy),
            'parameters (reverb)': _time(publish)}

  def _join(self) -> Callable[[], None]:
    out = self._rollout_lib.join(self._packed)
    return lambda: self._rollout_lib.join(self._packed, out)

  def _data_fingerprint(self) -> None:
    from cleanba_acme import fingerprint  # pylint: disable=g-import-not-at-top
    fingerprint.fingerprint(self._batch)
    for rollout in self._packed:
      fingerprint.fingerprint(rollout)

  def _update(self) -> None:
    import jax  # pylint: disable=g-import-not-at-top
    jax.block_until_ready(self._learner_core.update(self._state, self._batch))

  def _fingerprint(self) -> None:
    from cleanba_acme import fingerprint  # pylint: disable=g-import-not-at-top
    fingerprint.fingerprint(self._params)

  def _logging(self) -> Callable[[], None]:
    from cleanba_acme import loggers  # pylint: disable=g-import-not-at-top
    ledger = loggers.make_ledger_logger(self._scratch.name)
    progress = loggers.make_progress_logger(self._scratch.name)
    row = {f'column_{i}': i / 7 for i in range(15)}

    def write():
      ledger.write({'update': 1, 'steps': 1, **row})
      progress.write({'update': 1, 'steps': 1, **row})

    return write

  def _checkpoint(self) -> Callable[[], None]:
    from cleanba_acme import checkpoint  # pylint: disable=g-import-not-at-top
    import itertools  # pylint: disable=g-import-not-at-top
    saver = checkpoint.Checkpointer(f'{self._scratch.name}/checkpoints', 3)
    updates = itertools.count(1)
    older = (self._params,) * self._experiment.policy_lag
    return lambda: saver.save(next(updates), checkpoint.Checkpoint(
        self._state, older, {'seconds': 0., 'episodes': {}}))


def _time(part: Callable[[], None], times: float = 1) -> Dict[str, float]:
  """Returns the medians of CPU and wall seconds, `times` as many."""
  part()  # Compiles, opens files, fills caches.
  cpu, wall = [], []
  begin = time.perf_counter()
  while len(wall) < _REPEATS and (
      not wall or time.perf_counter() - begin < _MAX_S):
    start, start_cpu = time.perf_counter(), time.process_time()
    part()
    wall.append(time.perf_counter() - start)
    cpu.append(time.process_time() - start_cpu)
  return {'cpu_s': statistics.median(cpu) * times,
          'wall_s': statistics.median(wall) * times}


if __name__ == '__main__':
  app.run(functools.partial(train.main, change=_measure))
