"""Checks that results don't depend on how an experiment is run.

Compares runs that are there, by their directories or ledgers,

    python -m cleanba_acme.launchers.verify results/a results/b

or makes them: the flags after `--` are the train script's.

    python -m cleanba_acme.launchers.verify \\
      --perturb=rerun,processes,actors=4,delays,processes+load,kill -- \\
      --env=catch --num_envs=16 --unroll_length=18 --total_steps=20000

For each it says that it is identical to the first, or names the first update in
which they differ and what differed first: the keys that the actors were given,
the version of the parameters that acted, the data, or the new parameters.

The exit status is 0 (all are identical), 1 (wrong arguments), 2 (a run failed),
4 (some differ) or 130 (interrupted).
"""

import os
import random
import shutil
import tempfile
import time
from typing import List, Optional, Sequence

from absl import app
from absl import flags
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import trials

_PERTURB = flags.DEFINE_list(
    'perturb', ['rerun', 'processes'],
    f'What to do with the experiment, beside running it as it is: {trials.HELP}'
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None,
    'Where the runs go, each in a folder of its own. Default: a temporary '
    'folder, which is kept if they differ.')
_SEED = flags.DEFINE_integer(
    'seed', None, 'Of the moments of kills, which are random by default.')

_REFERENCE = 'reference'
_NAME_WIDTH = 26


def main(argv: Sequence[str]) -> None:
  arguments = list(argv[1:])

  def work() -> int:
    if not arguments:
      raise ValueError(
          'give the directories of runs, or -- and flags of the train script')
    return (_run if arguments[0].startswith('-') else _compare)(arguments)

  exits.run_script('verify', work)


def _compare(paths: Sequence[str]) -> int:
  """Compares ledgers with the first."""
  if len(paths) < 2:
    raise ValueError(f'{paths[0]}: give a second one to compare it with')
  reference, *others = [ledger.read(path) for path in paths]
  print(f'{paths[0]}: {len(reference.rows)} updates')
  same = [_report(f'{path}:', reference, other)
          for path, other in zip(paths[1:], others)]
  return exits.DONE if all(same) else exits.DIVERGED


def _run(train_flags: List[str]) -> int:
  """Runs the reference and all trials, and compares."""
  if any(flag.lstrip('-').startswith('output_dir') for flag in train_flags):
    raise ValueError(
        '--output_dir must come before the --: each run gets a folder in it')
  names = list(dict.fromkeys(_PERTURB.value))
  try:
    perturbed = [trials.parse(name) for name in names]
  except ValueError as error:
    raise ValueError(f'--perturb={",".join(names)}: {error}') from error
  if _OUTPUT_DIR.value is None:
    folder = tempfile.mkdtemp(prefix='verify-')
  else:
    folder = _OUTPUT_DIR.value
    if os.path.isdir(folder) and os.listdir(folder):
      # Old runs would be found done, and prove nothing.
      raise ValueError(f'--output_dir={folder}: must be empty')
  is_of_interest = True  # Also when the runs fail, or are interrupted.
  try:
    is_of_interest = not _run_all(perturbed, train_flags, folder)
  except ValueError:
    is_of_interest = False
    raise
  finally:
    if is_of_interest:
      print(f'The runs are in {folder}', flush=True)
    elif _OUTPUT_DIR.value is None:
      shutil.rmtree(folder)
  return exits.DIVERGED if is_of_interest else exits.DONE


def _run_all(
    perturbed: Sequence[trials.Trial],
    train_flags: Sequence[str],
    folder: str,
) -> bool:
  """Returns whether every trial gave what the reference gave."""
  rng = random.Random(_SEED.value)
  env = trials.make_env(max(trial.num_devices for trial in perturbed))

  def run(trial: trials.Trial, num_updates: int) -> ledger.Ledger:
    output_dir = os.path.join(folder, trial.name)
    # Later, a short run could be over before it is killed.
    trials.run(trial, train_flags, output_dir, env,
               rng.randint(1, max(1, num_updates // 2)), rng)
    return ledger.read(output_dir)

  begin = time.monotonic()
  reference = run(trials.Trial(_REFERENCE), num_updates=0)
  num_updates = len(reference.rows)
  _print(_REFERENCE, f'{num_updates} updates', begin)
  are_same = True
  for trial in perturbed:
    begin = time.monotonic()
    is_same = _report(trial.name, reference, run(trial, num_updates), begin)
    are_same = are_same and is_same
    if (trial.num_devices > 1 and not is_same
        and '--reduction=invariant' not in train_flags):
      print(' ' * _NAME_WIDTH +
            'other devices give the same bits with --reduction=invariant only')
  return are_same


def _report(
    name: str,
    reference: ledger.Ledger,
    other: ledger.Ledger,
    begin: Optional[float] = None,
) -> bool:
  """Prints whether two ledgers are identical, and returns it."""
  divergence = ledger.compare(reference, other)
  _print(name, 'identical' if divergence is None else
         f'differs from {divergence}', begin)
  return divergence is None


def _print(name: str, result: str, begin: Optional[float]) -> None:
  seconds = '' if begin is None else f'  [{time.monotonic() - begin:.0f} s]'
  print(f'{name:{_NAME_WIDTH - 1}} {result}{seconds}', flush=True)


if __name__ == '__main__':
  app.run(main)
