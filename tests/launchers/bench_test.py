"""Tests of the bench: its arithmetic, and a whole run of it."""

import json
import re

from cleanba_acme.launchers import bench
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import stopwatch
from cleanba_acme.testing import programs
import pytest

_BENCH = 'cleanba_acme.launchers.bench'


def _measured(policy_lag, num_actors=2):
  """Ten seconds of acting, two of handing over in memory, six of learning."""
  seconds = {
      'environment': 6, 'inference': 3, 'assembly': 1,
      'put and get (memory)': 1, 'put and get (reverb)': 3, 'join': 1,
      'data fingerprint': 1, 'update': 1, 'parameters (memory)': 1,
      'parameters (reverb)': 2, 'fingerprint': 1, 'logging': 1, 'checkpoint': 1}
  return {
      'num_actors': num_actors, 'policy_lag': policy_lag,
      'steps_per_round': 100,
      'parts': {name: {'cpu_s': s, 'wall_s': s}
                for name, s in seconds.items()}}


# With two cores two actors need five seconds for what takes one of them ten.
@pytest.mark.parametrize('policy_lag, num_actors, launch, limit_s, wait_s', [
    (0, 2, 'threads', 5 + 2 + 6, 5 + 2),
    (0, 1, 'threads', 10 + 2 + 6, 10 + 2),
    (0, 4, 'threads', 5 + 2 + 6, 5 + 2),
    (0, 2, 'processes', 5 + 4 + 7, 5 + 4),
    (1, 2, 'threads', (10 + 2 + 6) / 2, 1),
    (1, 1, 'threads', 10, 2),
    (1, 2, 'processes', 4 + 7, 0)])
def test_limit_follows_from_the_parts(
    policy_lag, num_actors, launch, limit_s, wait_s, monkeypatch):
  monkeypatch.setattr(bench, '_CORES', 2)
  run = stopwatch.Run(
      steps=1000, wall_s=200., cpu_s=50., memory_mib=1., update_s=3.,
      gate_wait_s=4.)
  judged = bench.judge(_measured(policy_lag, num_actors), launch, run)
  assert judged['limit_steps_per_s'] == pytest.approx(100 / limit_s)
  assert judged['share_of_limit'] == pytest.approx(5 / (100 / limit_s))
  assert judged['handoff_share_of_cpu'] == pytest.approx(
      2 / 18 if launch == 'threads' else 4 / 21)
  assert judged['busy_cores'] == 0.25
  assert judged['update_over_part'] == 3.
  assert judged['waiting_share'] == pytest.approx(10 * 4 / 200)
  assert judged['limit_waiting_share'] == pytest.approx(wait_s / limit_s)


def test_medians_are_taken_of_numbers_only():
  trees = [{'flags': ['--env=catch'], 'runs': {'threads': {'share': share}}}
           for share in (0.9, 0.1, 0.8)]
  assert bench.median_of(trees) == {
      'flags': ['--env=catch'], 'runs': {'threads': {'share': 0.8}}}


@pytest.mark.parametrize('flags, message', [
    (['--only=pong'], '--only=pong: must be among ppo-resnet'),
    (['--compare=/nowhere.json'], '/nowhere.json: .*No such file'),
    (['--', '--env=catch', '--num_envs=0'], 'num_envs=0: must be at least 1')])
def test_what_is_wrong_is_said_at_once(flags, message):
  with programs.Program(_BENCH, *flags) as program:
    ended = program.wait()
  assert ended.status == exits.USER_ERROR
  assert len(ended.output.strip().splitlines()) < 5
  assert re.search(f'bench: .*{message}', ended.output)


@pytest.mark.slow
def test_bench_of_a_small_experiment(tmp_path):
  path, plot = tmp_path / 'bench.json', tmp_path / 'bench.png'
  flags = ['--seconds=1', f'--json={path}', f'--plot={plot}', '--',
           '--env=catch', '--num_envs=8', '--unroll_length=8',
           '--network.hiddens=(8,)']
  with programs.Program(_BENCH, *flags) as program:
    ended = program.wait(300.)
  assert ended.status == exits.DONE, ended.output
  assert not ended.left_over
  assert plot.stat().st_size
  measured = json.loads(path.read_text())['experiments']['yours']
  assert all(cost['cpu_s'] > 0 for cost in measured['parts'].values())
  for launch in ('threads', 'processes'):
    # A part that was forgotten would let the run need more than it should.
    run = measured['runs'][launch]
    assert 0 < run['share_of_limit'] < 2
    assert 0 < run['waiting_share'] < 1
    assert run['update_over_part'] > 0.5  # Not of another run, nor of a round.
