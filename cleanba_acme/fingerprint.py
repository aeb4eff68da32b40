"""Sixty-four bits that tell whether two trees of arrays are bit-identical."""

import hashlib

from cleanba_acme import types
import jax
import numpy as np


def fingerprint(tree: types.ArrayTree) -> str:
  """Hashes all bits of all leaves, in tree order.

  Args:
    tree: Any tree of arrays.

  Returns:
    16 hexadecimal digits.
  """
  digest = hashlib.blake2b(digest_size=8)
  for leaf in jax.tree.leaves(tree):
    digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))
  return digest.hexdigest()
