"""Draws the learning curve of a run."""

import csv

import matplotlib
matplotlib.use('Agg')  # No display: must come before pyplot.
from matplotlib import pyplot as plt  # pylint: disable=g-import-not-at-top,wrong-import-position


def plot_returns(progress_path: str, image_path: str) -> bool:
  """Plots `episode_return` against `steps`.

  Args:
    progress_path: A `progress.csv`.
    image_path: The PNG to write.

  Returns:
    Whether there was anything to plot: no episode may have ended yet.
  """
  with open(progress_path, newline='', encoding='utf-8') as file:
    rows = [(int(row['steps']), float(row['episode_return']))
            for row in csv.DictReader(file) if row['episode_return']]
  if not rows:
    return False
  figure, axes = plt.subplots(figsize=(6.4, 4), layout='constrained')
  axes.plot(*zip(*rows))
  axes.set(xlabel='environment steps',
           ylabel='episode return (mean of the last 100 episodes)')
  axes.grid(alpha=0.3)
  figure.savefig(image_path, dpi=120)
  plt.close(figure)
  return True
