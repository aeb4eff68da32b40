"""Trains with random sleeps in every worker, for `verify`.

`python -m cleanba_acme.launchers.delayed --delay_ms=5` takes the flags of the
train script, and gives the same results, only later.
"""

import functools
from typing import Any

from absl import app
from absl import flags
from cleanba_acme.launchers import train

# A round has many steps and one update.
_UPDATE_FACTOR = 5

_DELAY_MS = flags.DEFINE_float(
    'delay_ms', 5,
    'Most time that each step of an actor\'s environments sleeps. An update '
    f'sleeps up to {_UPDATE_FACTOR} times as long.', lower_bound=0)


def _delay(experiment: Any) -> Any:
  import dataclasses  # pylint: disable=g-import-not-at-top
  from cleanba_acme.testing import fakes  # pylint: disable=g-import-not-at-top
  seconds = _DELAY_MS.value / 1000
  return dataclasses.replace(
      experiment,
      environment_factory=fakes.SleepyFactory(
          experiment.environment_factory, seconds),
      builder=fakes.SleepyBuilder(
          experiment.builder, seconds * _UPDATE_FACTOR))


if __name__ == '__main__':
  app.run(functools.partial(train.main, change=_delay))
