"""Measures how the speed of a run grows with its sizes.

    python -m cleanba_acme.launchers.scaling

runs one experiment at other numbers of actors, environments, steps of a rollout
and units of the network, as threads and as processes, and leaves
`scaling.csv` and `scaling.png`. It takes some minutes. `--from_csv` only draws
the figure again.
"""

import csv
import os
from typing import Dict, List, Sequence

from absl import app
from absl import flags
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import plot
from cleanba_acme.launchers import stopwatch

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', 'docs/performance', 'Where the CSV file and the PNG go.')
_SECONDS = flags.DEFINE_float(
    'seconds', 5., 'How long to watch each run, at least.', lower_bound=1)
_FROM_CSV = flags.DEFINE_bool(
    'from_csv', False, 'Draw what the CSV file has, and run nothing.')

_LAUNCHES = ('threads', 'processes')
_BASE = {'num_actors': 2, 'num_envs': 64, 'unroll_length': 64, 'hiddens': 64}
_SWEEPS = {
    'num_actors': (1, 2, 4),
    'num_envs': (8, 16, 32, 64, 128, 256),
    'unroll_length': (16, 32, 64, 128, 256),
    'hiddens': (32, 64, 128, 256),
}
_CSV = 'scaling.csv'


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  exits.run_script('scaling', _make)


def _make() -> int:
  plot.remake(_OUTPUT_DIR.value, _run_all, _draw, _FROM_CSV.value)
  return exits.DONE


def _make_flags(sizes: Dict[str, int]) -> List[str]:
  return [
      '--env=CartPole-v1',
      *[f'--{name}={value}' for name, value in sizes.items()
        if name != 'hiddens'],
      f'--network.hiddens={sizes["hiddens"]},{sizes["hiddens"]}']


def _run_all(folder: str) -> None:
  """Makes all runs and writes the CSV file, a row as soon as it is known."""
  with open(os.path.join(folder, _CSV), 'w', newline='',
            encoding='utf-8') as file:
    writer = None
    for name, values in _SWEEPS.items():
      for launch in _LAUNCHES:
        for value in values:
          sizes = {**_BASE, name: value}
          run = stopwatch.watch(
              [*_make_flags(sizes), f'--launch={launch}'], _SECONDS.value)
          steps = sizes['num_envs'] * sizes['unroll_length']
          row = {
              'swept': name, 'launch': launch, **sizes,
              'steps_per_s': round(run.steps / run.wall_s),
              'cpu_ms_per_round': round(1e3 * run.cpu_s / run.steps * steps, 2),
              'memory_mib': round(run.memory_mib)}
          if writer is None:
            writer = csv.DictWriter(file, list(row), lineterminator='\n')
            writer.writeheader()
          writer.writerow(row)
          file.flush()
          print(*row.values(), flush=True)


def _draw(folder: str) -> None:
  plt = plot.pyplot()
  rows = plot.read_csv(os.path.join(folder, _CSV))
  figure, panels = plt.subplots(
      1, len(_SWEEPS), figsize=(12, 3.2), sharey=True, layout='constrained')
  for name, axes in zip(_SWEEPS, panels):
    for launch in _LAUNCHES:
      points = [
          (int(row[name]), int(row['steps_per_s'])) for row in rows
          if row['swept'] == name and row['launch'] == launch]
      axes.plot(*zip(*points), marker='o', label=launch)
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
