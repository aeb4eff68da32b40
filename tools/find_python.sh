#!/bin/sh
# Prints the path of a Python 3.10 that can run Launchpad.
#
# Takes $PYTHON where it is set. Otherwise looks at `python3.10` on the PATH, at
# pyenv's versions, newest first, and at those uv knows or can get. A candidate
# is run, not just found: pyenv has shims for versions that aren't selected, and
# those fail.

reasons=''

# Ends the script with the path of $1 if it will do, else notes why not.
try() {
  [ -n "$1" ] || return 0
  if answer=$("$1" -c '
import sys
if sys.version_info[:2] != (3, 10):
  sys.exit("is Python %d.%d" % sys.version_info[:2])
import ctypes
try:  # Launchpad and Reverb are linked against it.
  ctypes.CDLL("libpython3.10.so.1.0")
except OSError:
  sys.exit("has no shared libpython3.10.so.1.0")
try:  # Debian has them in a package of their own.
  import ensurepip, venv
except ImportError:
  sys.exit("has no venv module")
if sys.prefix != sys.base_prefix:
  # Of a virtual environment, the Python it was made of.
  print(sys.base_prefix + "/bin/python3.10")
else:
  print(sys.executable)' 2>&1); then
    echo "$answer"
    exit 0
  fi
  reasons="$reasons; $1 $(echo "$answer" | head -n 1)"
}

if [ -n "$PYTHON" ]; then
  try "$PYTHON"
else
  try "$(command -v python3.10)"
  for folder in $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10.* \
      2> /dev/null | sort -V -r); do
    try "$folder/bin/python3.10"
  done
  if command -v uv > /dev/null 2>&1; then
    # --system: not the .venv that is about to be made.
    if uv python find --system 3.10 > /dev/null 2>&1 ||
        answer=$(uv python install 3.10 2>&1); then
      try "$(uv python find --system 3.10 2> /dev/null)"
    else
      reasons="$reasons; uv: $(echo "$answer" | head -n 1)"
    fi
  fi
fi

# One line, whatever was tried.
echo "No usable Python 3.10: install it with" \
    "\`PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.10\`, or name" \
    "one with \`PYTHON=/path/to/python3.10\`. Launchpad needs 3.10 and its shared" \
    "library${reasons:+ (tried:${reasons#;})}." >&2
exit 1
