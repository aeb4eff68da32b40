"""Runs the code of docs/custom_agent.md, under both launchers."""

import csv
import os
import pathlib
import re
import subprocess
import sys

from cleanba_acme.testing import programs
import pytest

_PAGE = pathlib.Path(__file__).absolute().parents[2] / 'docs/custom_agent.md'
_MAX_LINES = 80


def _blocks():
  """Returns the Python blocks: the agent's three, and its test."""
  text = _PAGE.read_text(encoding='utf-8')
  *agent, test = re.findall(r'^```python\n(.*?)^```$', text, re.M | re.S)
  assert len(agent) == 3
  return '\n\n'.join(agent), test


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('custom_agent')
  agent, test = _blocks()
  (folder / 'my_agent.py').write_text(agent, encoding='utf-8')
  (folder / 'my_agent_test.py').write_text(test, encoding='utf-8')
  return folder


def _path_with(folder):
  return os.pathsep.join([str(folder), *filter(None, sys.path)])


def _run(folder, launch):
  """Returns the fingerprints and the last mean return."""
  output_dir = folder / launch
  with programs.Program('my_agent', launch, str(output_dir),
                        env={'PYTHONPATH': _path_with(folder)}) as program:
    ended = program.wait(120.)
  assert ended.status == 0, ended.output
  assert not ended.left_over
  ledger, progress = [
      list(csv.DictReader((output_dir / name).read_text().splitlines()))
      for name in ('ledger.csv', 'progress.csv')]
  return ([row['fingerprint'] for row in ledger],
          float(progress[-1]['episode_return']))


def test_agent_is_short_enough():
  agent, _ = _blocks()
  assert sum(bool(line.strip()) for line in agent.splitlines()) < _MAX_LINES


def test_both_launchers_learn_the_same(folder):
  fingerprints, mean_return = _run(folder, 'threads')
  assert len(fingerprints) == 20_000 // 256
  # Chance is one half.
  assert mean_return > 0.95
  assert _run(folder, 'processes') == (fingerprints, mean_return)


def test_agent_conforms(folder):
  ended = subprocess.run(
      [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
       str(folder / 'my_agent_test.py')],
      cwd=folder, env={**os.environ, 'PYTHONPATH': _path_with(folder)},
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
      check=False)
  assert ended.returncode == 0, ended.stdout
  assert '10 passed' in ended.stdout
