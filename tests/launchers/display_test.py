"""Tests of what a user sees of a run."""

import io
import time

from cleanba_acme.launchers import display
import pytest

_HEADER = 'update,steps,seconds,sps,episode_return,loss\n'
_ROWS = ('1,100,2,50,,0.5\n', '2,200,4,50,-1.25,0.5\n')


class _Terminal(io.StringIO):

  def isatty(self):
    return True


@pytest.mark.parametrize('text, expected', [
    ('', None),
    ('update,st', None),
    (_HEADER, None),
    (_HEADER + '1,10', None),
    (_HEADER + _ROWS[0], '1'),
    (_HEADER + _ROWS[0] + '2,200,4', '1'),
    (_HEADER + ''.join(_ROWS), '2'),
    (_HEADER + ''.join(f'{i},1,1,1,1,0.5\n' for i in range(2000)), '1999'),
])
def test_last_whole_row(text, expected, tmp_path):
  path = tmp_path / 'progress.csv'
  path.write_text(text)
  row = display.read_last_row(str(path))
  assert (row and row['update']) == expected


def test_file_that_does_not_exist_yet(tmp_path):
  assert display.read_last_row(str(tmp_path / 'progress.csv')) is None


def test_line(tmp_path):
  path = tmp_path / 'progress.csv'
  path.write_text(_HEADER + _ROWS[0])
  row = display.read_last_row(str(path))
  # One update of four took two seconds.
  assert display.format_row(row, 4) == (
      'update 1/4  steps 100  50 steps/s  return -  ETA 0:00:06')
  path.write_text(_HEADER + ''.join(_ROWS))
  row = display.read_last_row(str(path))
  assert display.format_row(row, 4) == (
      'update 2/4  steps 200  50 steps/s  return -1.25  ETA 0:00:04')


@pytest.mark.parametrize('stream, expected', [
    (io.StringIO, '{}\n'), (_Terminal, '\r{}\x1b[K\n')])
def test_the_last_row_is_shown_once_at_the_end(stream, expected, tmp_path):
  path, stream = tmp_path / 'progress.csv', stream()
  with display.Display(str(path), 2, stream):
    path.write_text(_HEADER + ''.join(_ROWS))
  line = 'update 2/2  steps 200  50 steps/s  return -1.25  ETA 0:00:00'
  assert stream.getvalue() == expected.format(line)


@pytest.mark.parametrize('stream', [io.StringIO, _Terminal])
def test_run_without_an_update_shows_nothing(stream, tmp_path):
  stream = stream()
  with display.Display(str(tmp_path / 'progress.csv'), 2, stream):
    pass
  assert not stream.getvalue()


@pytest.mark.parametrize('stream, expected', [
    (io.StringIO, '{0}\nhi\n'),
    (_Terminal, '\r{0}\x1b[K\rhi\x1b[K\n\r{0}\x1b[K\n')])
def test_a_line_is_said_above_the_live_one(stream, expected, tmp_path):
  path, stream = tmp_path / 'progress.csv', stream()
  path.write_text(_HEADER + _ROWS[0])
  line = 'update 1/4  steps 100  50 steps/s  return -  ETA 0:00:06'
  with display.Display(str(path), 4, stream) as shown:
    while line not in stream.getvalue():
      time.sleep(0.01)
    shown.say('hi')
  assert stream.getvalue() == expected.format(line)
