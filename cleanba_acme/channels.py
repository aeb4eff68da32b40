"""The handoff: FIFO channels with one writer and one reader.

A network of workers that only talk through such channels, with blocking reads,
computes the same result under any timing (Kahn 1974, "The semantics of a simple
language for parallel programming"). That is the whole mechanism behind
reproducible runs; nothing here looks at a clock to decide what data is used.
(`LatestValue` and `ArrivalSampler` are the usual design, for comparison.)
"""

import collections
import threading
import time
from typing import Any, Callable, List, Optional, Protocol, Sequence

from cleanba_acme import types

# How often a blocked wait looks whether the program is stopping, in seconds.
_POLL_S = 0.2
# More than a look takes, of a process that isn't stopped.
_MAX_LOOK_S = 2.0


class Stopped(Exception):
  """The program is stopping; a worker that sees this returns quietly."""


class TimedOut(Exception):
  """A wait passed its deadline: the worker at the other end is gone or stuck.
  """


class HandoffError(Exception):
  """An item is not the one that the contract says must come next."""


class Reader(Protocol):
  """The end of a channel that items come out of, in the order they went in."""

  def wait(self, timeout: Optional[float] = None) -> None:
    """Blocks until there is an item for the next `get`.

    Args:
      timeout: Seconds to wait at most; None waits until the program stops.

    Raises:
      TimedOut: No item came in time.
      Stopped: The program is stopping.
    """

  def get(self, timeout: Optional[float] = None) -> Any:
    """Waits for the oldest item and takes it; raises as `wait` does."""


class Writer(Protocol):
  """The end of one or more channels that items go into."""

  def put(self, item: Any, timeout: Optional[float] = None) -> None:
    """Hands over `item`, blocking while a channel is full.

    Args:
      item: A tree of arrays that the caller won't write to again.
      timeout: Seconds to wait at most; None waits until the program stops.

    Raises:
      TimedOut: There was no room in time.
      Stopped: The program is stopping.
    """


class Patience:
  """Counts the time in which this process could do something.

  The time for which it was stopped, as Ctrl-Z does, doesn't count: those that
  it waits for may have been stopped with it.
  """

  def __init__(self):
    self._last = time.monotonic()
    self._seconds = 0.0

  def seconds(self) -> float:
    """Returns the seconds so far; must be called several times a second."""
    now = time.monotonic()
    self._seconds += min(now - self._last, _MAX_LOOK_S)
    self._last = now
    return self._seconds


def wait_until(
    is_done: Callable[[float], bool],
    stop: threading.Event,
    timeout: Optional[float],
    what: str,
) -> None:
  """Calls `is_done` until it is true; every wait of this library ends here.

  Args:
    is_done: Called with the seconds that it may block.
    stop: Set when the program stops.
    timeout: Seconds to wait at most; None waits until the program stops.
    what: Whom the caller waits for, for the error message.

  Raises:
    TimedOut: `timeout` seconds passed.
    Stopped: `stop` was set.
  """
  patience = Patience()
  while True:
    if stop.is_set():
      raise Stopped(f'stopped while waiting for {what}')
    remaining = _POLL_S
    if timeout is not None:
      remaining = timeout - patience.seconds()
      if remaining <= 0:
        raise TimedOut(f'waited {timeout:g} s for {what}')
    if is_done(min(remaining, _POLL_S)):
      return


class MemoryChannel:
  """A channel between two threads: a bounded queue of references."""

  def __init__(self, name: str, stop: threading.Event, capacity: int = 1):
    """Makes an empty channel.

    Args:
      name: Names the channel in error messages.
      stop: Set when the program stops.
      capacity: How many items it holds before `put` blocks.
    """
    self._name = name
    self._stop = stop
    self._capacity = capacity
    self._items = collections.deque()
    self._changed = threading.Condition()

  def wait(self, timeout: Optional[float] = None) -> None:
    """Blocks until an item is there, see `Reader`."""
    with self._changed:
      wait_until(
          lambda seconds: self._changed.wait_for(
              lambda: self._items, timeout=seconds),
          self._stop, timeout, f'an item in {self._name}')

  def get(self, timeout: Optional[float] = None) -> Any:
    """Takes the oldest item, see `Reader`."""
    self.wait(timeout)  # The only reader: nobody else can take the item.
    with self._changed:
      item = self._items.popleft()
      self._changed.notify_all()
    return item

  def put(self, item: Any, timeout: Optional[float] = None) -> None:
    """Appends an item, see `Writer`."""
    with self._changed:
      wait_until(
          lambda seconds: self._changed.wait_for(
              lambda: len(self._items) < self._capacity, timeout=seconds),
          self._stop, timeout, f'room in {self._name}')
      self._items.append(item)
      self._changed.notify_all()


class Broadcast:
  """Writes every item to several channels."""

  def __init__(self, writers: Sequence[Writer]):
    self._writers = writers

  def put(self, item: Any, timeout: Optional[float] = None) -> None:
    """Hands `item` to every channel, see `Writer`."""
    for writer in self._writers:
      writer.put(item, timeout)


class LatestValue:
  """Hands over the newest item as often as asked for: no FIFO, no contract.

  For the asynchronous handoff only, where what is read depends on timing.
  """

  def __init__(self, name: str, stop: threading.Event):
    """Makes an empty one; arguments as for `MemoryChannel`."""
    self._name = name
    self._stop = stop
    self._item = None
    self._changed = threading.Condition()

  def wait(self, timeout: Optional[float] = None) -> None:
    """Blocks until there is an item, see `Reader`."""
    with self._changed:
      wait_until(
          lambda seconds: self._changed.wait_for(
              lambda: self._item is not None, timeout=seconds),
          self._stop, timeout, f'an item in {self._name}')

  def get(self, timeout: Optional[float] = None) -> Any:
    """Returns the newest item, see `Reader`; it stays."""
    self.wait(timeout)
    return self._item

  def put(self, item: Any, timeout: Optional[float] = None) -> None:
    """Replaces the item; never blocks."""
    del timeout
    with self._changed:
      self._item = item
      self._changed.notify_all()


class Sampler(Protocol):
  """Takes the items of one round."""

  @property
  def waits(self) -> List[float]:
    """Seconds from asking for the last round to seeing each of its items."""

  def sample(
      self,
      round_index: int,
      version: int,
      timeout: Optional[float] = None,
  ) -> List[types.RolloutItem]:
    """Waits for a round's items and takes them, see `SizeGatedSampler`."""


class ArrivalSampler:
  """Takes the next items of one shared channel, whoever they are from.

  This is the usual actor-learner design, kept as the contrast: which data and
  which versions make up a round depends on timing.
  """

  def __init__(self, reader: Reader, num_items: int):
    """Makes a sampler that takes `num_items` per round."""
    self._reader = reader
    self._waits = [0.0] * num_items

  @property
  def waits(self) -> List[float]:
    """See `Sampler`."""
    return list(self._waits)

  def sample(
      self,
      round_index: int,
      version: int,
      timeout: Optional[float] = None,
  ) -> List[types.RolloutItem]:
    """Takes whatever comes next; round and version are not looked at."""
    del round_index, version
    begin = time.monotonic()
    items = []
    for i in range(len(self._waits)):
      items.append(self._reader.get(timeout))
      self._waits[i] = time.monotonic() - begin
    return items


class SizeGatedSampler:
  """Takes whole rounds: one item of every actor, in actor order.

  The gate opens when every channel holds an item. As this sampler is the only
  reader, an item that is there stays there, so waiting for one channel after
  the other is waiting for all of them.
  """

  def __init__(self, readers: Sequence[Reader]):
    """Makes a sampler over the actors' channels, `readers[i]` of actor `i`."""
    self._readers = readers
    self._waits = [0.0] * len(readers)
    self._last_seen = time.monotonic()

  @property
  def waits(self) -> List[float]:
    """See `Sampler`."""
    return list(self._waits)

  def sample(
      self,
      round_index: int,
      version: int,
      timeout: Optional[float] = None,
  ) -> List[types.RolloutItem]:
    """Waits for the round and takes it.

    Args:
      round_index: The round that must come next.
      version: The policy version that must have acted in it.
      timeout: Seconds to wait for each actor at most.

    Returns:
      One item per actor, in actor order.

    Raises:
      HandoffError: An item has another actor, round or version.
      TimedOut: An actor's item did not come in time.
      Stopped: The program is stopping.
    """
    begin = time.monotonic()
    for i, reader in enumerate(self._readers):
      try:
        reader.wait(timeout)
      except TimedOut as error:
        ago = time.monotonic() - self._last_seen
        last = (f'last seen: round {round_index - 1}, {ago:.0f} s ago'
                if round_index else 'never seen')
        raise TimedOut(
            f'round {round_index} lacks actor {i} ({last}): {error}'
        ) from error
      self._waits[i] = time.monotonic() - begin
    self._last_seen = time.monotonic()
    items = [reader.get(timeout) for reader in self._readers]
    for actor, item in enumerate(items):
      expected = (actor, round_index, version)
      seen = (int(item.actor), int(item.round), int(item.version))
      if seen != expected:
        raise HandoffError(
            f'the channel of actor {actor} gave (actor, round, version) = '
            f'{seen}, expected {expected}')
    return items
