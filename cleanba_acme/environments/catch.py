"""Catch: the smallest game with pixels, for tests and first steps.

A ball falls from a random column of the top row, one row per step; the paddle
moves along the bottom row. The only reward comes with the last step: 1 where
the paddle is under the ball, -1 where it is not.
"""

from cleanba_acme import specs
import dm_env
import numpy as np


class Catch(dm_env.Environment):
  """Catch on a board `[rows, columns]` float32 of zeros and two ones.

  An episode has `rows - 1` steps. Actions: 0 moves the paddle left, 1 leaves
  it, 2 moves it right.
  """

  def __init__(self, seed: int, rows: int = 10, columns: int = 5):
    """Initialises the environment.

    Args:
      seed: Seed of the columns from which the balls fall.
      rows: Height of the board, at least 2.
      columns: Width of the board, at least 1.

    Raises:
      ValueError: If the board is too small.
    """
    if rows < 2 or columns < 1:
      raise ValueError('Catch needs at least 2 rows and 1 column, got '
                       f'rows={rows}, columns={columns}')
    self._random = np.random.RandomState(seed)
    self._rows = rows
    self._columns = columns
    self._ball_row = 0
    self._ball_column = 0
    self._paddle = 0
    self._ended = True

  def reset(self) -> dm_env.TimeStep:
    self._ball_row = 0
    self._ball_column = self._random.randint(self._columns)
    self._paddle = self._columns // 2
    self._ended = False
    return dm_env.restart(self._board())

  def step(self, action: int) -> dm_env.TimeStep:
    if self._ended:
      return self.reset()
    self._paddle = np.clip(self._paddle + action - 1, 0, self._columns - 1)
    self._ball_row += 1
    if self._ball_row < self._rows - 1:
      return dm_env.transition(reward=0., observation=self._board())
    self._ended = True
    caught = self._paddle == self._ball_column
    return dm_env.termination(reward=1. if caught else -1.,
                              observation=self._board())

  def observation_spec(self) -> specs.BoundedArray:
    return specs.BoundedArray((self._rows, self._columns), np.float32, 0., 1.,
                              name='board')

  def action_spec(self) -> specs.DiscreteArray:
    return specs.DiscreteArray(3, np.int32, name='action')

  def _board(self) -> np.ndarray:
    board = np.zeros((self._rows, self._columns), np.float32)
    board[self._ball_row, self._ball_column] = 1.
    board[-1, self._paddle] = 1.
    return board
