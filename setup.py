"""Installs cleanba_acme; see the Makefile for the locked development set-up.

The package's agents/ and launchers/ are symlinks to the folders of the same
name at the top, so that each of their modules has one import name,
`cleanba_acme.agents.ppo` and so on. Wheels and source distributions hold real
folders in their place.
"""

import pathlib
import re

import setuptools

_HERE = pathlib.Path(__file__).parent


def _version() -> str:
  """Reads the version without importing the package or its dependencies."""
  source = (_HERE / 'cleanba_acme' / '__init__.py').read_text(encoding='utf-8')
  match = re.search(r"^__version__ = '([^']+)'$", source, re.MULTILINE)
  if match is None:
    raise ValueError('cleanba_acme/__init__.py defines no __version__.')
  return match.group(1)


def _long_description() -> str:
  readme = _HERE / 'README.md'
  return readme.read_text(encoding='utf-8') if readme.exists() else ''


# What networks, losses, cores and workers import: neither Launchpad, Reverb nor
# TensorFlow.
_COMPONENTS = [
    'absl-py>=1.0',
    'chex>=0.1.89',
    'distrax>=0.1.5',
    'dm-env>=1.6',
    'dm-haiku>=0.0.13',
    'dm-tree>=0.1.8',
    # JAX 0.6 breaks distrax 0.1.5.
    'jax>=0.5.3,<0.6',
    'jaxlib>=0.5.3,<0.6',
    'numpy>=1.26',
    'optax>=0.2.4',
    # Newer ones need a newer JAX.
    'orbax-checkpoint>=0.11.10,<=0.11.20',
    'rlax>=0.1.6',
    'tensorboardX>=2.6',
    'xxhash>=3',
]

# What the scripts in launchers/ need beside the components.
_SCRIPTS = [
    'fancyflags>=1.2',
    'matplotlib>=3.7',
]

# `--launch=processes`. These versions belong together. Launchpad's last wheels
# are for Python 3.10 and link against symbols of TensorFlow 2.8, which in turn
# refuses newer releases of the three packages below it.
_LAUNCHPAD = [
    'dm-launchpad==0.5.2',
    'dm-reverb==0.7.2',
    'tensorflow-cpu==2.8.4',
    'tensorflow-probability==0.16.0',
    'protobuf==3.19.6',
    'numpy<2',
]

_GYMNASIUM = [
    'gymnasium>=0.29',
]

# envpool 1.0 needs Python 3.11, for which there is no Launchpad.
_ENVPOOL = [
    'envpool>=0.8.4,<1',
    'gym>=0.26.2',
] + _GYMNASIUM

# Tests and benchmarks, and the dm_env environments they run.
_TESTING = [
    'bsuite>=0.3.5',
    'dm-control>=1.0.20',
    'hypothesis>=6',
    'mujoco>=3.2',
    'psutil>=5.9',
    'pytest>=8',
    'pytest-timeout>=2.3',
    'pytest-xdist>=3.5',
    'rich>=13',
    # These three build the wheel which packaging_test.py looks into. Later
    # releases of setuptools have no pkg_resources, which TensorBoard 2.8 needs.
    'pip>=23',
    'setuptools>=75,<81',
    'wheel>=0.45',
]

setuptools.setup(
    name='cleanba_acme',
    version=_version(),
    description=(
        'Cleanba as Haiku and RLax components, run by Launchpad and Reverb.'),
    long_description=_long_description(),
    long_description_content_type='text/markdown',
    packages=setuptools.find_packages(
        include=['cleanba_acme', 'cleanba_acme.*']),
    include_package_data=False,
    package_data={'': ['README.md']},
    python_requires='>=3.10',
    install_requires=_COMPONENTS,
    extras_require={
        'scripts': _SCRIPTS,
        'launchpad': _SCRIPTS + _LAUNCHPAD,
        'gymnasium': _GYMNASIUM,
        'envpool': _ENVPOOL,
        'dev': _SCRIPTS + _LAUNCHPAD + _ENVPOOL + _TESTING,
    },
    classifiers=[
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.10',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
