"""Tests of the files that a run's numbers go to."""

import csv

from cleanba_acme import loggers
import pytest
from tensorboard.backend.event_processing import event_accumulator


def _read(path):
  with open(path, newline='', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def _row(update, **others):
  return {'update': update, 'steps': update * 10, **others}


def _points(directory, tag):
  events = event_accumulator.EventAccumulator(str(directory))
  events.Reload()
  if tag not in events.Tags()['scalars']:
    return []
  return [(event.step, event.value) for event in events.Scalars(tag)]


def test_rows_are_on_disk_before_the_file_is_closed(tmp_path):
  logger = loggers.CsvLogger(str(tmp_path / 'log.csv'))
  for update in range(1, 4):
    logger.write(_row(update, loss=update / 3, fingerprint='0a', note=None))
    rows = _read(tmp_path / 'log.csv')
    assert len(rows) == update
  assert rows[-1] == {
      'update': '3', 'steps': '30', 'loss': '1', 'fingerprint': '0a',
      'note': ''}
  assert rows[0]['loss'] == '0.333333'
  logger.close()
  assert _read(tmp_path / 'log.csv') == rows


def test_no_value_yet_and_later_one(tmp_path):
  logger = loggers.CsvLogger(str(tmp_path / 'log.csv'))
  logger.write(_row(1, episode_return=None))
  logger.write(_row(2, episode_return=-1.5))
  logger.close()
  assert [row['episode_return'] for row in _read(tmp_path / 'log.csv')] == [
      '', '-1.5']


def test_resumed_file_drops_what_comes_again_and_what_was_torn(tmp_path):
  path = tmp_path / 'log.csv'
  logger = loggers.CsvLogger(str(path))
  for update in range(1, 6):
    logger.write(_row(update, loss=0.5))
  logger.close()
  with open(path, 'a', encoding='utf-8') as file:
    file.write('6,6')
  logger = loggers.CsvLogger(str(path), last_update=3)
  assert [row['update'] for row in _read(path)] == ['1', '2', '3']
  logger.write(_row(4, loss=0.25))
  logger.close()
  assert [(row['update'], row['loss']) for row in _read(path)] == [
      ('1', '0.5'), ('2', '0.5'), ('3', '0.5'), ('4', '0.25')]


def test_run_from_the_start_leaves_nothing_of_an_earlier_one(tmp_path):
  path = tmp_path / 'log.csv'
  logger = loggers.CsvLogger(str(path))
  logger.write(_row(1, old=1))
  logger.close()
  logger = loggers.CsvLogger(str(path))
  logger.write(_row(1, new=2))
  logger.close()
  assert _read(path) == [{'update': '1', 'steps': '10', 'new': '2'}]


def test_tensorboard_has_every_row_if_there_is_time(tmp_path):
  logger = loggers.TensorBoardLogger(str(tmp_path), interval_s=0.)
  for update in range(1, 4):
    logger.write(_row(update, loss=update / 2, note='text', nothing=None))
  logger.close()
  assert _points(tmp_path, 'loss') == [(10, 0.5), (20, 1.), (30, 1.5)]
  assert not _points(tmp_path, 'note') and not _points(tmp_path, 'nothing')


def test_tensorboard_leaves_out_rows_but_not_the_last(tmp_path):
  logger = loggers.TensorBoardLogger(str(tmp_path), interval_s=1000.)
  for update in range(1, 6):
    logger.write(_row(update, loss=update / 2))
  logger.close()
  assert _points(tmp_path, 'loss') == [(10, 0.5), (50, 2.5)]


def test_tee_writes_to_all_and_closes_all(tmp_path):
  paths = [tmp_path / 'a.csv', tmp_path / 'b.csv']
  tee = loggers.Tee([loggers.CsvLogger(str(path)) for path in paths])
  tee.write(_row(1))
  tee.close()
  assert _read(paths[0]) == _read(paths[1]) == [{'update': '1', 'steps': '10'}]
  with pytest.raises(ValueError, match='closed'):
    tee.write(_row(2))
