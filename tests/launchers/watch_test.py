"""A run without updates is noticed, and one with updates left alone."""

import time

from cleanba_acme.launchers import exits
from cleanba_acme.launchers import session
from cleanba_acme.launchers import watch as watch_lib
import pytest

_LIMIT_S = 0.2


@pytest.fixture(name='watch')
def _watch(tmp_path, monkeypatch):
  monkeypatch.setattr(watch_lib, '_PATIENCE_S', 0.)
  monkeypatch.setattr(watch_lib, '_START_S', 3 * _LIMIT_S)
  return watch_lib.Watch(
      session.Session(str(tmp_path), 'token', hang_timeout_s=_LIMIT_S))


def _check_for(watch, seconds):
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    watch.check()
    time.sleep(0.01)


def test_updates_are_signs_of_life(watch, tmp_path):
  with open(tmp_path / 'ledger.csv', 'a', encoding='utf-8') as ledger:
    for row in range(8):
      ledger.write(f'{row}\n')
      ledger.flush()
      _check_for(watch, _LIMIT_S / 4)
  with pytest.raises(exits.NodeFailed) as error:
    _check_for(watch, 60.)
  assert error.value.status == exits.HUNG
  assert 'no update for 0 s' in error.value.explain()


def test_start_may_take_longer(watch):
  _check_for(watch, 2 * _LIMIT_S)
  with pytest.raises(exits.NodeFailed):
    _check_for(watch, 60.)
