"""Measures speed, CPU time and memory of a run from outside."""

import csv
import os
import pathlib
import statistics
import tempfile
from typing import Dict, List, NamedTuple, Sequence

from cleanba_acme import ledger
from cleanba_acme.testing import programs

# A flag of runs that are ended by whoever watches them.
ENDLESS = '--total_steps=1000000000'
# How long a run may take to get going, or a round to end.
START_S = 600.

# Rounds before the watch begins: compilation, first touches of memory.
_WARM_UP_ROUNDS = 2
# Rounds to watch, however long they are.
_MIN_ROUNDS = 2
_TICKS = os.sysconf('SC_CLK_TCK')


class Run(NamedTuple):
  """A run that was watched for a while.

  Attributes:
    steps: Environment steps meanwhile.
    wall_s: Seconds meanwhile.
    cpu_s: CPU seconds of all its processes.
    memory_mib: Their resident memory at the end, shared pages counted once for
      each.
    update_s: Seconds of an update, on average.
    gate_wait_s: Seconds that the learner waited for a round, on average.
  """
  steps: int
  wall_s: float
  cpu_s: float
  memory_mib: float
  update_s: float
  gate_wait_s: float


def watch(train_flags: Sequence[str], seconds: float) -> Run:
  """Runs the train script until it has been watched for so long, and kills it.

  Args:
    train_flags: The script's flags but `--total_steps`.
    seconds: How long to watch it at least, after a few rounds to warm up.

  Raises:
    AssertionError: It ended.
  """
  with tempfile.TemporaryDirectory() as folder:
    progress = os.path.join(folder, 'progress.csv')

    def rows() -> List[Dict[str, str]]:
      try:
        return list(csv.DictReader(ledger.read_whole_lines(progress)))
      except FileNotFoundError:
        return []

    with programs.Program(
        programs.TRAIN, *train_flags, ENDLESS,
        f'--output_dir={folder}') as program:
      program.wait_for(lambda: len(rows()) >= _WARM_UP_ROUNDS, START_S)
      first, first_cpu = rows()[-1], _cpu_seconds(program)

      def is_enough() -> bool:
        last = rows()[-1]
        return (
            float(last['seconds']) - float(first['seconds']) >= seconds
            and int(last['update']) - int(first['update']) >= _MIN_ROUNDS)

      program.wait_for(is_enough, START_S + 10 * seconds)
      last, last_cpu = rows()[-1], _cpu_seconds(program)
      memory = _memory_mib(program)
      watched = ledger.read(folder).rows[
          int(first['update']):int(last['update'])]
  mean = lambda column: statistics.fmean(float(row[column]) for row in watched)
  return Run(
      steps=int(last['steps']) - int(first['steps']),
      wall_s=float(last['seconds']) - float(first['seconds']),
      cpu_s=last_cpu - first_cpu,
      memory_mib=memory,
      update_s=mean('update_s'),
      gate_wait_s=mean('gate_wait_s'))


def _cpu_seconds(program: programs.Program) -> float:
  """Returns the CPU seconds of all processes of a program so far."""
  ticks = 0
  for pid in program.processes():
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8')
    fields = stat[stat.rindex(')') + 2:].split()
    ticks += int(fields[11]) + int(fields[12])
  return ticks / _TICKS


def _memory_mib(program: programs.Program) -> float:
  pages = 0
  for pid in program.processes():
    statm = pathlib.Path(f'/proc/{pid}/statm').read_text(encoding='utf-8')
    pages += int(statm.split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE') / 2**20
