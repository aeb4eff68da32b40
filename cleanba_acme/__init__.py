"""Cleanba (Huang et al. 2023, arXiv:2310.00036) as Haiku and RLax components.

This module imports nothing heavy: `import cleanba_acme.agents.ppo` and the like
load what they need, and a script's `--help` stays fast.
"""

import os as _os

__version__ = '0.1.0'

# XLA:CPU reads it at its first matrix product. Its other kernel, which it would
# choose, computes rows in tiles that depend on the processor (of 6 with AVX2,
# of 8 with AVX-512), those left over in another order: an environment's numbers
# would depend on how many are beside it. This one is up to 15% slower for large
# products, and of the same speed for convolutions.
_os.environ.setdefault('TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL', 'false')
