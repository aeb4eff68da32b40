"""Readers of files give what was written or the error they document.

The files are damaged in random ways for 40 seconds each. The inputs follow from
the seeds 0, 1, ... alone; that of a failure is printed, with the example.
"""

import json
import logging
import os
import shutil
import time
import traceback

from cleanba_acme import checkpoint
from cleanba_acme import fingerprint
from cleanba_acme import ledger
from cleanba_acme import loggers
from cleanba_acme import types
from cleanba_acme.launchers import run as run_lib
import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

_SECONDS = 40.


def _fuzz(test, num_examples):
  """Calls a function of one drawn argument until the time is up."""
  test = hypothesis.settings(
      max_examples=num_examples, deadline=None, database=None,
      suppress_health_check=list(hypothesis.HealthCheck),
      # To find a smaller example of a failure can take longer than the rest.
      phases=[hypothesis.Phase.generate])(test)
  end = time.monotonic() + _SECONDS
  seed = 0
  # What is drawn may be no text that pytest-xdist can send: logs are off, and
  # a failure is told in ASCII.
  logging.disable(logging.CRITICAL)
  try:
    while time.monotonic() < end:
      hypothesis.seed(seed)(test)()
      seed += 1
  except Exception as error:  # pylint: disable=broad-exception-caught
    # Hypothesis notes the example; Python 3.10 doesn't print notes.
    text = '\n'.join([traceback.format_exc(), *getattr(error, '__notes__', ())])
    text = text.encode('ascii', 'backslashreplace').decode()
    raise AssertionError(f'seed {seed}: {text}') from None
  finally:
    logging.disable(logging.NOTSET)


def _flip(content, draw):
  changed = bytearray(content)
  if content:
    i = draw(st.integers(0, len(content) - 1))
    changed[i] ^= 1 << draw(st.integers(0, 7))
  return bytes(changed)


def _change_digit(content, draw):
  places = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
  if not places:
    return content
  i = draw(st.sampled_from(places))
  digit = draw(st.integers(0, 9))
  return content[:i] + str(digit).encode() + content[i + 1:]


def _truncate(content, draw):
  return content[:draw(st.integers(0, len(content)))]


def _cut_out(content, draw):
  i, j = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
  return content[:i] + content[j:]


def _insert(content, draw):
  i = draw(st.integers(0, len(content)))
  return content[:i] + draw(st.binary(max_size=9)) + content[i:]


def _insert_syntax(content, draw):
  i = draw(st.integers(0, len(content)))
  word = draw(st.sampled_from(
      [b',', b'\n', b'\r', b'"', b'{', b'}', b'[', b'null', b'NaN', b'0', b'-',
       b'\\ud800', b'"seed": 1,', b'[' * 5000, b'1' * 5000]))
  return content[:i] + word + content[i:]


def _move_lines(content, draw):
  return b''.join(draw(st.permutations(content.splitlines(keepends=True))))


def _repeat_line(content, draw):
  lines = content.splitlines(keepends=True) or [b'']
  return b''.join(
      [*lines, draw(st.sampled_from(lines))] if draw(st.booleans())
      else [draw(st.sampled_from(lines)), *lines])


def _replace(content, draw):
  del content
  return draw(st.binary(max_size=60))


_DAMAGES = st.sampled_from([
    _flip, _change_digit, _truncate, _cut_out, _insert, _insert_syntax,
    _move_lines, _repeat_line, _replace])


@st.composite
def _damaged(draw, content):
  for damage in draw(st.lists(_DAMAGES, max_size=3)):
    content = damage(content, draw)
  return content


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: (st.lists(values, max_size=3)
                    | st.dictionaries(st.text(max_size=5), values, max_size=3)),
    max_leaves=6)
_SETTINGS = {
    'seed': 1, 'policy_lag': None, 'handoff': 'synchronous',
    'config': {'learning_rate': 0.0025, 'anneal': True},
    'network': {'hiddens': [64, 64]}}


def test_config(tmp_path):
  path = tmp_path / 'config.json'
  run_lib._write_config(str(path), _SETTINGS, {'command': 'train'})  # pylint: disable=protected-access
  good = path.read_bytes()
  # A record and one setting of any value: what other versions may write.
  like_ours = st.builds(
      lambda name, value: json.dumps({**_SETTINGS, name: value}).encode(),
      st.sampled_from([*_SETTINGS, 'other', 'record']), _JSON)
  others = _JSON.map(lambda value: json.dumps(value).encode())

  @hypothesis.given(_damaged(good) | like_ours | others)
  def check(content):
    path.write_bytes(content)
    try:
      before = run_lib.read_config(str(path))
    except ValueError as error:
      assert str(error).startswith(f'{path}: ')
      before = None
    else:
      assert isinstance(before, dict)
    try:
      run_lib._write_config(str(path), _SETTINGS, {'command': 'again'})  # pylint: disable=protected-access
    except ValueError as error:
      assert str(tmp_path) in str(error)
      # Nothing is lost.
      assert path.read_bytes() == content
    else:
      before.pop('record', None)
      assert before == _SETTINGS
      assert json.loads(path.read_bytes()) == {
          **_SETTINGS, 'record': {'command': 'again'}}

  _fuzz(check, num_examples=500)


def _ledger_row(update):
  def hashed(name):
    return fingerprint.fingerprint(np.frombuffer(
        f'{name} {update}'.encode(), np.uint8))
  row = {'update': update, 'version': update - 1, 'steps': 48 * update}
  for name in ('fingerprint', 'keys', 'data'):
    row[name] = hashed(name)
  for i in range(2):
    row.update({f'version_{i}': update - 1, f'data_{i}': hashed(f'data_{i}'),
                f'wait_{i}_s': 0.5})
  return row


def test_ledger(tmp_path):
  path = tmp_path / 'ledger.csv'
  logger = loggers.CsvLogger(str(path))
  for update in range(1, 5):
    logger.write(_ledger_row(update))
  logger.close()
  good = path.read_bytes()
  reference = ledger.read(str(path))
  assert len(reference.rows) == 4

  def read(reader):
    try:
      return reader(str(path))
    except ValueError as error:
      assert str(error).startswith(f'{path}: ')
      return None

  @hypothesis.given(_damaged(good))
  def check(content):
    path.write_bytes(content)
    found = read(ledger.read)
    if found is not None:
      text = content.decode()
      header, *lines = text[:text.rindex('\n')].split('\n')
      assert [','.join(row) for row in found.rows] == [header] * len(lines)
      assert [','.join(row.values()) for row in found.rows] == lines
      divergence = ledger.compare(found, reference)
      proof = [name for name in reference.rows[0] if 'wait' not in name]
      if found.num_actors == reference.num_actors:
        assert (divergence is None) == (
            [[row[name] for name in proof] for row in found.rows]
            == [[row[name] for name in proof] for row in reference.rows])
    num_updates = read(loggers.count_updates)
    if found is not None and num_updates is not None:
      assert num_updates == len(found.rows)
    if num_updates:
      # A run that is gone on with keeps what it has.
      loggers.CsvLogger(str(path), num_updates).close()
      assert read(loggers.count_updates) == num_updates

  _fuzz(check, num_examples=500)


def _state(seed):
  rng = np.random.default_rng(seed)
  params = {'linear': {'w': rng.normal(size=(4, 3)).astype(np.float32),
                       'b': np.zeros(3, np.float32)}}
  return types.TrainingState(
      params, (params, np.int32(seed)), np.int32(seed),
      np.array([1, seed], np.uint32))


def _checkpoint(update):
  return checkpoint.Checkpoint(
      _state(update), (_state(update - 1).params,),
      {'seconds': 1.5 * update, 'episodes': {'count': update}})


def _delete(path):
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink()


def _damage_tree(root, draw):
  """Damages one or two of its files and folders."""
  for _ in range(draw(st.integers(1, 2))):
    kind = draw(st.sampled_from(
        ['content', 'content', 'other', 'delete', 'file', 'folder']))
    paths = [path for path in sorted(root.rglob('*'))
             if kind != 'content' or path.is_file()]
    if not paths:
      continue
    path = draw(st.sampled_from(paths))
    if kind == 'content':
      path.write_bytes(draw(_damaged(path.read_bytes())))
      continue
    # The same of the other checkpoint, whole and well.
    update, *rest = path.relative_to(root).parts
    other = root.joinpath('2' if update == '4' else '4', *rest)
    if kind == 'other' and not other.exists():
      continue
    _delete(path)
    if kind == 'other':
      (shutil.copytree if other.is_dir() else shutil.copy)(other, path)
    elif kind == 'file':
      path.write_bytes(b'{}')
    elif kind == 'folder':
      path.mkdir()


@pytest.mark.filterwarnings('ignore')  # Orbax's, of what it finds.
def test_checkpoints(tmp_path):
  good, copy = tmp_path / 'good', tmp_path / 'copy'
  checkpointer = checkpoint.Checkpointer(str(good))
  for update in (2, 4):
    checkpointer.save(update, _checkpoint(update))
  checkpointer.close()
  like = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
      tuple(_checkpoint(2)[:2]))

  @hypothesis.given(st.data())
  def check(data):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(good, copy)
    _damage_tree(copy, data.draw)
    there = {int(name) for name in os.listdir(copy)}
    checkpointer = checkpoint.Checkpointer(str(copy))
    try:
      latest, problems = checkpointer.find_latest(like)
      found = None if latest is None else checkpointer.restore(latest, like)
    except checkpoint.DamagedError as error:
      for update in there:
        assert f'checkpoint {update} in {copy}' in str(error)
      assert there
      return
    finally:
      checkpointer.close()
    # Each that can't be read is named.
    assert len(problems) == len(there - set(range((latest or 0) + 1)))
    if latest is None:
      assert not there
    else:
      expected = _checkpoint(latest)
      assert fingerprint.fingerprint(found[:2]) == fingerprint.fingerprint(
          expected[:2])
      assert found.counters == expected.counters

  _fuzz(check, num_examples=20)
