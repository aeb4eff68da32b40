"""Where two ledgers part ways, and which field is to blame."""

from cleanba_acme import ledger
import pytest


def _hash(digits):
  return digits.rjust(16, '0')


def _make_rows(num_updates=4, num_actors=2):
  rows = []
  for update in range(1, num_updates + 1):
    row = {
        'update': str(update), 'version': str(update - 1),
        'steps': str(10 * update), 'fingerprint': _hash(f'f{update}'),
        'keys': _hash(f'c{update}'), 'data': _hash(f'd{update}'),
        'gate_wait_s': '0.1'}
    for i in range(num_actors):
      row.update({f'version_{i}': str(update - 1),
                  f'data_{i}': _hash(f'd{update}{i}'), f'wait_{i}_s': '0.2'})
    rows.append(row)
  return rows


def _compare(change=None, num_updates=4, num_actors=2):
  other = _make_rows(num_updates, num_actors)
  for update, columns in (change or {}).items():
    other[update - 1].update(columns)
  one, other = ledger.Ledger(_make_rows()), ledger.Ledger(other)
  divergence = ledger.compare(one, other)
  reverse = ledger.compare(other, one)
  assert (divergence and divergence[:2]) == (reverse and reverse[:2])
  return divergence


def test_identical():
  assert _compare() is None


def test_times_do_not_matter():
  assert _compare({2: {'gate_wait_s': '9', 'wait_1_s': '9'}}) is None


def test_numbers_of_actors_do_not_matter():
  assert _compare(num_actors=1) is None
  assert _compare(num_actors=4) is None


@pytest.mark.parametrize('columns, field, words', [
    ({'fingerprint': 'x'}, ledger.PARAMETERS,
     'the same steps, keys, version, data'),
    ({'fingerprint': 'x', 'data': 'x', 'data_1': 'x'}, ledger.DATA,
     'of actor 1; with the same steps, keys, version'),
    ({'fingerprint': 'x', 'data': 'x', 'data_0': 'x', 'data_1': 'x'},
     ledger.DATA, 'of actor 0 and 1;'),
    ({'fingerprint': 'x', 'data': 'x', 'data_1': 'x', 'version_1': '9'},
     ledger.VERSION, '2 and 9, of actor 1'),
    ({'version': '9', 'version_0': '9', 'version_1': '9'}, ledger.VERSION,
     '2 and 9, of actor 0'),
    ({'fingerprint': 'x', 'data': 'x', 'data_1': 'x', 'keys': 'x'},
     ledger.KEYS, 'of actor 1'),
    ({'fingerprint': 'x', 'data': 'x', 'data_0': _hash('d31'),
      'data_1': _hash('d30'), 'keys': 'x'}, ledger.DATA,
     'actors 0 and 1 have changed places'),
    ({'steps': '7', 'keys': 'x'}, ledger.STEPS, '30 and 7'),
])
def test_first_cause_is_named(columns, field, words):
  # What comes after it differs too, and is not what is asked for.
  divergence = _compare({3: columns, 4: {'keys': 'y', 'fingerprint': 'y'}})
  assert divergence[:2] == (3, field)
  assert words in divergence.detail
  assert f'update 3: {field} (' in str(divergence)


def test_other_layout_has_no_actor_to_name():
  divergence = _compare({2: {'data': 'x'}}, num_actors=1)
  assert divergence[:2] == (2, ledger.DATA)
  assert 'actor' not in divergence.detail


def test_one_is_shorter():
  divergence = _compare(num_updates=3)
  assert divergence[:2] == (4, ledger.LENGTH)
  assert 'one has 3 updates, the other 4' in divergence.detail


def _write(path, rows):
  lines = [','.join(rows[0])] + [','.join(row.values()) for row in rows]
  path.write_text('\n'.join(lines) + '\n')


def test_read_file_or_directory(tmp_path):
  _write(tmp_path / 'ledger.csv', _make_rows())
  read = ledger.read(str(tmp_path))
  assert read == ledger.read(str(tmp_path / 'ledger.csv'))
  assert read.rows == _make_rows()
  assert read.num_actors == 2


def test_read_leaves_out_a_torn_row(tmp_path):
  path = tmp_path / 'ledger.csv'
  _write(path, _make_rows())
  path.write_text(path.read_text()[:-9])
  assert ledger.read(str(path)).rows == _make_rows(3)


@pytest.mark.parametrize('order, words', [
    ([0, 1, 1, 2], 'has update 2 where 3 must come'),
    ([0, 2, 3], 'has update 3 where 2 must come'),
    ([1, 2, 3], 'has update 2 where 1 must come'),
])
def test_read_refuses_gaps_and_repeats(order, words, tmp_path):
  rows = _make_rows()
  _write(tmp_path / 'ledger.csv', [rows[i] for i in order])
  with pytest.raises(ValueError, match=words):
    ledger.read(str(tmp_path))


def test_read_refuses_what_is_no_ledger(tmp_path):
  with pytest.raises(ValueError, match='must be a ledger, or a directory'):
    ledger.read(str(tmp_path))


_HEADER = 'update,steps,version,fingerprint,keys,data,version_0,data_0'
_ROW = ','.join(['1', '10', '0', *[_hash('a')] * 3, '0', _hash('a')])


def _replace(index, value, row=_ROW):
  values = row.split(',')
  values[index] = value
  return ','.join(values)


@pytest.mark.parametrize('content, words', [
    ('', 'is no ledger, it has no column data, fingerprint, keys, steps, '),
    ('\n\n', 'it has no column data'),
    ('update,steps\n1,2\n', 'no column data, fingerprint, keys'),
    (f'{_HEADER}', 'it has no column data'),  # Torn, so not there.
    (f'{_HEADER.replace(",version_0", "")}\n', 'it has no column version_0'),
    (f'{_HEADER.replace("data_0", "data_1")}\n', 'it has no column data_0'),
    (f'{_HEADER.replace("data_0", "data_x")}\n', 'it has no column data_0'),
    (f'{_HEADER},steps\n', 'it has a column twice'),
    (f'{_HEADER}\n{_ROW},7\n', 'row 1 has 9 values where there are 8 columns'),
    (f'{_HEADER}\n1,10\n', 'row 1 has 2 values where there are 8 columns'),
    (f'{_HEADER}\n{_ROW}\n\n', 'row 2 has 1 values'),
    (f'{_HEADER}\n{_replace(0, "one")}\n', 'has update one where 1 must'),
    (f'{_HEADER}\n{_replace(1, "1e3")}\n',
     "row 1 has steps='1e3': must be a number"),
    (f'{_HEADER}\n{_replace(2, "")}\n', "has version='': must be a number"),
    (f'{_HEADER}\n{_replace(3, "abc")}\n',
     "has fingerprint='abc': must be 16 hexadecimal digits"),
    (f'{_HEADER}\n{_replace(7, "G" * 16)}\n', 'has data_0='),
    (f'{_HEADER}\n{_ROW[:20]}\0{_ROW[21:]}\n', 'must be 16 hexadecimal'),
    (b'\xff\xfe\0\0', 'is no ledger, it is no text'),
])
def test_read_refuses_what_is_damaged(content, words, tmp_path):
  path = tmp_path / 'ledger.csv'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(ValueError) as error:
    ledger.read(str(tmp_path))
  assert str(error.value).startswith(f'{path}: ')
  assert words in str(error.value)


def test_read_refuses_a_directory_in_its_place(tmp_path):
  (tmp_path / 'ledger.csv').mkdir()
  with pytest.raises(ValueError, match='must be a ledger.*Is a directory'):
    ledger.read(str(tmp_path))
