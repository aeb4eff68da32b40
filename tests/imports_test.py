"""Keeps the package's imports pointing one way.

Imports are read from the source; nothing is imported. Those inside functions
count as well: they would otherwise be the way around every rule here.
"""

import ast
import pathlib
import sys
from typing import Collection, Iterable, Mapping, NamedTuple, Sequence

import pytest

_PACKAGE = 'cleanba_acme'
# Not resolved: under Bazel the tree is made of links, each to a single file.
_ROOT = pathlib.Path(__file__).absolute().parents[1]

# Rooms, lowest first, each with the rooms it may import. A room is a module or
# a folder; the longest name that fits is a module's room, and modules of one
# folder may import each other. New rooms go where they belong in this order:
# a room may only import rooms above its own line.
_DATA = ('types', 'specs')
_CORES = ('actor_core', 'learner_core', 'builder')
_LOOPS = ('fingerprint', 'rollout', 'channels', 'experiment', 'checkpoint',
          'loggers', 'evaluation')
_LAYERS = {
    'fields': (),
    'types': (),
    'specs': ('types',),
    'moments': ('types',),
    'seeding': ('types',),
    'fingerprint': ('types',),
    'frames': ('specs',),
    'ledger': (),
    'networks': _DATA + ('fields', 'moments'),
    'losses': _DATA,
    'environments.base': _DATA,
    'environments': _DATA + ('environments.base',),
    'actor_core': _DATA + ('seeding', 'networks'),
    'learner_core': _DATA + ('seeding', 'networks', 'losses'),
    'reward_scaling': _DATA + ('moments', 'learner_core'),
    'builder': _DATA + ('networks', 'actor_core', 'learner_core'),
    'agents': _DATA + (
        'fields', 'seeding', 'moments', 'networks', 'losses',
        'reward_scaling') + _CORES,
    'rollout': _DATA + (
        'frames', 'seeding', 'networks', 'environments.base', 'actor_core'),
    'channels': _DATA,
    'replay': _DATA + ('channels',),
    'experiment': _DATA + (
        'seeding', 'networks', 'environments.base', 'rollout') + _CORES,
    'checkpoint': _DATA + ('fingerprint', 'experiment'),
    'loggers': _DATA + ('ledger',),
    'evaluation': _DATA + (
        'seeding', 'networks', 'environments.base', 'rollout', 'experiment',
        'checkpoint') + _CORES,
    'workers': _DATA + (
        'seeding', 'networks', 'environments.base') + _CORES + _LOOPS,
    'testing': _DATA + (
        'seeding', 'networks', 'losses', 'environments.base',
        'environments') + _CORES + _LOOPS + ('workers',),
}
# Launchers know all of it.
_LAYERS['launchers'] = tuple(_LAYERS)

# What setup.py installs without extras: any room may import these.
_COMPONENTS = frozenset({
    'absl', 'chex', 'distrax', 'dm_env', 'haiku', 'jax', 'jaxlib', 'numpy',
    'optax', 'rlax', 'tree', 'xxhash'})

# The rest that setup.py or its extras install, with the rooms that may import
# it.
_RESTRICTED: Mapping[str, Sequence[str]] = {
    'envpool': ('environments.envpool_adapter',),
    'fancyflags': ('launchers',),
    # Comes with envpool, which imports it.
    'gym_notices': ('environments.envpool_adapter',),
    'gymnasium': ('environments',),
    'launchpad': ('launchers',),
    'matplotlib': ('launchers',),
    'orbax': ('checkpoint',),
    'reverb': ('replay',),
    'tensorboardX': ('loggers',),
    # Reverb describes its tables with it.
    'tensorflow': ('replay',),
}

# Only scripts may import these: a flag is a global variable.
_SCRIPTS_ONLY = ('absl.app', 'absl.flags', 'fancyflags')


class _Import(NamedTuple):
  """`line` of `importer` imports `imported`; both are modules' full names."""
  importer: str
  imported: str
  line: int

  def __str__(self) -> str:
    return f'{self.importer}:{self.line} imports {self.imported}'


class _Modules:
  """Source of the package's modules by full name, and what they import."""

  def __init__(self, sources: Mapping[str, str]):
    self._trees = {name: ast.parse(source) for name, source in sources.items()}
    self.imports = tuple(
        found for name in self._trees for found in self._imports_of(name))

  @property
  def names(self) -> Collection[str]:
    return self._trees.keys()

  def is_script(self, name: str) -> bool:
    """Whether the module has an `if __name__ == '__main__':` of its own."""
    return any(
        isinstance(node, ast.If) and '__main__' in ast.dump(node.test)
        for node in self._trees[name].body)

  def _imports_of(self, importer: str) -> Iterable[_Import]:
    for node in ast.walk(self._trees[importer]):
      if isinstance(node, ast.Import):
        for alias in node.names:
          yield _Import(importer, alias.name, node.lineno)
      elif isinstance(node, ast.ImportFrom):
        # A relative import cannot be told from its text alone; `.` is refused.
        base = '.' * node.level + (node.module or '')
        for alias in node.names:
          # `from a import b` imports a module `a.b` where there is one, and
          # otherwise a name of `a`. Of other packages we can't know; nor does
          # it matter, except for absl's modules.
          full = f'{base}.{alias.name}'
          is_module = full in self._trees or base == 'absl'
          yield _Import(
              importer, full if is_module else base, node.lineno)


def _is_in(module: str, prefix: str) -> bool:
  return module == prefix or module.startswith(prefix + '.')


def _room(module: str) -> str | None:
  """The room of a module of the package; `None` where it has none."""
  name = module.removeprefix(_PACKAGE + '.')
  rooms = [room for room in _LAYERS if _is_in(name, room)]
  return max(rooms, key=len, default=None)


def _third_party(module: str) -> str | None:
  """Top-level name of what is neither ours nor in the standard library."""
  top = module.split('.')[0]
  is_other = top != _PACKAGE and top and top not in sys.stdlib_module_names
  return top if is_other else None


def _modules_without_a_room(modules: _Modules) -> Sequence[str]:
  return [
      f'{name} is in no room: give it one in _LAYERS of imports_test.py, and'
      f' draw it into the design.'
      for name in modules.names if name != _PACKAGE and _room(name) is None]


def _upward_imports(modules: _Modules) -> Sequence[str]:
  errors = []
  for found in modules.imports:
    if not _is_in(found.imported, _PACKAGE):
      continue
    if found.importer == _PACKAGE:
      errors.append(f'{found}; the package itself must import nothing.')
    if found.imported not in modules.names:
      errors.append(f'{found}, which does not exist.')
    importer = _room(found.importer)
    imported = _room(found.imported)
    # Of modules without a room another check complains.
    if importer is None or imported is None or imported == importer:
      continue
    allowed = _LAYERS[importer]
    if imported not in allowed:
      errors.append(
          f'{found}; {importer} may import {", ".join(allowed) or "no room"}'
          ' and nothing else of the package.')
  return errors


def _imports_of_other_agents(modules: _Modules) -> Sequence[str]:
  agents = f'{_PACKAGE}.agents.'
  return [
      f'{found}; an agent must not know another.' for found in modules.imports
      if found.importer.startswith(agents) and found.imported.startswith(agents)
      and found.importer.split('.')[2] != found.imported.split('.')[2]]


def _unknown_and_restricted_imports(modules: _Modules) -> Sequence[str]:
  errors = []
  for found in modules.imports:
    top = _third_party(found.imported)
    if top is None or top in _COMPONENTS:
      continue
    allowed = _RESTRICTED.get(top)
    if allowed is None:
      errors.append(
          f'{found}, which is not known: add it to setup.py, and to _COMPONENTS'
          ' or _RESTRICTED of imports_test.py.')
    else:
      name = found.importer.removeprefix(_PACKAGE + '.')
      if not any(_is_in(name, room) for room in allowed):
        errors.append(f'{found}; only {", ".join(allowed)} may.')
  return errors


def _flags_outside_scripts(modules: _Modules) -> Sequence[str]:
  launchers = f'{_PACKAGE}.launchers'
  return [
      f'{found}; only scripts in launchers/ may.' for found in modules.imports
      if any(_is_in(found.imported, name) for name in _SCRIPTS_ONLY)
      and not (_is_in(found.importer, launchers)
               and modules.is_script(found.importer))]


def _wrong_names(modules: _Modules) -> Sequence[str]:
  """Imports by which a module gets a second identity, or hides its own."""
  errors = []
  for found in modules.imports:
    if found.imported.split('.')[0] in ('agents', 'launchers', 'tests'):
      errors.append(f'{found}; import it as {_PACKAGE}.{found.imported}.')
    elif found.imported.startswith('.'):
      errors.append(f'{found}; name modules in full.')
  return errors


def _cycles(modules: _Modules) -> Sequence[str]:
  edges = {name: set() for name in modules.names}
  for found in modules.imports:
    # Each module depends on its parents too, which hold no code.
    if found.imported in edges and found.importer in edges:
      edges[found.importer].add(found.imported)
  errors = []
  done = set()

  def visit(name: str, path: tuple[str, ...]) -> None:
    if name in path:
      errors.append(' imports '.join(path[path.index(name):] + (name,)))
    elif name not in done:
      for imported in sorted(edges[name]):
        visit(imported, path + (name,))
      done.add(name)

  for name in sorted(edges):
    visit(name, ())
  return errors


_CHECKS = (
    _modules_without_a_room,
    _upward_imports,
    _imports_of_other_agents,
    _unknown_and_restricted_imports,
    _flags_outside_scripts,
    _wrong_names,
    _cycles,
)


def _read(folder: pathlib.Path, name: str) -> Mapping[str, str]:
  """Source of every module below a folder; follows symlinks."""
  sources = {}
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      sources.update(_read(path, f'{name}.{path.name}'))
    elif path.name == '__init__.py':
      sources[name] = path.read_text(encoding='utf-8')
    elif path.suffix == '.py':
      sources[f'{name}.{path.stem}'] = path.read_text(encoding='utf-8')
  return sources


@pytest.fixture(name='package', scope='module')
def _package() -> _Modules:
  return _Modules(_read(_ROOT / _PACKAGE, _PACKAGE))


@pytest.mark.parametrize('check', _CHECKS)
def test_package_keeps_rule(check, package):
  assert not check(package), '\n'.join(check(package))


def test_package_was_read_with_its_linked_folders(package):
  assert f'{_PACKAGE}.types' in package.names
  assert f'{_PACKAGE}.agents' in package.names
  assert f'{_PACKAGE}.launchers' in package.names


def test_tests_import_modules_by_their_one_name():
  modules = _Modules(_read(_ROOT / 'tests', 'tests'))
  assert not _wrong_names(modules), '\n'.join(_wrong_names(modules))


def test_layers_are_in_order():
  rooms = list(_LAYERS)
  for index, (room, allowed) in enumerate(_LAYERS.items()):
    for other in allowed:
      assert other in rooms[:index], (
          f'{room} may not import {other}: it is not above it in _LAYERS.')


# Packages with a mistake planted in one module, the check that must find it,
# and what it must say. The other modules are there to be imported.
_GOOD = {
    'cleanba_acme': '',
    'cleanba_acme.types': 'import jax',
    'cleanba_acme.agents': '',
    'cleanba_acme.agents.ppo': '',
    'cleanba_acme.agents.ppo.builder': 'from cleanba_acme import types',
    'cleanba_acme.launchers': '',
    'cleanba_acme.launchers.program': 'import launchpad as lp',
}
_PLANTED = (
    (_modules_without_a_room, 'cleanba_acme.cellar', '', 'is in no room'),
    (_modules_without_a_room, 'cleanba_acme.agentsmith', '', 'is in no room'),
    (_upward_imports, 'cleanba_acme.losses.ppo',
     'from cleanba_acme.agents.ppo import builder', 'losses may import types,'),
    (_upward_imports, 'cleanba_acme.losses.ppo',
     'import cleanba_acme.agents.ppo.builder as b', 'losses may import types,'),
    (_upward_imports, 'cleanba_acme.losses.ppo',
     'from cleanba_acme.agents.ppo.builder import PPOBuilder',
     'losses may import types,'),
    (_upward_imports, 'cleanba_acme.losses.ppo',
     'def f():\n  from cleanba_acme import launchers', ':2 imports'),
    (_upward_imports, 'cleanba_acme.losses.ppo',
     'import cleanba_acme.cellar', 'does not exist'),
    (_upward_imports, 'cleanba_acme',
     'from cleanba_acme import types', 'must import nothing'),
    (_imports_of_other_agents, 'cleanba_acme.agents.impala.builder',
     'from cleanba_acme.agents.ppo import builder', 'must not know'),
    (_unknown_and_restricted_imports, 'cleanba_acme.workers',
     'import reverb', 'only replay may'),
    (_unknown_and_restricted_imports, 'cleanba_acme.workers',
     'from launchpad.nodes import python', 'only launchers may'),
    (_unknown_and_restricted_imports, 'cleanba_acme.environments.catch',
     'def f():\n  import envpool', 'only environments.envpool_adapter may'),
    (_unknown_and_restricted_imports, 'cleanba_acme.loggers',
     'import pandas', 'not known'),
    (_unknown_and_restricted_imports, 'cleanba_acme.loggers',
     'import tensorflow as tf', 'only replay may'),
    (_flags_outside_scripts, 'cleanba_acme.workers',
     'from absl import flags', 'only scripts'),
    (_flags_outside_scripts, 'cleanba_acme.workers',
     "import absl.flags\nif __name__ == '__main__':\n  pass", 'only scripts'),
    (_flags_outside_scripts, 'cleanba_acme.launchers.program',
     'import fancyflags as ff', 'only scripts'),
    (_wrong_names, 'cleanba_acme.launchers.train',
     'from agents.ppo import builder', 'as cleanba_acme.agents.ppo'),
    (_wrong_names, 'cleanba_acme.launchers.train',
     'import launchers', 'as cleanba_acme.launchers'),
    (_wrong_names, 'cleanba_acme.losses.ppo',
     'from . import types', 'in full'),
    (_cycles, 'cleanba_acme.types',
     'from cleanba_acme.agents.ppo import builder',
     'cleanba_acme.agents.ppo.builder imports cleanba_acme.types imports'
     ' cleanba_acme.agents.ppo.builder'),
)


@pytest.mark.parametrize('check', _CHECKS)
def test_check_accepts_good_package(check):
  assert not check(_Modules(_GOOD))


def test_check_accepts_flags_in_script():
  source = "from absl import flags\nif __name__ == '__main__':\n  pass"
  modules = _Modules({**_GOOD, 'cleanba_acme.launchers.train': source})
  assert not _flags_outside_scripts(modules)


@pytest.mark.parametrize('check, name, source, message', _PLANTED)
def test_check_finds_planted_mistake(check, name, source, message):
  errors = check(_Modules({**_GOOD, name: source}))
  assert len(errors) == 1
  assert message in errors[0]
