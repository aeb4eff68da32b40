"""Draws figures of the CSV files of runs and measurements."""

import csv
import os
from typing import Any, Callable, Dict, List


def pyplot() -> Any:
  """Imports matplotlib's pyplot, which takes a while, for drawing to files."""
  import matplotlib  # pylint: disable=g-import-not-at-top
  matplotlib.use('Agg')  # No display: must come before pyplot.
  from matplotlib import pyplot as plt  # pylint: disable=g-import-not-at-top
  return plt


def read_csv(path: str) -> List[Dict[str, Any]]:
  """Returns the rows of a CSV file, their values as text."""
  with open(path, newline='', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def remake(
    folder: str,
    measure: Callable[[str], None],
    draw: Callable[[str], None],
    from_csv: bool,
) -> None:
  """Makes the CSV files of a folder, and the figures of them.

  Args:
    folder: A script's `--output_dir`; made if it doesn't exist.
    measure: Writes the CSV files to it.
    draw: Draws their figures.
    from_csv: Whether only to draw.

  Raises:
    ValueError: The folder's files can't be written or read.
  """
  try:
    os.makedirs(folder, exist_ok=True)
    if not from_csv:
      measure(folder)
    draw(folder)
  except OSError as error:
    raise ValueError(f'--output_dir={folder}: {error}') from error


def plot_returns(progress_path: str, image_path: str) -> bool:
  """Plots `episode_return` against `steps`.

  Args:
    progress_path: A `progress.csv`.
    image_path: The PNG to write.

  Returns:
    Whether there was anything to plot: no episode may have ended yet.
  """
  rows = [(int(row['steps']), float(row['episode_return']))
          for row in read_csv(progress_path) if row['episode_return']]
  if not rows:
    return False
  plt = pyplot()
  figure, axes = plt.subplots(figsize=(6.4, 4), layout='constrained')
  axes.plot(*zip(*rows))
  axes.set(xlabel='environment steps',
           ylabel='episode return (mean of the last 100 episodes)')
  axes.grid(alpha=0.3)
  figure.savefig(image_path, dpi=120)
  plt.close(figure)
  return True
