"""Cleanba (Huang et al. 2023, arXiv:2310.00036) as Haiku and RLax components.

This module imports nothing: `import cleanba_acme.agents.ppo` and the like load
what they need, and a script's `--help` stays fast.
"""

__version__ = '0.1.0'
