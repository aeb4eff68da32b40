"""Frames that travel once are stacked again to the same bits."""

import pickle

from cleanba_acme import frames
from cleanba_acme import rollout as rollout_lib
from cleanba_acme import specs
from cleanba_acme import types
from cleanba_acme.environments import registry
import jax
import numpy as np
import pytest

FIRST, MID = 0, 1
_K = 3


def _stacks(events):
  """Returns `[R, 1, 2, 2 * K]` stacks and step types `[R, 1]` of events.

  '.' moves the stack on, 'R' fills it with a new frame at the start of an
  episode, 'F' starts an episode without (as after the loss of a life).
  """
  rng = np.random.default_rng(0)
  stack = [rng.integers(0, 255, (1, 2, 2), np.uint8) for _ in range(_K)]
  rows, kinds = [], []
  for event in events:
    newest = rng.integers(0, 255, (1, 2, 2), np.uint8)
    stack = [newest] * _K if event == 'R' else stack[1:] + [newest]
    rows.append(np.concatenate(stack, axis=-1))
    kinds.append([MID if event == '.' else FIRST])
  return np.stack(rows), np.array(kinds, np.int32)


def _write(stacks, step_types, previous=None):
  spec = specs.StackedFrames((2, 2 * _K), np.uint8, 0, 255, _K)
  buffer = jax.tree.map(
      lambda leaf: np.full(leaf.shape, 1, leaf.dtype),
      frames.make_spec(spec, len(stacks) - 1, stacks.shape[1]))
  for t, stack in enumerate(stacks):
    frames.write_row(
        buffer, t, stack, stacks[t - 1] if t else previous, step_types[t])
  return buffer


@pytest.mark.parametrize('events', [
    '.......', 'R......', '.R.....', '...R...', '.....R.', '......R', '.RR.R..',
    'RRRRRRR', 'F......', '..F..R.', '.R..F..', '..RF...', '...FR..'])
def test_every_start_of_an_episode_is_restacked(events):
  stacks, step_types = _stacks(events)
  buffer = _write(stacks, step_types)
  assert buffer.stacked_shape == stacks.shape
  out = np.zeros(stacks.shape, np.uint8)
  frames.restack(buffer, out)
  np.testing.assert_array_equal(out, stacks)


def test_each_frame_is_there_once():
  stacks, step_types = _stacks('R' + '.' * 127)
  buffer = _write(stacks, step_types)
  assert buffer.frames.shape == (127 + _K, 1, 2, 2)
  assert _K * buffer.frames[_K - 1:].nbytes == stacks.nbytes


@pytest.mark.parametrize('row', [4, 6])
def test_frames_that_do_not_move_on_are_an_error(row):
  stacks, step_types = _stacks('.......')
  if row == 4:
    step_types[row] = FIRST  # A start is always checked.
  stacks = stacks.copy()
  stacks[row, 0, 0, 0] += 1
  with pytest.raises(ValueError, match='environment 0.*no stack of 3 frames'):
    _write(stacks, step_types)


@pytest.mark.parametrize('task, options', [
    ('Breakout-v5', {}),
    ('Pong-v5', {'stack_num': 2, 'img_height': 42, 'img_width': 42}),
    # A lost life starts an episode, but no new stack.
    ('Breakout-v5', {'episodic_life': True, 'gray_scale': False,
                     'img_height': 20, 'img_width': 20}),
], ids=str)
def test_atari_is_restacked(task, options):
  factory = registry.make_factory(task, max_episode_steps=30, **options)
  assert isinstance(factory.spec.observations, specs.StackedFrames)
  environment = factory(seed=1, num_envs=2)
  rng = np.random.default_rng(0)
  timesteps = [environment.reset()]
  for _ in range(150):
    timesteps.append(environment.step(
        rng.integers(0, factory.spec.actions.num_values, 2, np.int32)))
  environment.close()
  starts = 0
  for begin in range(0, 150, 50):
    rows = timesteps[begin:begin + 51]
    stacks = np.stack([row.observation for row in rows])
    buffer = jax.tree.map(
        lambda leaf: np.empty(leaf.shape, leaf.dtype),
        frames.make_spec(factory.spec.observations, 50, 2))
    for t, row in enumerate(rows):
      frames.write_row(
          buffer, t, row.observation, rows[t - 1].observation, row.step_type)
    out = np.empty_like(stacks)
    frames.restack(buffer, out)
    np.testing.assert_array_equal(out, stacks)
    starts += sum(row.first().sum() for row in rows)
  assert starts >= 8


def test_join_restacks_in_actor_order_and_into_what_it_is_given():
  events = ('.R...', '...R.')
  parts = []
  for kinds in events:
    stacks, step_types = _stacks(kinds)
    zeros = np.zeros(step_types.shape, np.float32)
    parts.append((stacks, types.Rollout(
        _write(stacks, step_types), zeros, zeros, step_types,
        zeros[1:], {'value': zeros}, core_state=())))
  rollouts = [rollout for _, rollout in parts]
  first = rollout_lib.join(rollouts)
  np.testing.assert_array_equal(
      first.observation, np.concatenate([stacks for stacks, _ in parts], 1))
  again = rollout_lib.join(rollouts[::-1], out=first)
  assert again.observation is first.observation
  assert again.extras['value'] is first.extras['value']
  np.testing.assert_array_equal(
      again.observation,
      np.concatenate([stacks for stacks, _ in parts[::-1]], 1))


def test_spec_survives_replacement_and_pickling():
  spec = specs.StackedFrames((4, 4, 6), np.uint8, 0, 255, 2, name='screen')
  for other in (spec.replace(name='other'), pickle.loads(pickle.dumps(spec))):
    assert other == spec and other.num_frames == 2
  assert spec != specs.BoundedArray((4, 4, 6), np.uint8, 0, 255)
  with pytest.raises(ValueError, match='num_frames=4.*last axis'):
    specs.StackedFrames((4, 4, 6), np.uint8, 0, 255, 4)
