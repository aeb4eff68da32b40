"""Channels over Reverb tables: the handoff between processes.

Each channel is a strict-FIFO table (`reverb.Table.queue`: FIFO sampler and
remover, every item sampled once, a full table blocks its writer). An item
travels as the flat list of its tree's arrays, so nothing is pickled; both ends
know the tree from the experiment, and the table's signature checks every array.
The tables' names end in the run's token, so that a client of another run finds
none of them.

This is the only module that imports Reverb.
"""

from concurrent import futures
import errno
import os
import socket
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

from cleanba_acme import channels
from cleanba_acme import types
import jax
import numpy as np
import reverb
import tensorflow as tf

Client = reverb.Client

# How often a blocked reader asks the server whether it is still there.
_ASK_S = 1.0
_FLUSH_MS = 200
# More than one request that it didn't answer.
_SILENCE_S = 3.0


def rollout_table(actor: int, token: str) -> str:
  """Returns the name of the table from this actor to the learner."""
  return f'rollout/{actor}/{token}'


def parameters_table(actor: int, token: str) -> str:
  """Returns the name of the table from the learner to this actor."""
  return f'parameters/{actor}/{token}'


def _without_token(table: str) -> str:
  return table.rpartition('/')[0]


def make_tables(
    num_actors: int,
    rollout_spec: types.RolloutItem,
    parameters_spec: types.ParametersItem,
    token: str,
) -> List[reverb.Table]:
  """Makes the tables of a run, two per actor.

  Args:
    num_actors: `N`.
    rollout_spec: Tree of `jax.ShapeDtypeStruct`, one actor's item.
    parameters_spec: Likewise, one version of the parameters.
    token: The run's own; who doesn't know it gets nothing.
  """
  tables = []
  for actor in range(num_actors):
    for name, spec in ((rollout_table(actor, token), rollout_spec),
                       (parameters_table(actor, token), parameters_spec)):
      signature = [
          tf.TensorSpec(leaf.shape, leaf.dtype, name=jax.tree_util.keystr(path))
          for path, leaf in jax.tree_util.tree_leaves_with_path(spec)]
      tables.append(reverb.Table.queue(name, max_size=1, signature=signature))
  return tables


def make_server(
    tables: Sequence[reverb.Table],
    port: Optional[int] = None,
    must_be_local: bool = True,
) -> reverb.Server:
  """Makes a server that listens on the loopback interface only.

  Args:
    tables: Its tables.
    port: Its port; by default any that is free.
    must_be_local: Whether it is an error if that can't be had.

  Raises:
    PermissionError: Only root may do that here: Linux is older than 5.7.
  """
  server = reverb.Server(tables, port)
  try:
    _keep_to_loopback(server.port)
  except PermissionError:
    if must_be_local:
      server.stop()
      raise
  return server


def _keep_to_loopback(port: int) -> None:
  """Binds a port that this process listens on to the loopback interface.

  Reverb listens on all interfaces, and has no option for less.
  """
  num_found = 0
  for name in os.listdir('/proc/self/fd'):
    try:
      if not os.readlink(f'/proc/self/fd/{name}').startswith('socket:'):
        continue
      any_socket = socket.socket(fileno=int(name))
    except OSError:
      continue  # Another thread has closed it.
    try:
      if (any_socket.family in (socket.AF_INET, socket.AF_INET6)
          and any_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
          and any_socket.getsockname()[1] == port):
        num_found += 1
        any_socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo\0')
    except OSError as error:
      if error.errno != errno.EBADF:  # Closed, as above.
        raise
    finally:
      any_socket.detach()  # It is not ours to close.
  if not num_found:
    raise RuntimeError(f'found no socket of Reverb\'s on port {port}')


class ReverbReader:
  """The reading end of a table, see `channels.Reader`."""

  def __init__(
      self,
      client: Client,
      table: str,
      spec: types.ArrayTree,
      stop: threading.Event,
  ):
    """Connects to a table.

    Args:
      client: Client of the server that has the table.
      table: The table's name.
      spec: The tree of an item.
      stop: Set when the program stops.
    """
    self._client = client
    self._table = table
    self._spec = spec
    self._stop = stop
    # What the server said last, and when.
    self._has_table = False
    self._last_answer = time.monotonic()
    # The item that a thread waits for, or that came.
    self._next: Optional[futures.Future] = None

  def wait(self, timeout: Optional[float] = None) -> None:
    """Blocks until an item is there, see `channels.Reader`."""
    try:
      channels.wait_until(
          self._is_there, self._stop, timeout,
          f'an item in table {_without_token(self._table)}')
    except channels.TimedOut as error:
      silence = time.monotonic() - self._last_answer
      if silence < _SILENCE_S:
        raise
      raise channels.TimedOut(
          f'{error}; the Reverb server has not answered for {silence:.0f} s'
      ) from error

  def get(self, timeout: Optional[float] = None) -> Any:
    """Takes the oldest item, see `channels.Reader`."""
    self.wait(timeout)
    item = self._next.result()
    self._next = None
    return item

  def close(self) -> None:
    """Ends the wait for an item; must come before the server stops.

    Else Reverb goes on asking a server that is gone, for as long as the process
    lives.
    """
    if self._next is None or self._next.done() or not self._ask():
      return
    # Nothing but an item ends it.
    item = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._spec)
    self._client.insert(jax.tree.leaves(item), {self._table: 1.0})
    futures.wait([self._next], _SILENCE_S)

  def _is_there(self, seconds: float) -> bool:
    """Waits for an item so long at most."""
    if self._next is None:
      if not self._has_table and not self._ask():
        return False
      # Reverb's own wait is deaf to signals and to the server's death, so
      # another thread does it, one that nobody waits for at the end.
      self._next = futures.Future()
      threading.Thread(
          target=self._take, args=(self._next,), daemon=True,
          name=f'take from {_without_token(self._table)}').start()
    try:
      self._next.result(seconds)
      self._last_answer = time.monotonic()
      return True
    except futures.TimeoutError:
      if time.monotonic() - self._last_answer > _ASK_S:
        self._ask()
    except Exception:  # pylint: disable=broad-exception-caught
      self._next, self._has_table = None, False
      # Whoever watches the server knows better why it went away; here the time
      # runs out, if it doesn't come back.
      if self._ask():
        raise
    return False

  def _take(self, item: futures.Future) -> None:
    try:
      sample = next(self._client.sample(self._table, emit_timesteps=False))
      item.set_result(jax.tree.unflatten(
          jax.tree.structure(self._spec), sample.data))
    except BaseException as error:  # pylint: disable=broad-exception-caught
      item.set_exception(error)

  def _ask(self) -> bool:
    """Returns whether the server answers; HandoffError if not with a table."""
    try:
      tables = self._client.server_info(timeout=1)
    except reverb.errors.DeadlineExceededError:
      return False  # The server is still starting, or overloaded, or gone.
    self._last_answer = time.monotonic()
    if self._table not in tables:
      raise channels.HandoffError(
          f'the server has no table {_without_token(self._table)} with the '
          'token of this run: it is that of another run')
    self._has_table = True
    return True


class ReverbWriter:
  """The writing end of one or more tables, see `channels.Writer`.

  Tables that get the same items share one copy of the data.
  """

  def __init__(
      self,
      client: Client,
      tables: Sequence[str],
      stop: threading.Event,
  ):
    """Connects to the tables.

    Args:
      client: Client of the server that has the tables.
      tables: Names of the tables that every item is put into.
      stop: Set when the program stops.
    """
    self._tables = tables
    self._stop = stop
    self._writer = client.trajectory_writer(num_keep_alive_refs=1)

  def put(self, item: Any, timeout: Optional[float] = None) -> None:
    """Hands over `item`, see `channels.Writer`."""
    self._writer.append([np.asarray(leaf) for leaf in jax.tree.leaves(item)])
    trajectory = [column[-1] for column in self._writer.history]
    for table in self._tables:
      try:
        self._writer.create_item(table, priority=1.0, trajectory=trajectory)
      except ValueError as error:  # No such table, or not its signature.
        raise ValueError(
            str(error).replace(table, _without_token(table))) from None

    def is_flushed(seconds: float) -> bool:
      try:
        self._writer.flush(timeout_ms=min(_FLUSH_MS, int(seconds * 1000) + 1))
      except reverb.errors.DeadlineExceededError:
        return False  # The items stay pending: flush again, don't recreate.
      return True

    channels.wait_until(
        is_flushed, self._stop, timeout,
        f'room in {", ".join(map(_without_token, self._tables))}')

  def close(self) -> None:
    """Frees the connection; must come before the server stops."""
    self._writer.close()


def make_local_channels(
    num_actors: int,
    rollout_spec: types.RolloutItem,
    parameters_spec: types.ParametersItem,
    stop: threading.Event,
    token: str,
) -> Tuple[List[ReverbWriter], List[ReverbReader], ReverbWriter,
           List[ReverbReader], Callable[[], None]]:
  """Makes a server in this process, and both ends of all its channels.

  Args:
    num_actors: `N`.
    rollout_spec: Tree of `jax.ShapeDtypeStruct`, one actor's item.
    parameters_spec: Likewise, one version of the parameters.
    stop: Set when the program stops.
    token: The run's own.

  Returns:
    Per actor the writer and the reader of its rollouts, the writer of all
    parameters, per actor their reader, and a function that closes everything.

  Raises:
    PermissionError: See `make_server`.
  """
  server = make_server(
      make_tables(num_actors, rollout_spec, parameters_spec, token))
  client = server.localhost_client()
  actors = range(num_actors)
  rollout_writers = [
      ReverbWriter(client, [rollout_table(i, token)], stop) for i in actors]
  rollout_readers = [
      ReverbReader(client, rollout_table(i, token), rollout_spec, stop)
      for i in actors]
  publisher = ReverbWriter(
      client, [parameters_table(i, token) for i in actors], stop)
  parameter_readers = [
      ReverbReader(client, parameters_table(i, token), parameters_spec, stop)
      for i in actors]

  def close() -> None:
    for end in [*rollout_readers, *parameter_readers, *rollout_writers,
                publisher]:
      end.close()
    server.stop()

  return (
      rollout_writers, rollout_readers, publisher, parameter_readers, close)
