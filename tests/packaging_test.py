"""Tests what is installed, and with how little of it the components run."""

import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

from packaging import requirements as requirements_lib
from packaging import utils
import pytest

_PACKAGE = 'cleanba_acme'
# Not resolved: under Bazel the tree is made of links, each to a single file.
_ROOT = pathlib.Path(__file__).absolute().parents[1]

# Modules, and packages with all that is in them, that are for an extra of
# setup.py and may fail to import without it.
_FOR_EXTRAS = (
    'cleanba_acme.environments.gymnasium_adapter',
    'cleanba_acme.launchers',
    'cleanba_acme.replay',
)

# Imports everything else and prints the names, in a process which finds none of
# what comes with extras. (TensorFlow Probability finds its JAX half all the
# same.)
_IMPORT_COMPONENTS = '''
import importlib
import pkgutil
import sys

FOR_EXTRAS = sys.argv[1:]
FORBIDDEN = {
    'bsuite', 'courier', 'dm_control', 'envpool', 'fancyflags', 'gym',
    'gymnasium', 'launchpad', 'matplotlib', 'mujoco', 'pandas', 'psutil',
    'reverb', 'rich', 'tensorboard', 'tensorflow'}


class Forbid:

  def find_spec(self, name, path=None, target=None):
    del path, target
    # What libraries expect that try whether there is a module.
    if name.split('.')[0] in FORBIDDEN:
      raise ModuleNotFoundError(f'No module named {name!r}', name=name)


sys.meta_path.insert(0, Forbid())
import cleanba_acme


def walk(package):
  for info in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):
    if info.name not in FOR_EXTRAS:
      module = importlib.import_module(info.name)
      print(info.name)
      if info.ispkg:
        walk(module)


walk(cleanba_acme)
assert not FORBIDDEN & sys.modules.keys()
'''


def _copy_sources(folder: pathlib.Path) -> pathlib.Path:
  """Copies what a wheel is built from, so that building leaves no traces."""
  for name in ('setup.py', 'pyproject.toml', 'README.md'):
    if (_ROOT / name).exists():
      shutil.copy(_ROOT / name, folder)
  for name in ('agents', 'launchers', _PACKAGE):
    # Under Bazel the package's agents and launchers are real folders, of links
    # to files.
    if (_ROOT / name).exists():
      shutil.copytree(
          _ROOT / name, folder / name, symlinks=True,
          ignore=shutil.ignore_patterns('__pycache__'))
  return folder


def _run(*arguments: str, cwd: pathlib.Path) -> str:
  """Runs this Python with arguments, and returns what it printed."""
  result = subprocess.run(
      (sys.executable,) + arguments, cwd=cwd, capture_output=True, text=True,
      timeout=240, check=False)
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


def _build_wheel(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Builds a wheel, without a network, of a folder or a source distribution."""
  _run('-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation', '--no-index',
       '--disable-pip-version-check', '--wheel-dir', str(folder), str(source),
       cwd=folder)
  wheel, = folder.glob('*.whl')
  return wheel


def _python_files() -> set[str]:
  """Modules of the package as a wheel should name them; follows symlinks."""
  found = set()

  def walk(folder: pathlib.Path, name: str) -> None:
    for path in folder.iterdir():
      if path.is_dir():
        walk(path, f'{name}/{path.name}')
      elif path.suffix == '.py':
        found.add(f'{name}/{path.name}')

  walk(_ROOT / _PACKAGE, _PACKAGE)
  return found


@pytest.fixture(name='sources', scope='module')
def _sources(tmp_path_factory) -> pathlib.Path:
  return _copy_sources(tmp_path_factory.mktemp('sources'))


@pytest.fixture(name='wheel', scope='module')
def _wheel(sources, tmp_path_factory) -> pathlib.Path:
  return _build_wheel(sources, tmp_path_factory.mktemp('wheel'))


def _names(wheel: pathlib.Path) -> list[str]:
  with zipfile.ZipFile(wheel) as archive:
    return archive.namelist()


def test_wheel_holds_every_module_under_its_import_name(wheel):
  modules = {name for name in _names(wheel) if name.endswith('.py')}
  assert modules == _python_files()
  assert f'{_PACKAGE}/agents/ppo/__init__.py' in modules
  assert f'{_PACKAGE}/launchers/__init__.py' in modules


def test_wheel_has_one_top_level_package(wheel):
  tops = {name.split('/')[0] for name in _names(wheel)}
  assert {top for top in tops if not top.endswith('.dist-info')} == {_PACKAGE}
  with zipfile.ZipFile(wheel) as archive:
    top_level, = (n for n in archive.namelist() if n.endswith('top_level.txt'))
    assert archive.read(top_level).decode().split() == [_PACKAGE]


def test_wheel_states_version_of_package(wheel):
  source = (_ROOT / _PACKAGE / '__init__.py').read_text(encoding='utf-8')
  version = re.search(r"__version__ = '(.*)'", source).group(1)
  assert wheel.name == f'{_PACKAGE}-{version}-py3-none-any.whl'


def test_source_distribution_makes_the_same_wheel(
    sources, wheel, tmp_path):
  _run('setup.py', '--quiet', 'sdist', '--dist-dir', str(tmp_path), cwd=sources)
  sdist, = tmp_path.glob('*.tar.gz')
  names = _names(_build_wheel(sdist, tmp_path))
  assert sorted(names) == sorted(_names(wheel))


def test_components_run_without_extras(wheel, tmp_path):
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(tmp_path)
  # A script's own folder comes first on its path, before the checkout.
  script = tmp_path / 'import_components.py'
  script.write_text(_IMPORT_COMPONENTS, encoding='utf-8')
  imported = set(_run(str(script), *_FOR_EXTRAS, cwd=tmp_path).split())
  modules = {
      name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')
      for name in _python_files()}
  assert imported == {
      name for name in modules - {_PACKAGE} if not name.startswith(_FOR_EXTRAS)}


def _requirements(
    wheel: pathlib.Path) -> list[tuple[str, requirements_lib.Requirement]]:
  """What a wheel asks for, each with the extra it is part of, or with ''."""
  with zipfile.ZipFile(wheel) as archive:
    metadata, = (n for n in archive.namelist() if n.endswith('/METADATA'))
    lines = re.findall(
        r'^Requires-Dist: (.*)$', archive.read(metadata).decode(), re.MULTILINE)
  requirements = []
  for line in lines:
    extra = re.search(r'extra == .(\w+)', line)
    requirements.append((
        extra.group(1) if extra else '', requirements_lib.Requirement(line)))
  return requirements


def test_components_ask_for_no_extras(wheel):
  names = {
      utils.canonicalize_name(requirement.name)
      for extra, requirement in _requirements(wheel) if not extra}
  assert 'jax' in names
  assert not names & {
      'dm-launchpad', 'dm-reverb', 'tensorflow-cpu', 'envpool', 'pytest'}


def test_every_package_folder_has_its_files():
  # Bazel and setuptools both pass over, in silence, a folder that lacks them.
  for name in {pathlib.PurePath(file).parent for file in _python_files()}:
    assert (_ROOT / name / '__init__.py').exists(), f'{name}/__init__.py'
    # Bazel itself shows tests no BUILD files.
    if (_ROOT / 'BUILD').exists():
      assert (_ROOT / name / 'BUILD').exists(), f'{name}/BUILD'


def test_lock_has_exact_versions_that_setup_allows(wheel):
  locked = {}
  lock = (_ROOT / 'requirements.lock').read_text(encoding='utf-8')
  for line in lock.splitlines():
    if not line.startswith('#'):
      match = re.fullmatch(r'([\w.-]+)==([\w.+!]+)', line)
      assert match, f'Not an exact version: {line}'
      locked[utils.canonicalize_name(match.group(1))] = match.group(2)
  assert utils.canonicalize_name(_PACKAGE) not in locked
  for extra, requirement in _requirements(wheel):
    version = locked.get(utils.canonicalize_name(requirement.name))
    assert version is not None, f'{requirement} ({extra}) is not locked.'
    assert requirement.specifier.contains(version), (
        f'{requirement} does not allow the locked {version}.')
