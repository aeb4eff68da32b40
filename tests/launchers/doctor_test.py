"""The doctor finds what is wrong, and says what mends it."""

import importlib.metadata
import subprocess
import sys

from cleanba_acme.launchers import doctor
import pytest

_LOCK = 'jax==0.5.3\nnumpy==1.26.4\nenvpool==0.8.4\n'


def _installed(versions):
  def find(package):
    if package not in versions:
      raise importlib.metadata.PackageNotFoundError(package)
    return versions[package]
  return find


def test_versions():
  findings = doctor.check_versions(
      _LOCK, _installed({'jax': '0.5.3', 'numpy': '2.0.0'}))
  assert [finding.is_well for finding in findings] == [True, False, False]
  assert findings[1].what == 'numpy 2.0.0, but 1.26.4 is in the lock file'
  assert findings[1].mend == 'pip install numpy==1.26.4'
  assert findings[2].what.startswith('envpool not installed')


@pytest.mark.parametrize('version', [(3, 11, 7), (3, 9, 1)])
def test_another_python(version):
  finding = doctor.check_python(version)
  assert not finding.is_well
  assert '3.10' in finding.what and 'make setup' in finding.mend


def test_imports():
  assert doctor.check_imports('print("seen")', 'this') == doctor.Finding(
      True, 'this: seen')
  broken = doctor.check_imports('import no_such_module', 'that', 'mend it')
  assert not broken.is_well and broken.mend == 'mend it'
  assert "No module named 'no_such_module'" in broken.what
  # As a library with undefined symbols may end: without an exception.
  killed = doctor.check_imports(
      'import os, signal; os.kill(os.getpid(), signal.SIGKILL)', 'it')
  assert killed.what == 'it: exit status -9'
  hung = doctor.check_imports('import time; time.sleep(60)', 'it', timeout_s=1)
  assert hung.what == 'it: no answer in 1 s'


def test_more_actors_than_cores():
  assert doctor.check_cpus(2, num_cpus=2).is_well
  assert doctor.check_cpus(3, num_cpus=2).mend == (
      'train with --num_actors=2 at most')


def test_shared_memory_that_is_not_there(tmp_path):
  assert not doctor.check_shared_memory(str(tmp_path / 'none')).is_well


def test_status_and_output(capsys):
  good, bad = doctor.Finding(True, 'a'), doctor.Finding(False, 'b', 'do c')
  assert doctor.report([good]) == 0
  assert doctor.report([good, bad]) == 1
  assert capsys.readouterr().out.splitlines()[-4:] == [
      'ok   a', 'BAD  b', '     mend: do c', '1 of 2 checks failed.']


def test_works_on_a_broken_installation():
  # Nothing but the standard library can be imported.
  code = ('import sys\n'
          'class Refuse:\n'
          '  def find_spec(self, name, path=None, target=None):\n'
          '    if name.split(".")[0] in ("jax", "numpy", "absl", "launchpad"):\n'
          '      raise ImportError(name)\n'
          'sys.meta_path.insert(0, Refuse())\n'
          'from cleanba_acme.launchers import doctor\n'
          'print(doctor.check_ports().is_well)')
  ended = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True,
      env={'PYTHONPATH': ':'.join(filter(None, sys.path))})
  assert ended.stdout.strip() == 'True'


def test_this_installation_is_well():
  findings = doctor.examine(num_actors=1)
  assert not [finding for finding in findings if not finding.is_well]
