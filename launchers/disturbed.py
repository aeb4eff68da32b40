"""Trains while something is wrong, for `verify` and `faults`.

`python -m cleanba_acme.launchers.disturbed --delay_ms=5` takes the flags of the
train script, and gives the same results, only later. With `--trouble`, the
learner or the launcher goes wrong; environments have options of their own for
that, see `cleanba_acme.testing.fakes`.
"""

import functools
import signal
from typing import Any

from absl import app
from absl import flags
from cleanba_acme.launchers import train

# A round has many steps and one update.
_UPDATE_FACTOR = 5

_DELAY_MS = flags.DEFINE_float(
    'delay_ms', 0,
    'Most time that each step of an actor\'s environments sleeps. An update '
    f'sleeps up to {_UPDATE_FACTOR} times as long.', lower_bound=0)
_TROUBLE = flags.DEFINE_string(
    'trouble', None, 'What goes wrong, see `fakes.make_trouble`.')
_TROUBLE_UPDATE = flags.DEFINE_integer(
    'trouble_update', None,
    'The update in which the learner goes wrong. Without, the launcher does, '
    'when it gets SIGUSR1.')


def _disturb(experiment: Any) -> Any:
  import dataclasses  # pylint: disable=g-import-not-at-top
  from cleanba_acme.testing import fakes  # pylint: disable=g-import-not-at-top
  if _TROUBLE.value and _TROUBLE_UPDATE.value is None:
    signal.signal(
        signal.SIGUSR1,
        lambda *unused_args: fakes.make_trouble(_TROUBLE.value))
  seconds = _DELAY_MS.value / 1000
  changes = {'builder': fakes.DisturbedBuilder(
      experiment.builder, seconds * _UPDATE_FACTOR,
      _TROUBLE.value, _TROUBLE_UPDATE.value)}
  if seconds:
    changes['environment_factory'] = fakes.SleepyFactory(
        experiment.environment_factory, seconds)
  return dataclasses.replace(experiment, **changes)


if __name__ == '__main__':
  app.run(functools.partial(train.main, change=_disturb))
