"""Tests of the handoff: what comes out of a channel, when, and in what order.

What channels in memory and over Reverb have in common is tested on both.
"""

import contextlib
import threading
import time

from cleanba_acme import channels
from cleanba_acme import replay
from cleanba_acme import types
import jax
import numpy as np
import pytest

# Long enough to tell that a wait is a wait; every such test waits for it once.
_SHORT_S = 0.3
# A deadline that is only passed when a test fails.
_LONG_S = 20.


def _item(number):
  return {'number': np.int32(number)}


def _numbers(items):
  return [int(item['number']) for item in items]


@contextlib.contextmanager
def _memory_ends(stop):
  channel = channels.MemoryChannel('rollout/0', stop)
  yield channel, channel


@contextlib.contextmanager
def _reverb_ends(stop):
  spec = {'number': jax.ShapeDtypeStruct((), np.int32)}
  writers, readers, _, _, close = replay.make_local_channels(
      1, spec, spec, stop, token='token')
  try:
    yield writers[0], readers[0]
  finally:
    close()


@pytest.fixture(name='stop')
def _stop():
  return threading.Event()


@pytest.fixture(name='ends', params=[_memory_ends, _reverb_ends])
def _ends(request, stop):
  """Returns the two ends of a channel, writer and reader."""
  with request.param(stop) as ends:
    yield ends


@contextlib.contextmanager
def _thread(target):
  """Runs `target` beside the block, and raises what it raised."""
  errors = []

  def run():
    try:
      target()
    except BaseException as error:  # pylint: disable=broad-exception-caught
      errors.append(error)

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  yield thread
  thread.join(_LONG_S)
  assert not thread.is_alive()
  if errors:
    raise errors[0]


def test_items_come_out_in_order(ends):
  writer, reader = ends

  def write():
    for number in range(20):
      writer.put(_item(number), _LONG_S)

  with _thread(write):
    items = [reader.get(_LONG_S) for _ in range(20)]
  assert _numbers(items) == list(range(20))


def test_a_full_channel_blocks_its_writer(ends):
  writer, reader = ends
  written = []

  def write():
    for number in range(3):
      writer.put(_item(number), _LONG_S)
      written.append(number)

  def wait_until_written(numbers):
    deadline = time.monotonic() + _LONG_S
    while written != numbers and time.monotonic() < deadline:
      time.sleep(0.01)
    time.sleep(_SHORT_S)
    assert written == numbers and thread.is_alive()

  with _thread(write) as thread:
    wait_until_written([0])
    assert _numbers([reader.get(_LONG_S)]) == [0]
    wait_until_written([0, 1])
    assert _numbers(reader.get(_LONG_S) for _ in range(2)) == [1, 2]


def test_wait_leaves_the_item(ends):
  writer, reader = ends
  writer.put(_item(7), _LONG_S)
  reader.wait(_LONG_S)
  reader.wait(_LONG_S)
  assert _numbers([reader.get(_LONG_S)]) == [7]
  with pytest.raises(channels.TimedOut):
    reader.wait(_SHORT_S)


@pytest.mark.parametrize('method', ['wait', 'get'])
def test_reading_waits_until_its_deadline(method, ends):
  _, reader = ends
  begin = time.monotonic()
  with pytest.raises(
      channels.TimedOut, match='waited 0.3 s for an item in .*rollout/0'):
    getattr(reader, method)(_SHORT_S)
  assert _SHORT_S <= time.monotonic() - begin < _LONG_S


def test_time_for_which_the_process_was_stopped_does_not_count(monkeypatch):
  now = 1000.
  monkeypatch.setattr(channels.time, 'monotonic', lambda: now)
  patience = channels.Patience()
  for step, expected in ((0.2, 0.2), (1., 1.2), (3600., 3.2), (0.1, 3.3)):
    now += step
    assert patience.seconds() == pytest.approx(expected)


def test_writing_waits_until_its_deadline(ends):
  writer, _ = ends
  writer.put(_item(0), _LONG_S)
  begin = time.monotonic()
  with pytest.raises(
      channels.TimedOut, match='waited 0.3 s for room in .*rollout/0'):
    writer.put(_item(1), _SHORT_S)
  assert _SHORT_S <= time.monotonic() - begin < _LONG_S


@pytest.mark.parametrize('method', ['wait', 'get', 'put'])
def test_the_end_of_the_program_ends_a_wait(method, ends, stop):
  writer, reader = ends
  calls = {'wait': reader.wait, 'get': reader.get,
           'put': lambda: writer.put(_item(1))}
  if method == 'put':
    writer.put(_item(0), _LONG_S)
  timer = threading.Timer(_SHORT_S, stop.set)
  begin = time.monotonic()
  timer.start()
  with pytest.raises(channels.Stopped):
    calls[method]()
  assert _SHORT_S <= time.monotonic() - begin < 5.
  timer.join()


def test_capacity():
  channel = channels.MemoryChannel('wide', threading.Event(), capacity=2)
  channel.put(_item(0), _SHORT_S)
  channel.put(_item(1), _SHORT_S)
  with pytest.raises(channels.TimedOut):
    channel.put(_item(2), _SHORT_S)
  assert _numbers(channel.get(_SHORT_S) for _ in range(2)) == [0, 1]


def test_broadcast_reaches_every_channel(stop):
  several = [channels.MemoryChannel(str(i), stop) for i in range(3)]
  broadcast = channels.Broadcast(several)
  broadcast.put(_item(4), _SHORT_S)
  several[0].get(_SHORT_S)
  # It waits for the slowest reader.
  with pytest.raises(channels.TimedOut, match='room in 1'):
    broadcast.put(_item(5), _SHORT_S)
  assert _numbers(channel.get(_SHORT_S) for channel in several) == [5, 4, 4]


def _rollout_item(actor, round_index, version):
  return types.RolloutItem(
      *np.array([actor, round_index, version], np.int32), keys=None,
      rollout=None, episodes=None)


def _labels(items):
  return [(int(i.actor), int(i.round), int(i.version)) for i in items]


@pytest.mark.parametrize('order', [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_sampler_takes_one_item_of_every_actor_in_actor_order(order, stop):
  readers = [channels.MemoryChannel(str(i), stop, capacity=9) for i in range(3)]
  # One actor is fast and another one slow: nothing of it may be seen.
  fast, middle, slow = order
  for actor, rounds in ((fast, 3), (middle, 2), (slow, 1)):
    for r in range(rounds):
      readers[actor].put(_rollout_item(actor, r, r))
  sampler = channels.SizeGatedSampler(readers)
  assert _labels(sampler.sample(0, 0, _SHORT_S)) == [
      (0, 0, 0), (1, 0, 0), (2, 0, 0)]
  with pytest.raises(channels.TimedOut, match=f'round 1 lacks actor {slow} '):
    sampler.sample(1, 1, _SHORT_S)
  # The gate is over the round: waiting took nothing from the others.
  readers[slow].put(_rollout_item(slow, 1, 1))
  assert _labels(sampler.sample(1, 1, _SHORT_S)) == [
      (0, 1, 1), (1, 1, 1), (2, 1, 1)]
  with pytest.raises(
      channels.TimedOut,
      match=f'round 2 lacks actor {min(middle, slow)} .*last seen: round 1, '):
    sampler.sample(2, 2, _SHORT_S)


def test_sampler_waits_for_the_last_actor(stop):
  readers = [channels.MemoryChannel(str(i), stop) for i in range(2)]
  sampler = channels.SizeGatedSampler(readers)
  readers[0].put(_rollout_item(0, 0, 0))

  begin = time.monotonic()

  def write():
    time.sleep(_SHORT_S)
    readers[1].put(_rollout_item(1, 0, 0))

  with _thread(write):
    assert _labels(sampler.sample(0, 0, _LONG_S)) == [(0, 0, 0), (1, 0, 0)]
  assert sampler.waits[0] < sampler.waits[1]
  assert time.monotonic() - begin >= _SHORT_S


@pytest.mark.parametrize('wrong', [(0, 5, 4), (1, 4, 4), (1, 6, 4), (1, 5, 3)])
def test_sampler_refuses_items_that_are_not_due(wrong, stop):
  readers = [channels.MemoryChannel(str(i), stop) for i in range(2)]
  readers[0].put(_rollout_item(0, 5, 4))
  readers[1].put(_rollout_item(*wrong))
  with pytest.raises(channels.HandoffError) as error:
    channels.SizeGatedSampler(readers).sample(5, 4, _SHORT_S)
  assert str(wrong) in str(error.value)
  assert 'expected (1, 5, 4)' in str(error.value)
