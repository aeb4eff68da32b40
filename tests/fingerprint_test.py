"""Tests of the fingerprint: it changes with any bit, and with nothing else."""

import re

from cleanba_acme import fingerprint
import jax
import numpy as np
import pytest


def _tree():
  return {
      'b': np.arange(5, dtype=np.int32),
      'w': np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
      'scalar': np.float32(3),
      'flag': np.array(True),
      'empty': np.zeros((0, 2), np.float32),
  }


def test_it_is_sixty_four_bits_in_hexadecimal():
  assert re.fullmatch('[0-9a-f]{16}', fingerprint.fingerprint(_tree()))


def test_same_bits_have_the_same_fingerprint():
  tree = _tree()
  expected = fingerprint.fingerprint(tree)
  assert fingerprint.fingerprint(_tree()) == expected
  assert fingerprint.fingerprint(jax.device_put(tree)) == expected
  tree['w'] = np.asfortranarray(tree['w'])
  assert fingerprint.fingerprint(tree) == expected
  tree['w'] = np.repeat(tree['w'], 2, axis=1)[:, ::2]
  assert fingerprint.fingerprint(tree) == expected


@pytest.mark.parametrize('bit', [0, 13, 31])
@pytest.mark.parametrize('name', ['b', 'w'])
def test_one_bit_changes_it(name, bit):
  tree = _tree()
  seen = {fingerprint.fingerprint(tree)}
  for i in range(tree[name].size):
    changed = _tree()
    changed[name].reshape(-1).view(np.uint32)[i] ^= np.uint32(1 << bit)
    seen.add(fingerprint.fingerprint(changed))
  assert len(seen) == tree[name].size + 1


def test_numbers_that_compare_equal_but_are_not_the_same_bits():
  zeros = np.zeros(3, np.float32)
  assert fingerprint.fingerprint(zeros) != fingerprint.fingerprint(-zeros)


def test_order_of_the_leaves_counts():
  x, y = np.float32(1), np.float32(2)
  assert fingerprint.fingerprint((x, y)) != fingerprint.fingerprint((y, x))


def test_it_is_the_same_in_every_process_and_release():
  # Fingerprints of old runs are compared with those of new ones.
  assert fingerprint.fingerprint(
      {'a': np.arange(3, dtype=np.float32)}) == '68a9d752aff0af1c'
