"""Tests of the script that measures how runs grow with their sizes."""

import csv
import re

from cleanba_acme.launchers import exits
from cleanba_acme.testing import programs

_SCALING = 'cleanba_acme.launchers.scaling'
_COLUMNS = ('launch', 'num_actors', 'num_envs', 'unroll_length', 'hiddens',
            'steps_per_s', 'cpu_ms_per_round', 'memory_mib')


def _rows():
  """Costs of a round: a constant, and so much per step and launch."""
  rows = []
  for launch, per_step in ('threads', 1), ('processes', 2):
    for actors, envs, length, hiddens in (
        (2, 64, 64, 64), (1, 64, 64, 64), (4, 64, 64, 64), (2, 32, 64, 64),
        (2, 128, 64, 64), (2, 64, 32, 64), (2, 64, 64, 128)):
      cost = 1024 + per_step * envs * length
      rows.append(dict(zip(_COLUMNS, map(str, (
          launch, actors, envs, length, hiddens, 1000 + envs, cost, 1)))))
  return rows


def test_what_was_measured_is_reported_again(tmp_path):
  with open(tmp_path / 'scaling.csv', 'w', newline='') as file:
    writer = csv.DictWriter(file, _COLUMNS)
    writer.writeheader()
    writer.writerows(_rows())
  with programs.Program(
      _SCALING, '--from_csv', f'--output_dir={tmp_path}') as program:
    ended = program.wait()
  assert ended.status == exits.DONE, ended.output
  # A sweep changes one size, of one launch; growth is against half the size.
  for name, launch, grown in (
      ('num_actors', 'threads', '2: 1.00 4: 1.00'),
      ('num_envs', 'threads', '64: 1.67 128: 1.80'),
      ('num_envs', 'processes', '64: 1.80 128: 1.89'),
      ('unroll_length', 'threads', '64: 1.67'),
      ('unroll_length', 'processes', '64: 1.80'),
      ('hiddens', 'processes', '128: 1.00')):
    assert re.search(
        rf'^ *{name} +{launch} +{re.escape(grown)}$', ended.output, re.M), (
            ended.output)
  assert (tmp_path / 'scaling.png').stat().st_size


def test_a_folder_without_measurements_is_an_error(tmp_path):
  with programs.Program(
      _SCALING, '--from_csv', f'--output_dir={tmp_path}') as program:
    ended = program.wait()
  assert ended.status == exits.USER_ERROR
  assert f'--output_dir={tmp_path}' in ended.output
