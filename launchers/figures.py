"""Remakes the figures of docs/reproducibility.md, and the numbers behind them.

    python -m cleanba_acme.launchers.figures

runs IMPALA on CartPole by both handoffs, beside 0, 1 and 2 loops that keep a
core busy each, several times each, all with one seed. It takes some minutes,
and leaves `learning_curves.csv`, `policy_lag.csv`, `runs.csv` and the figures
made of them. `--from_csv` only draws them again.
"""

import collections
import csv
import os
import tempfile
import time
from typing import Any, Dict, List, Sequence

from absl import app
from absl import flags
from cleanba_acme import ledger
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import plot
from cleanba_acme.launchers import trials

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', 'docs/reproducibility', 'Where the CSV files and PNGs go.')
_RERUNS = flags.DEFINE_integer(
    'reruns', 2, 'Runs of each handoff beside each load.', lower_bound=1)
_TOTAL_STEPS = flags.DEFINE_integer(
    'total_steps', 300_000, 'Environment steps of each run.')
_FROM_CSV = flags.DEFINE_bool(
    'from_csv', False, 'Draw what the CSV files have, and run nothing.')

_HANDOFFS = ('synchronous', 'asynchronous')
_LOADS = (0, 1, 2)
_EXPERIMENT = (
    '--agent=impala', '--env=CartPole-v1', '--seed=1', '--num_actors=4',
    '--num_envs=32', '--unroll_length=20', '--config.learning_rate=1e-3')
# A curve needs no more than every tenth update.
_POINT_EVERY = 10
_COLORS = ('tab:green', 'tab:blue', 'tab:red')
# Rarer and larger lags are drawn as one.
_MAX_LAG = 6

_CURVES = 'learning_curves.csv'
_LAGS = 'policy_lag.csv'
_RUNS = 'runs.csv'
_Rows = List[Dict[str, Any]]


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  exits.run_script('figures', _make)


def _make() -> int:
  plot.remake(_OUTPUT_DIR.value, _run_all, _draw, _FROM_CSV.value)
  return exits.DONE


def _run_all(folder: str) -> None:
  """Makes all runs and writes the CSV files."""
  curves, lags, runs = [], [], []
  train_flags = [*_EXPERIMENT, f'--total_steps={_TOTAL_STEPS.value}']
  for handoff in _HANDOFFS:
    for load in _LOADS:
      counts = collections.Counter()
      for rerun in range(_RERUNS.value):
        which = {'handoff': handoff, 'busy_loops': load}
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as run:
          trials.run(
              trials.Trial(f'{handoff}-{load}-{rerun}', busy_loops=load),
              [*train_flags, f'--handoff={handoff}'], run)
          rows = ledger.read(run).rows
          curve = plot.read_csv(os.path.join(run, 'progress.csv'))
        curves += [
            {**which, 'rerun': rerun, 'steps': row['steps'],
             'episode_return': row['episode_return']}
            for row in curve[_POINT_EVERY - 1::_POINT_EVERY]]
        counts.update(
            int(row['update']) - 1 - int(value) for row in rows
            for name, value in row.items() if name.startswith('version_'))
        runs.append({
            **which, 'rerun': rerun, 'fingerprint': rows[-1]['fingerprint'],
            'episode_return': curve[-1]['episode_return']})
        print(*runs[-1].values(), f'[{time.monotonic() - begin:.0f} s]',
              flush=True)
      lags += [{**which, 'lag': lag, 'rollouts': counts[lag]}
               for lag in sorted(counts)]
  for name, rows in ((_CURVES, curves), (_LAGS, lags), (_RUNS, runs)):
    with open(os.path.join(folder, name), 'w', newline='',
              encoding='utf-8') as file:
      writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)


def _draw(folder: str) -> None:
  """Draws the figures of the CSV files."""
  plt = plot.pyplot()

  for name, draw in ((_CURVES, _draw_curves), (_LAGS, _draw_lags)):
    rows = plot.read_csv(os.path.join(folder, name))
    figure, panels = plt.subplots(
        1, len(_HANDOFFS), figsize=(9, 3.6), sharex=True, sharey=True,
        layout='constrained')
    for handoff, axes in zip(_HANDOFFS, panels):
      draw(axes, [row for row in rows if row['handoff'] == handoff])
      axes.set_title(f'--handoff={handoff}')
      axes.grid(alpha=0.3)
      axes.set_axisbelow(True)
    panels[0].legend(frameon=False)
    figure.savefig(
        os.path.join(folder, f'{os.path.splitext(name)[0]}.png'), dpi=120)
    plt.close(figure)


def _label(load: int) -> str:
  return f'{load} busy loop{"" if load == 1 else "s"}'


def _draw_curves(axes: Any, rows: _Rows) -> None:
  for load, color in zip(_LOADS, _COLORS):
    curves = collections.defaultdict(list)
    for row in rows:
      if row['busy_loops'] == str(load) and row['episode_return']:
        curves[row['rerun']].append(
            (int(row['steps']) / 1000, float(row['episode_return'])))
    for rerun, points in curves.items():
      # Lines that coincide must be seen to: the lower ones are wider.
      axes.plot(*zip(*points), color=color, alpha=0.8,
                linewidth=1.2 + 2 * (len(_LOADS) - 1 - load),
                label=None if int(rerun) else _label(load))
  axes.set(xlabel='environment steps, in thousands',
           ylabel='episode return (mean of the last 100)')


def _draw_lags(axes: Any, rows: _Rows) -> None:
  for load, color in zip(_LOADS, _COLORS):
    counts = collections.Counter()
    for row in rows:
      if row['busy_loops'] == str(load):
        counts[min(int(row['lag']), _MAX_LAG)] += int(row['rollouts'])
    total = sum(counts.values())
    width = 0.8 / len(_LOADS)
    axes.bar([lag + (load - 1) * width for lag in range(_MAX_LAG + 1)],
             [counts[lag] / total for lag in range(_MAX_LAG + 1)],
             width, color=color, label=_label(load))
  axes.set_xticks(
      range(_MAX_LAG + 1),
      [*map(str, range(_MAX_LAG)), f'≥ {_MAX_LAG}'])
  # What is rare must be seen, too.
  axes.set(xlabel='policy lag of a rollout, in versions', yscale='log',
           ylim=(1e-4, 1), ylabel='share of rollouts')


if __name__ == '__main__':
  app.run(main)
