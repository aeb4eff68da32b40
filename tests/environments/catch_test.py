"""Tests of Catch."""

from absl.testing import absltest
from cleanba_acme.environments import catch
import dm_env
from dm_env import test_utils
import numpy as np
import pytest


class CatchConformsToDmEnvTest(
    test_utils.EnvironmentTestMixin, absltest.TestCase):
  """dm_env's own tests."""

  def make_object_under_test(self):
    return catch.Catch(seed=1)


def _ball_and_paddle(board):
  """Returns the column of the ball and that of the paddle at the start."""
  return int(np.argmax(board[0])), int(np.argmax(board[-1]))


def _play(environment, action):
  """Returns all time steps of an episode with one action."""
  timesteps = [environment.reset()]
  while not timesteps[-1].last():
    timesteps.append(environment.step(action))
  return timesteps


@pytest.mark.parametrize('action, end', [(0, 0), (1, 2), (2, 4)])
def test_paddle_moves_and_catches(action, end):
  environment = catch.Catch(seed=1)
  rewards = set()
  for _ in range(30):
    timesteps = _play(environment, action)
    assert len(timesteps) == 10
    ball, paddle = _ball_and_paddle(timesteps[0].observation)
    assert paddle == 2
    # The ball falls one row per step within its column.
    for row, timestep in enumerate(timesteps[:-1]):
      assert timestep.observation[row, ball] == 1
      assert timestep.observation.sum() == 2
    assert all(t.reward == 0 and t.discount == 1 for t in timesteps[1:-1])
    assert timesteps[-1].observation[-1, end] == 1
    assert timesteps[-1].reward == (1 if ball == end else -1)
    assert timesteps[-1].discount == 0
    rewards.add(timesteps[-1].reward)
  assert rewards == {1, -1}


def test_step_after_last_starts_an_episode():
  environment = catch.Catch(seed=1)
  _play(environment, 0)
  timestep = environment.step(0)
  assert timestep.step_type is dm_env.StepType.FIRST
  assert _ball_and_paddle(timestep.observation)[1] == 2


def test_seed_decides_columns():
  def columns(seed):
    environment = catch.Catch(seed)
    return [_ball_and_paddle(environment.reset().observation)[0]
            for _ in range(30)]
  assert columns(1) == columns(1)
  assert columns(1) != columns(2)
  assert set(columns(1)) == set(range(5))


def test_board_has_chosen_size():
  environment = catch.Catch(seed=1, rows=4, columns=3)
  assert environment.observation_spec().shape == (4, 3)
  assert len(_play(environment, 1)) == 4


@pytest.mark.parametrize('rows, columns', [(1, 5), (10, 0)])
def test_too_small_board_raises(rows, columns):
  with pytest.raises(ValueError, match=f'rows={rows}, columns={columns}'):
    catch.Catch(1, rows, columns)
