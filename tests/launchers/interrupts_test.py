"""Ctrl-C ends a program that is deaf to it."""

import signal
import subprocess
import sys
import time

from cleanba_acme.launchers import exits
import pytest

_BEGIN = """
import ctypes, time
from cleanba_acme.launchers import interrupts
interrupts._LIMIT_S = 0.5
came = interrupts.Interrupts()
came.start()
came.can_stop = {can_stop}
print('ready', flush=True)
"""
# Of C's own, so that Python's handler never gets its turn.
_DEADLOCK = """
mutex = ctypes.create_string_buffer(64)
for _ in range(2):
  ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
_SWALLOW = """
class Swallow:
  def __del__(self):
    time.sleep(60)
Swallow()
time.sleep(60)
"""
_STOP = """
try:
  time.sleep(60)
except KeyboardInterrupt:
  print('stopped', came.came)
"""


@pytest.mark.parametrize('can_stop, script, status, output', [
    (True, _STOP, exits.DONE, 'stopped True\n'),
    (False, _STOP, exits.INTERRUPTED, ''),
    (True, _DEADLOCK, exits.INTERRUPTED, ''),
    (True, _SWALLOW, exits.INTERRUPTED, ''),
])
def test_interrupt(can_stop, script, status, output):
  with subprocess.Popen(
      [sys.executable, '-c', _BEGIN.format(can_stop=can_stop) + script],
      env={'PYTHONPATH': ':'.join(filter(None, sys.path))},
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
    assert process.stdout.readline() == 'ready\n'
    time.sleep(0.2)  # Until it is in the last statement.
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == status
    assert process.stdout.read() == output
