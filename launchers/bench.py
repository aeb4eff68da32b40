"""Measures how near runs come to what the machine allows.

    python -m cleanba_acme.launchers.bench [--only=NAME,...] [-- TRAIN FLAGS]

For each experiment it measures every part alone (`parts`), adds the parts up to
the limit, measures a real run as threads and as processes, and prints both side
by side. All in one run, because absolute times are noisy.

The limit of a round, in wall seconds: with lag 0, where acting and learning
take turns, the time of one actor's parts (times actors over cores, if there are
more) and of the learner's; with lag 1 the larger of the two, or all CPU seconds
over the cores if that is more. Handing over counts on both sides.

What keeps a run from its limit shows in its ledger: how long an update takes
there, against the part alone, and how much of the time the learner waits for
its actors, against the limit's.

`--json` keeps the numbers, `--compare` prints ratios to an earlier file, and
`--plot` draws where a round's time goes.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from absl import app
from absl import flags
from cleanba_acme.launchers import exits
from cleanba_acme.launchers import plot
from cleanba_acme.launchers import resources
from cleanba_acme.launchers import stopwatch
from cleanba_acme.launchers import trials
from cleanba_acme.testing import programs

_MLP = '--network.torso=resnet --network.channels=() --network.hiddens=64,'
_BREAKOUT = '--env=Breakout-v5 --num_envs=8 --num_actors=2'
EXPERIMENTS = {
    'ppo-resnet': f'--agent=ppo {_BREAKOUT}',
    'impala-resnet': f'--agent=impala {_BREAKOUT}',
    'ppo-mlp': f'--agent=ppo {_BREAKOUT} {_MLP}',
    'impala-mlp': f'--agent=impala {_BREAKOUT} {_MLP}',
    'ppo-cartpole':
        '--agent=ppo --env=CartPole-v1 --num_envs=64 --num_actors=2',
}
_LAUNCHES = ('threads', 'processes')
# Which worker does what, in the order of a round.
_ACTOR = ('environment', 'inference', 'assembly')
_HANDOFF = ('put and get', 'join')
_LEARNER = (
    'data fingerprint', 'update', 'parameters', 'fingerprint', 'logging',
    'checkpoint')

_ONLY = flags.DEFINE_list(
    'only', [], f'Which of {", ".join(EXPERIMENTS)}; all by default.')
_SECONDS = flags.DEFINE_float(
    'seconds', 15., 'How long to watch a run, at least.', lower_bound=1)
_REPEATS = flags.DEFINE_integer(
    'repeats', 1,
    'How often to measure parts and runs, in turns; what is printed last, and '
    'kept, are the medians.', lower_bound=1)
_START_UP = flags.DEFINE_bool(
    'start_up', False,
    'Also time imports, --help, and a run\'s first update with a cold and a '
    'warm compilation cache.')
_JSON_PATH = flags.DEFINE_string(
    'json', None, 'Where to keep the numbers.')
_COMPARE = flags.DEFINE_string(
    'compare', None, 'An earlier --json, to print ratios to.')
_PLOT = flags.DEFINE_string('plot', None, 'Where to draw the parts.')

_CORES = resources.num_cores()
_START_UP_REPEATS = 3


def main(argv: Sequence[str]) -> None:

  def work() -> int:
    report = _bench(list(argv[1:]))
    if _JSON_PATH.value:
      with open(_JSON_PATH.value, 'w', encoding='utf-8') as file:
        json.dump(report, file, indent=2)
    if _PLOT.value:
      _draw(report, _PLOT.value)
    if _COMPARE.value:
      _compare(report, _read(_COMPARE.value))
    return exits.DONE

  exits.run_script('bench', work)


def _bench(train_flags: List[str]) -> Dict[str, Any]:
  """Measures what the flags say, and prints it."""
  for name in _ONLY.value:
    if name not in EXPERIMENTS:
      raise ValueError(
          f'--only={name}: must be among {", ".join(EXPERIMENTS)}')
  if _COMPARE.value:
    _read(_COMPARE.value)  # Now, not after minutes.
  chosen = {
      name: shlex.split(EXPERIMENTS[name])
      for name in _ONLY.value or EXPERIMENTS}
  if train_flags:
    chosen = {'yours': train_flags}
  report = {'cores': _CORES, 'experiments': {}}
  if _START_UP.value:
    report['start_up'] = _time_start_up(next(iter(chosen.values())))
  print('CPU and wall are milliseconds per 1,000 environment steps; '
        f'{_CORES} cores')
  for name, flag_list in chosen.items():
    print(f'\n{name}: {shlex.join(flag_list)}', flush=True)
    measured = [_measure(flag_list) for _ in range(_REPEATS.value)]
    report['experiments'][name] = median_of(measured)
    if len(measured) > 1:
      print(f'  medians of {len(measured)}:')
      _print_measured(report['experiments'][name])
  return report


def _measure(train_flags: List[str]) -> Dict[str, Any]:
  """Measures and prints the parts, and a run under every launcher."""
  measured = _measure_parts(train_flags)
  measured['flags'] = train_flags
  measured['runs'] = {}
  for launch in _LAUNCHES:
    run = stopwatch.watch([*train_flags, f'--launch={launch}'], _SECONDS.value)
    measured['runs'][launch] = judge(measured, launch, run)
  _print_measured(measured)
  return measured


def median_of(trees: Sequence[Any]) -> Any:
  """Returns a tree of dicts of the medians of several; others are alike."""
  if isinstance(trees[0], dict):
    return {key: median_of([tree[key] for tree in trees]) for key in trees[0]}
  if isinstance(trees[0], float):
    return statistics.median(trees)
  return trees[0]


def _measure_parts(train_flags: Sequence[str]) -> Dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'parts.json')
    with programs.Program(
        'cleanba_acme.launchers.parts', f'--parts_json={path}',
        *train_flags) as program:
      ended = program.wait(stopwatch.START_S)
    if ended.status == exits.USER_ERROR:
      raise ValueError(ended.output.strip().splitlines()[-1])
    assert ended.status == exits.DONE, ended.output
    return _read(path)


def _parts_of(
    measured: Dict[str, Any], launch: str
) -> Dict[str, Tuple[str, Dict[str, float]]]:
  """Returns side and costs of the parts that a launch has."""
  channel = 'memory' if launch == 'threads' else 'reverb'
  sides = {
      **dict.fromkeys(_ACTOR, 'actor'),
      **dict.fromkeys(_HANDOFF, 'handoff'),
      **dict.fromkeys(_LEARNER, 'learner')}
  return {
      name: (side, measured['parts'].get(
          name, measured['parts'].get(f'{name} ({channel})')))
      for name, side in sides.items()}


def judge(
    measured: Dict[str, Any], launch: str, run: stopwatch.Run
) -> Dict[str, float]:
  """Compares a run with the limit that follows from the parts.

  Args:
    measured: What `parts` wrote.
    launch: Which parts count: those of threads, or of processes.
    run: The run.

  Returns:
    Numbers by name; shares are of 1.
  """
  of_launch = _parts_of(measured, launch)

  def total(what: str, *sides: str) -> float:
    return sum(cost[what] for side, cost in of_launch.values()
               if side in sides)

  actors = measured['num_actors']
  # The parts' times are those of all actors, one after the other.
  acting = total('wall_s', 'actor') / min(actors, _CORES)
  learning = total('wall_s', 'learner')
  handing_over = total('wall_s', 'handoff')
  cpu = total('cpu_s', 'actor', 'handoff', 'learner')
  if measured['policy_lag']:
    limit_s = max(acting, learning + handing_over, cpu / _CORES)
  else:
    limit_s = acting + handing_over + learning
  # With a lag, the learner takes over a round while it learns the one before.
  expected_wait_s = limit_s - learning - (
      handing_over if measured['policy_lag'] else 0)
  steps = measured['steps_per_round']
  rounds = run.steps / steps
  return {
      'steps_per_s': run.steps / run.wall_s,
      'limit_steps_per_s': steps / limit_s,
      'share_of_limit': run.steps / run.wall_s / (steps / limit_s),
      'cpu_ms_per_1000': 1e6 * run.cpu_s / run.steps,
      'parts_cpu_ms_per_1000': 1e6 * cpu / steps,
      'handoff_share_of_cpu': total('cpu_s', 'handoff') / cpu,
      'busy_cores': run.cpu_s / run.wall_s,
      'memory_mib': run.memory_mib,
      'update_over_part': run.update_s / measured['parts']['update']['wall_s'],
      'waiting_share': run.gate_wait_s * rounds / run.wall_s,
      'limit_waiting_share': expected_wait_s / limit_s,
  }


def _print_measured(measured: Dict[str, Any]) -> None:
  steps = measured['steps_per_round']
  print(f'  {"part":24} {"CPU":>10} {"wall":>10}')
  for name, cost in measured['parts'].items():
    print(f'  {name:24} {1e6 * cost["cpu_s"] / steps:10.3f} '
          f'{1e6 * cost["wall_s"] / steps:10.3f}')
  print(f'  an actor\'s item: {measured["item_bytes"] / 2**20:.2f} MiB; '
        f'{measured["threads_per_worker"]} threads per worker')
  for launch, run in measured['runs'].items():
    _print_run(launch, run)


def _print_run(launch: str, run: Dict[str, float]) -> None:
  print(f'  {launch:10} {run["steps_per_s"]:9.0f} steps/s of '
        f'{run["limit_steps_per_s"]:.0f}: {run["share_of_limit"]:.2f}; '
        f'CPU {run["cpu_ms_per_1000"]:.0f} '
        f'(parts {run["parts_cpu_ms_per_1000"]:.0f}, handoff '
        f'{run["handoff_share_of_cpu"]:.1%}), '
        f'{run["busy_cores"]:.2f} cores busy, {run["memory_mib"]:.0f} MiB\n'
        f'  {"":10} an update takes {run["update_over_part"]:.2f} times its '
        f'part; waiting for actors {run["waiting_share"]:.0%} of the time, '
        f'{run["limit_waiting_share"]:.0%} at the limit', flush=True)


def _time_start_up(train_flags: Sequence[str]) -> Dict[str, float]:
  """Times what a user waits for before the first update, in seconds."""
  times = {}
  for name, code in (
      ('import cleanba_acme', 'import cleanba_acme'),
      ('train --help', 'import sys; sys.argv[1:] = ["--help"]; import runpy; '
       'runpy.run_module("cleanba_acme.launchers.train", run_name="__main__")'),
  ):
    times[name] = statistics.median(
        _time_python(code) for _ in range(_START_UP_REPEATS))
  with tempfile.TemporaryDirectory() as cache:
    for name in ('first update, cold cache', 'first update, warm cache'):
      with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with programs.Program(
            programs.TRAIN, *train_flags, stopwatch.ENDLESS,
            f'--output_dir={folder}',
            env={'XDG_CACHE_HOME': cache}) as program:
          program.wait_for(
              lambda: trials.count_updates(folder) >= 1,  # pylint: disable=cell-var-from-loop
              stopwatch.START_S)
          times[name] = time.perf_counter() - begin
  for name, seconds in times.items():
    print(f'{name:28} {seconds:6.2f} s', flush=True)
  return times


def _time_python(code: str) -> float:
  begin = time.perf_counter()
  subprocess.run([sys.executable, '-c', code], check=False,
                 stdout=subprocess.DEVNULL)
  return time.perf_counter() - begin


def _read(path: str) -> Dict[str, Any]:
  try:
    with open(path, encoding='utf-8') as file:
      return json.load(file)
  except (OSError, ValueError) as error:
    raise ValueError(f'{path}: {error}') from error


def _compare(now: Dict[str, Any], before: Dict[str, Any]) -> None:
  """Prints CPU and speed against an earlier report."""
  print(f'\nagainst {_COMPARE.value}: times as much')
  for name, measured in now['experiments'].items():
    other: Optional[Dict[str, Any]] = before.get('experiments', {}).get(name)
    if other is None:
      print(f'  {name}: not there')
      continue
    for part, cost in measured['parts'].items():
      if part in other['parts']:
        ratio = cost['cpu_s'] / max(other['parts'][part]['cpu_s'], 1e-9)
        print(f'  {name:15} {part:24} CPU     {ratio:6.2f}')
    for launch, run in measured['runs'].items():
      ratio = run['steps_per_s'] / other['runs'][launch]['steps_per_s']
      print(f'  {name:15} {launch:24} steps/s {ratio:6.2f}')


def _draw(report: Dict[str, Any], path: str) -> None:
  """Draws where a round's CPU time goes."""
  plt = plot.pyplot()
  figure, axes = plt.subplots(figsize=(9, 3.6), layout='constrained')
  names = list(report['experiments'])
  left = [0.0] * len(names)
  of_all = [
      _parts_of(report['experiments'][name], 'processes') for name in names]
  for i, part in enumerate(of_all[0]):
    shares = [
        of_one[part][1]['cpu_s'] / sum(c['cpu_s'] for _, c in of_one.values())
        for of_one in of_all]
    axes.barh(names, shares, left=left, label=part,
              color=plt.get_cmap('tab20')(i))
    left = [a + b for a, b in zip(left, shares)]
  axes.set(xlim=(0, 1), xlabel='share of a round\'s CPU time, as processes')
  axes.legend(frameon=False, loc='center left', bbox_to_anchor=(1, 0.5))
  figure.savefig(path, dpi=120)
  plt.close(figure)


if __name__ == '__main__':
  app.run(main)
