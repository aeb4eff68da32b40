"""Runs one test file under pytest, as Bazel's `py_test` wants it.

Bazel calls this script from the folder that corresponds to the project's, with
the path of the file.
"""

import os
import sys

import pytest


def main() -> int:
  # Bazel gives tests no home; libraries keep their caches there.
  scratch = os.environ['TEST_TMPDIR']
  os.environ.setdefault('HOME', scratch)
  arguments = sys.argv[1:] + [
      '-p', 'no:cacheprovider',
      '--basetemp', os.path.join(scratch, 'pytest'),
      '--junitxml', os.environ['XML_OUTPUT_FILE'],
  ]
  code = pytest.main(arguments)
  # Of some files every test is slow, so that pytest.ini leaves none.
  return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == '__main__':
  sys.exit(main())
