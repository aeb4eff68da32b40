"""Tests of what only channels over Reverb do; see also channels_test.py."""

import collections
import contextlib
import os
import socket
import threading

from cleanba_acme import channels
from cleanba_acme import replay
import jax
import numpy as np
import pytest

_TIMEOUT_S = 20.
_TOKEN = '5ecre7'

_Tree = collections.namedtuple('_Tree', ['image', 'rest', 'core_state'])


def _make_tree(seed=0):
  rng = np.random.default_rng(seed)
  return _Tree(
      image=rng.integers(0, 256, (3, 2, 6, 5, 4)).astype(np.uint8),
      rest={
          'float': rng.normal(size=(3, 2)).astype(np.float32),
          'int': rng.integers(-9, 9, (3, 2)).astype(np.int32),
          'keys': rng.integers(0, 2**32, (2, 3)).astype(np.uint32),
          'bool': rng.integers(0, 2, (2,)).astype(bool),
          'scalar': np.float32(rng.normal()),
          'index': np.int32(rng.integers(99)),
          'one': rng.normal(size=(1,)).astype(np.float32),
          # Any bits, not only numbers that are equal to themselves.
          'special': np.array([np.nan, np.inf, -np.inf, -0.], np.float32),
      },
      core_state=())


def _spec(tree):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


@contextlib.contextmanager
def _channels(num_actors, rollout, parameters):
  writers, readers, publisher, parameter_readers, close = (
      replay.make_local_channels(
          num_actors, _spec(rollout), _spec(parameters), threading.Event(),
          _TOKEN))
  try:
    yield writers, readers, publisher, parameter_readers
  finally:
    close()


def _assert_same_bits(tree, other):
  assert jax.tree.structure(tree) == jax.tree.structure(other)
  for leaf, other_leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(other)):
    assert other_leaf.dtype == leaf.dtype
    assert other_leaf.shape == leaf.shape
    assert other_leaf.tobytes() == leaf.tobytes()


def test_arrays_of_all_kinds_come_out_as_they_went_in():
  trees = [_make_tree(seed) for seed in range(3)]
  with _channels(1, trees[0], {}) as (writers, readers, _, _):
    for tree in trees:
      writers[0].put(tree, _TIMEOUT_S)
      received = readers[0].get(_TIMEOUT_S)
      _assert_same_bits(tree, received)
      assert isinstance(received, _Tree) and received.core_state == ()
      for leaf in jax.tree.leaves(received):
        assert leaf.flags.writeable


def test_arrays_of_jax_may_be_put():
  tree = {'x': np.arange(6, dtype=np.float32).reshape(2, 3)}
  with _channels(1, tree, {}) as (writers, readers, _, _):
    writers[0].put(jax.device_put(tree), _TIMEOUT_S)
    _assert_same_bits(tree, readers[0].get(_TIMEOUT_S))


def test_an_item_may_be_changed_after_it_was_put():
  tree = {'x': np.zeros(4, np.float32)}
  with _channels(1, tree, {}) as (writers, readers, _, _):
    writers[0].put(tree, _TIMEOUT_S)
    tree['x'][:] = 9
    assert not readers[0].get(_TIMEOUT_S)['x'].any()


@pytest.mark.parametrize('bad', [
    {'x': np.zeros(5, np.float32)},
    {'x': np.zeros((4, 1), np.float32)},
    {'x': np.zeros(4, np.int32)},
    {'x': np.zeros(4, np.float64)},
    {'x': np.zeros(4, np.float32), 'y': np.float32(0)},
])
def test_an_item_that_contradicts_the_signature_is_refused(bad):
  good = {'x': np.zeros(4, np.float32)}
  with _channels(1, good, {}) as (writers, readers, _, _):
    with pytest.raises(ValueError, match='signature'):
      writers[0].put(bad, _TIMEOUT_S)
    with pytest.raises(channels.TimedOut):
      readers[0].get(0.1)


def test_channels_do_not_mix():
  item = lambda number: {'number': np.int32(number)}
  with _channels(2, item(0), item(0)) as (
      writers, readers, publisher, parameter_readers):
    writers[1].put(item(1), _TIMEOUT_S)
    writers[0].put(item(0), _TIMEOUT_S)
    publisher.put(item(2), _TIMEOUT_S)
    for number, reader in enumerate(readers):
      assert reader.get(_TIMEOUT_S)['number'] == number
    for reader in parameter_readers:
      assert reader.get(_TIMEOUT_S)['number'] == 2
    for reader in [*readers, *parameter_readers]:
      with pytest.raises(channels.TimedOut):
        reader.wait(0.05)


def test_publisher_waits_for_the_slowest_reader():
  item = lambda number: {'number': np.int32(number)}
  with _channels(2, item(0), item(0)) as (_, _, publisher, readers):
    publisher.put(item(0), _TIMEOUT_S)
    readers[0].get(_TIMEOUT_S)
    with pytest.raises(channels.TimedOut, match='parameters/0, parameters/1'):
      publisher.put(item(1), 0.3)
    numbers = [[int(reader.get(_TIMEOUT_S)['number']) for _ in range(count)]
               for reader, count in zip(readers, (1, 2))]
    assert numbers == [[1], [0, 1]]


def test_an_item_whose_put_timed_out_stays_pending():
  item = lambda number: {'number': np.int32(number)}
  with _channels(1, item(0), {}) as (writers, readers, _, _):
    writers[0].put(item(0), _TIMEOUT_S)
    with pytest.raises(channels.TimedOut):
      writers[0].put(item(1), 0.3)
    # It is neither lost nor there twice, and later ones come after it.
    assert readers[0].get(_TIMEOUT_S)['number'] == 0
    assert readers[0].get(_TIMEOUT_S)['number'] == 1
    writers[0].put(item(2), _TIMEOUT_S)
    assert readers[0].get(_TIMEOUT_S)['number'] == 2
    with pytest.raises(channels.TimedOut):
      readers[0].wait(0.1)


def _item(number):
  return {'number': np.int32(number)}


@pytest.fixture(name='server')
def _server():
  """Returns a server with the tables of a run."""
  spec = _spec(_item(0))
  return replay.make_server(replay.make_tables(1, spec, spec, _TOKEN))


def _writer(server, table):
  # A client as of another process.
  return replay.ReverbWriter(
      replay.Client(f'localhost:{server.port}'), [table], threading.Event())


def _reader(server, table):
  return replay.ReverbReader(
      replay.Client(f'localhost:{server.port}'), table, _spec(_item(0)),
      threading.Event())


@pytest.mark.parametrize('token', ['another', ''])
def test_client_without_the_token(token, server):
  publisher = _writer(server, replay.parameters_table(0, _TOKEN))
  publisher.put(_item(1), _TIMEOUT_S)

  # Gets no parameters.
  reader = _reader(server, replay.parameters_table(0, token))
  for read in (reader.wait, reader.get):
    with pytest.raises(channels.HandoffError) as error:
      read(_TIMEOUT_S)
    assert 'no table parameters/0 with the token of this run' in str(
        error.value)
    assert _TOKEN not in str(error.value)
  client = replay.Client(f'localhost:{server.port}')
  with pytest.raises(RuntimeError, match='not found'):
    next(client.sample(replay.parameters_table(0, token)))

  # What it inserts never reaches the learner.
  intruder = _writer(server, replay.rollout_table(0, token))
  with pytest.raises(ValueError, match="'rollout/0' since the table could not"):
    intruder.put(_item(2), _TIMEOUT_S)
  with pytest.raises(ValueError, match='Unable to find signatures'):
    client.insert([np.int32(2)], {replay.rollout_table(0, token): 1.})
  learner = _reader(server, replay.rollout_table(0, _TOKEN))
  with pytest.raises(channels.TimedOut):
    learner.wait(0.2)
  writer = _writer(server, replay.rollout_table(0, _TOKEN))
  writer.put(_item(3), _TIMEOUT_S)
  assert learner.get(_TIMEOUT_S)['number'] == 3
  assert _reader(server, replay.parameters_table(0, _TOKEN)).get(
      _TIMEOUT_S)['number'] == 1
  for each in (publisher, intruder, writer):
    each.close()


def test_server_listens_on_loopback_only(server):
  devices = []
  for name in os.listdir('/proc/self/fd'):
    try:
      is_socket = os.readlink(f'/proc/self/fd/{name}').startswith('socket:')
    except FileNotFoundError:
      continue  # The one that lists the others.
    if not is_socket:
      continue
    with socket.socket(fileno=os.dup(int(name))) as each:
      if (each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
          and each.getsockname()[1] == server.port):
        devices.append(each.getsockopt(
            socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16))
  assert devices and all(device == b'lo\0' for device in devices)
  assert server.localhost_client().server_info(timeout=5)


def test_no_thread_waits_for_a_server_that_was_closed():
  before = set(threading.enumerate())
  with _channels(2, _item(0), _item(0)) as (_, readers, _, parameter_readers):
    for reader in [*readers, *parameter_readers]:
      with pytest.raises(channels.TimedOut):
        reader.wait(0.2)
    assert len(set(threading.enumerate()) - before) == 4
  assert not set(threading.enumerate()) - before
