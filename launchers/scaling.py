"""Measures how the speed and the cost of a run grow with its sizes.

    python -m cleanba_acme.launchers.scaling

runs one experiment at other numbers of actors, environments, steps of a rollout
and units of the network, as threads and as processes, leaves `scaling.csv` and
`scaling.png`, and prints how much more CPU a round needs when a size is
doubled. It takes ten minutes per repeat. `--from_csv` runs nothing.
"""

import csv
import os
from typing import Dict, List, Sequence, Tuple

from absl import app
from absl import flags
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import plot
from cleanba_acme.launchers import stopwatch

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', 'docs/performance', 'Where the CSV file and the PNG go.')
_SECONDS = flags.DEFINE_float(
    'seconds', 3., 'How long to watch each run, at least.', lower_bound=1)
_REPEATS = flags.DEFINE_integer(
    'repeats', 2,
    'How often to run them all. The best of each is kept: what else a machine '
    'does can only make a run slower.', lower_bound=1)
_FROM_CSV = flags.DEFINE_bool(
    'from_csv', False, 'Take what the CSV file has, and run nothing.')

_LAUNCHES = ('threads', 'processes')
_BASE = {'num_actors': 2, 'num_envs': 64, 'unroll_length': 64, 'hiddens': 64}
_SWEEPS = {
    'num_actors': (1, 2, 4),
    'num_envs': (8, 16, 32, 64, 128, 256),
    'unroll_length': (16, 32, 64, 128, 256),
    'hiddens': (32, 64, 128, 256),
}
_CSV = 'scaling.csv'
# Columns of the CSV file beside `launch` and the sizes, and which of several
# measurements is the best.
_BEST = {'steps_per_s': max, 'cpu_ms_per_round': min, 'memory_mib': max}


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  exits.run_script('scaling', _make)


def _make() -> int:
  plot.remake(_OUTPUT_DIR.value, _run_all, _report, _FROM_CSV.value)
  return exits.DONE


def _run_all(folder: str) -> None:
  """Makes all runs; writes the CSV file after each repeat."""
  sizes = [{**_BASE, name: value}
           for name, values in _SWEEPS.items() for value in values]
  # The sweeps cross in one point.
  points = {(launch, *row.values()): {'launch': launch, **row}
            for launch in _LAUNCHES for row in sizes}
  for _ in range(_REPEATS.value):
    for point in points.values():
      for column, value in _measure(point).items():
        point[column] = _BEST[column](value, point.get(column, value))
      print(*point.values(), flush=True)
    with open(os.path.join(folder, _CSV), 'w', newline='',
              encoding='utf-8') as file:
      writer = csv.DictWriter(
          file, ['launch', *_BASE, *_BEST], lineterminator='\n')
      writer.writeheader()
      writer.writerows(points.values())


def _measure(point: Dict[str, object]) -> Dict[str, float]:
  hiddens = point['hiddens']
  run = stopwatch.watch([
      '--env=CartPole-v1', f'--launch={point["launch"]}',
      *[f'--{name}={point[name]}' for name in _BASE if name != 'hiddens'],
      f'--network.hiddens={hiddens},{hiddens}'], _SECONDS.value)
  rounds = run.steps / (point['num_envs'] * point['unroll_length'])
  return {
      'steps_per_s': round(run.steps / run.wall_s),
      'cpu_ms_per_round': round(1e3 * run.cpu_s / rounds, 2),
      'memory_mib': round(run.memory_mib)}


def _sweep(
    rows: Sequence[Dict[str, str]], name: str, launch: str, column: str,
) -> List[Tuple[int, float]]:
  """Returns a column against a size, where the other sizes are the usual.

  Args:
    rows: Those of the CSV file.
    name: The size.
    launch: Of which runs.
    column: What is wanted of them.
  """
  others = {**_BASE, 'launch': launch}
  del others[name]
  return sorted(
      (int(row[name]), float(row[column])) for row in rows
      if all(row[other] == str(value) for other, value in others.items()))


def _growths(points: Sequence[Tuple[int, float]]) -> List[Tuple[int, float]]:
  """Returns sizes, and how many times the cost of half the size they have."""
  costs = dict(points)
  return [(size, cost / costs[size // 2])
          for size, cost in points if size // 2 in costs]


def _report(folder: str) -> None:
  rows = plot.read_csv(os.path.join(folder, _CSV))
  print('times the CPU of a round when a size is doubled, to:')
  for name in _SWEEPS:
    for launch in _LAUNCHES:
      grown = _growths(_sweep(rows, name, launch, 'cpu_ms_per_round'))
      print(f'  {name:13} {launch:9}',
            *[f'{size}: {growth:.2f}' for size, growth in grown])
  _draw(folder, rows)


def _draw(folder: str, rows: Sequence[Dict[str, str]]) -> None:
  plt = plot.pyplot()
  figure, panels = plt.subplots(
      1, len(_SWEEPS), figsize=(12, 3.2), sharey=True, layout='constrained')
  for name, axes in zip(_SWEEPS, panels):
    for launch in _LAUNCHES:
      axes.plot(*zip(*_sweep(rows, name, launch, 'steps_per_s')),
                marker='o', label=launch)
    axes.set_xscale('log', base=2)
    axes.set_xticks(_SWEEPS[name], [str(value) for value in _SWEEPS[name]])
    axes.set(xlabel=f'--{name}')
    axes.grid(alpha=0.3)
  panels[0].set(ylabel='steps per second', ylim=(0, None))
  panels[0].legend(frameon=False)
  figure.savefig(os.path.join(folder, 'scaling.png'), dpi=120)
  plt.close(figure)


if __name__ == '__main__':
  app.run(main)
