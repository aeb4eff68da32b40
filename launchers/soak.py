"""Kills a run again and again, and checks that it ends as if nothing happened.

    python -m cleanba_acme.launchers.soak

runs an experiment, as processes, to its end. Then it runs it again, and kills
(SIGKILL) the launcher, an actor, the learner or the Reverb server at random
moments, ten times each; every time the same command goes on with what is there.
At the end the ledger must have each update exactly once, and be that of the run
that nobody touched; no kill may leave a process behind.

With `--max_restarts=100` the second run is launched only once, and goes on by
itself each time; then the launcher must not be among the `--victims`.

Flags of the train script after `--` change the experiment. The exit status is 0
(all of this is so), 1 (wrong arguments), 2 (a run ended as it must not), 4 (the
results differ) or 130 (interrupted).
"""

import collections
import os
import random
import shutil
import tempfile
import time
from typing import Dict, List, NamedTuple, Sequence

from absl import app
from absl import flags
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import trials
from cleanba_acme.testing import programs

_KILLS = flags.DEFINE_integer(
    'kills', 10, 'How often to kill each kind of process.', lower_bound=1)
_VICTIMS = flags.DEFINE_list(
    'victims', list(trials.VICTIMS), 'Which kinds of processes to kill.')
_UPDATES_PER_KILL = flags.DEFINE_integer(
    'updates_per_kill', 40, 'Updates of the run for each kill.', lower_bound=1)
_MAX_RESTARTS = flags.DEFINE_integer(
    'max_restarts', 0, 'Lets the train script restart by itself so often.',
    lower_bound=0)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the order and moments of kills.')
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None,
    'Where the two runs go. Default: a temporary folder, which is kept if '
    'anything is wrong.')

_STEPS_PER_UPDATE = 8 * 16
_EXPERIMENT = (
    '--env=catch', '--num_envs=8', '--unroll_length=16', '--policy_lag=1',
    '--network.hiddens=16,16', '--config.num_epochs=1', '--checkpoint_every=7',
    '--launch=processes')
# What the train script says.
_RESTARTING = 'Restarting;'
# The last moment is well before the end, which comes while it is waited for.
_LAST_MOMENT = 0.9
# Of the kills; most of the time is spent with starting.
_SHARE_AT_START = 0.3
# How long a victim lives on when its moment has come. A start takes longer.
_MAX_SLEEP_S = 0.05
_MAX_SLEEP_AT_START_S = 3.


class _Kill(NamedTuple):
  """One that was made: the victim, when, and how long until all had ended."""
  victim: str
  update: int
  is_at_start: bool
  seconds: float


def main(argv: Sequence[str]) -> None:
  exits.run_script('soak', lambda: _soak(list(argv[1:])))


def _soak(more_flags: List[str]) -> int:
  wrong = sorted(set(_VICTIMS.value) - set(trials.VICTIMS))
  if wrong or not _VICTIMS.value:
    raise ValueError(
        f'--victims={",".join(_VICTIMS.value)}: must be of '
        f'{", ".join(trials.VICTIMS)}')
  if _MAX_RESTARTS.value and trials.LAUNCHER in _VICTIMS.value:
    raise ValueError(
        f'--victims={",".join(_VICTIMS.value)}: with --max_restarts it must be '
        'without launcher, which nobody restarts')
  folder = _OUTPUT_DIR.value or tempfile.mkdtemp(prefix='soak-')
  if os.path.isdir(folder) and os.listdir(folder):
    raise ValueError(f'--output_dir={folder}: must be empty')
  rng = random.Random(_SEED.value)
  victims = list(_VICTIMS.value) * _KILLS.value
  rng.shuffle(victims)
  total_steps = (len(victims) + 1) * _UPDATES_PER_KILL.value * _STEPS_PER_UPDATE
  train_flags = [*_EXPERIMENT, f'--total_steps={total_steps}', *more_flags]

  untouched = os.path.join(folder, 'untouched')
  killed = os.path.join(folder, 'killed')
  begin = time.monotonic()
  trials.run(trials.Trial('untouched'), train_flags, untouched)
  reference = ledger.read(untouched)
  num_updates = len(reference.rows)
  print(f'{"untouched":10} {num_updates} updates  '
        f'[{time.monotonic() - begin:.0f} s]', flush=True)

  moments = sorted(
      rng.randint(0, int(_LAST_MOMENT * num_updates)) for _ in victims)
  if _MAX_RESTARTS.value:
    kills = _run_and_kill_all(train_flags, killed, victims, moments, rng)
  else:
    kills = [_run_and_kill(train_flags, killed, victim, moment, rng)
             for victim, moment in zip(victims, moments)]
    trials.run(trials.Trial('killed'), train_flags, killed)
  _print_table(kills)
  # Refuses a ledger that doesn't have each update exactly once.
  divergence = ledger.compare(reference, ledger.read(killed))
  if divergence is not None:
    print(f'The killed run differs from {divergence}. The runs are in {folder}')
    return exits.DIVERGED
  print(f'All {num_updates} updates are there once, and identical. '
        f'The last fingerprint is {reference.rows[-1]["fingerprint"]}.')
  if _OUTPUT_DIR.value is None:
    shutil.rmtree(folder)
  return exits.DONE


def _run_and_kill(
    train_flags: Sequence[str],
    output_dir: str,
    victim: str,
    moment: int,
    rng: random.Random,
) -> _Kill:
  """Runs until after update `moment`, kills the victim, checks the run's end.

  If the moment is behind the run already, or sometimes, while it is starting.
  """
  is_at_start = (trials.count_updates(output_dir) >= moment
                 or rng.random() < _SHARE_AT_START)
  with programs.Program(
      programs.TRAIN, *train_flags, f'--output_dir={output_dir}') as program:
    killed_at = []

    def is_time() -> bool:
      return is_at_start or trials.count_updates(output_dir) >= moment

    try:
      ended = trials.kill(
          program, victim, output_dir, rng, is_time,
          _MAX_SLEEP_AT_START_S if is_at_start else _MAX_SLEEP_S,
          lambda: killed_at.append(time.monotonic()))
    except AssertionError as error:
      raise exits.NodeFailed(
          'the run', 'it ended before it should', str(error)) from error
    seconds = time.monotonic() - killed_at[0]
  kill = _Kill(victim, trials.count_updates(output_dir), is_at_start, seconds)
  _print_kill(kill)
  expected = -9 if victim == trials.LAUNCHER else exits.NODE_FAILED
  if ended.status != expected or ended.left_over:
    raise exits.NodeFailed(
        f'the run whose {victim} was killed',
        f'it ended with status {ended.status}, expected {expected}, and left '
        f'{ended.left_over or "no process"}; it printed\n{ended.output}')
  return kill


def _run_and_kill_all(
    train_flags: Sequence[str],
    output_dir: str,
    victims: Sequence[str],
    moments: Sequence[int],
    rng: random.Random,
) -> List[_Kill]:
  """Runs to the end, and kills on the way; the run restarts by itself."""
  kills = []
  with programs.Program(
      programs.TRAIN, *train_flags, f'--max_restarts={_MAX_RESTARTS.value}',
      f'--output_dir={output_dir}') as program:

    def count_restarts() -> int:
      return program.output().count(_RESTARTING)

    def is_time() -> bool:
      return trials.count_updates(output_dir) >= moment

    for victim, moment in zip(victims, moments):
      is_at_start = is_time()
      program.wait_for(is_time, float('inf'))
      pid = trials.find(program, victim, output_dir, rng)
      time.sleep(rng.uniform(
          0, _MAX_SLEEP_AT_START_S if is_at_start else _MAX_SLEEP_S))
      update = trials.count_updates(output_dir)
      program.kill(pid)
      begin = time.monotonic()
      program.wait_for(lambda: count_restarts() > len(kills))
      kills.append(
          _Kill(victim, update, is_at_start, time.monotonic() - begin))
      _print_kill(kills[-1])
    trials.check('killed', program.wait(float('inf')))
    if count_restarts() != len(kills):
      raise exits.NodeFailed(
          'the run', f'it restarted {count_restarts()} times, for {len(kills)} '
          'kills', program.output())
  return kills


def _print_kill(kill: _Kill) -> None:
  print(f'{kill.victim:10} killed '
        f'{"while starting" if kill.is_at_start else "at"} '
        f'update {kill.update}; all had ended after {kill.seconds:.1f} s',
        flush=True)


def _print_table(kills: Sequence[_Kill]) -> None:
  by_victim: Dict[str, List[_Kill]] = collections.defaultdict(list)
  for kill in kills:
    by_victim[kill.victim].append(kill)
  print(f'{"victim":10} {"kills":>6} {"at start":>9} {"longest end":>12}')
  for victim, its_kills in sorted(by_victim.items()):
    longest = max(kill.seconds for kill in its_kills)
    print(f'{victim:10} {len(its_kills):6} '
          f'{sum(kill.is_at_start for kill in its_kills):9} {longest:10.1f} s')


if __name__ == '__main__':
  app.run(main)
