"""The soak script finds nothing wrong, in a short version of what it does."""

import re

from cleanba_acme.launchers import exits
from cleanba_acme.testing import programs
import pytest

_SOAK = 'cleanba_acme.launchers.soak'


def _assert_well(ended, num_kills):
  assert ended.status == exits.DONE, ended.output
  assert not ended.left_over
  assert len(re.findall(
      r'^\w+ +killed .* had ended after', ended.output, re.M)) == num_kills
  assert 'updates are there once, and identical' in ended.output


@pytest.mark.timeout(400)
def test_two_kills():
  with programs.Program(
      _SOAK, '--kills=1', '--victims=launcher,learner') as program:
    _assert_well(program.wait(380), num_kills=2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_kills_of_each():
  with programs.Program(_SOAK, '--kills=2', '--seed=1') as program:
    _assert_well(program.wait(1180), num_kills=8)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_restarts():
  with programs.Program(
      _SOAK, '--kills=3', '--victims=actor', '--updates_per_kill=50',
      '--max_restarts=10') as program:
    _assert_well(program.wait(1180), num_kills=3)


@pytest.mark.parametrize('flag, words', [
    ('--max_restarts=1', 'with --max_restarts it must be without launcher'),
    ('--victims=me', '--victims=me: must be of launcher, actor'),
    ('--output_dir=.', '--output_dir=.: must be empty'),
])
def test_wrong_arguments(flag, words):
  with programs.Program(_SOAK, flag) as program:
    ended = program.wait()
  assert ended.status == exits.USER_ERROR
  assert words in ended.output
  assert 'Traceback' not in ended.output
