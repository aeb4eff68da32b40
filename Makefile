# Every target does the set-up it needs; `make help` lists them.

# A user's choice of Python version for other work must not reach ours.
unexport PYENV_VERSION

VENV := .venv
# `make` finds a Python 3.10 by itself; PYTHON=/path/to/python3.10 names one.
PYTHON ?=
# What `make train` runs: about a minute of PPO on Catch, as processes.
# TRAIN_FLAGS replaces all of it; EXTRA_FLAGS is added, and wins.
TRAIN_FLAGS ?= --env=Catch-v0 --launch=processes --num_actors=2 \
  --num_envs=32 --unroll_length=18 --total_steps=60000 \
  --config.num_epochs=2 --config.learning_rate=2e-3 \
  --output_dir=results/catch
EXTRA_FLAGS ?=
# For example BENCH_FLAGS='--only=ppo-mlp --json=bench.json'.
BENCH_FLAGS ?=
# For example PYTEST_FLAGS='-m slow' or PYTEST_FLAGS='-k catch'.
PYTEST_FLAGS ?=
BAZEL ?= bazel
BAZEL_PACKAGES := bazel-bootstrap bazel-rules-java bazel-rules-proto \
  bazel-platforms

BIN := $(VENV)/bin
STAMP := $(VENV)/set_up

.DEFAULT_GOAL := help
.PHONY: help setup train test figures bench bazel bazel-test lock clean

help:  ## Lists the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | \
	  expand -t 18

setup: $(STAMP)  ## Makes .venv with the locked versions and this project.
	@:

# Remade when what is to be installed changes; the stamp comes last, so a set-up
# that was interrupted is begun again.
$(STAMP): requirements.lock setup.py pyproject.toml
	@test -x $(BIN)/python && \
	  $(BIN)/python -c 'import sys; assert sys.version_info[:2] == (3, 10)' \
	    2> /dev/null || { \
	  python=$$(PYTHON='$(PYTHON)' sh tools/find_python.sh) && \
	  echo "Making $(VENV) of $$python" && \
	  "$$python" -m venv --clear $(VENV); }
	@echo 'Installing requirements.lock'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --requirement requirements.lock
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

train: setup  ## Trains PPO on Catch; see TRAIN_FLAGS and EXTRA_FLAGS.
	$(BIN)/python -m cleanba_acme.launchers.train $(TRAIN_FLAGS) $(EXTRA_FLAGS)

# Two files at a time: many tests wait for processes.
test: setup  ## Runs the tests that are not slow; see PYTEST_FLAGS.
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile \
	  --no-loadscope-reorder $(PYTEST_FLAGS)

figures: setup  ## Remakes the figures of docs/reproducibility.md.
	$(BIN)/python -m cleanba_acme.launchers.figures

bench: setup  ## Measures the parts of runs, and runs against their limits.
	$(BIN)/python -m cleanba_acme.launchers.bench $(BENCH_FLAGS)

# Nothing is installed where there is a Bazel, and nothing but these packages.
bazel:
	@command -v $(BAZEL) > /dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  echo 'Installing $(BAZEL_PACKAGES)' && \
	  { apt-get -qq install -y $(BAZEL_PACKAGES) > /dev/null 2>&1 || \
	    { apt-get -qq update && \
	      apt-get -qq install -y $(BAZEL_PACKAGES) > /dev/null; }; }; } || { \
	  echo 'Bazel is missing. On Debian: apt-get install $(BAZEL_PACKAGES)' \
	    >&2; \
	  exit 1; }

# The interpreter's path must be absolute, so .bazelrc cannot hold it.
bazel-test: setup bazel  ## Runs //tests/... under Bazel, offline.
	$(BAZEL) test --python_path='$(CURDIR)/$(BIN)/python' //tests/...

# The newest versions that setup.py's extra `dev` allows.
lock:  ## Writes requirements.lock anew from setup.py.
	@python=$$(PYTHON='$(PYTHON)' sh tools/find_python.sh) && \
	  folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  "$$python" -m venv "$$folder" && \
	  "$$folder/bin/python" -m pip install --quiet --upgrade pip && \
	  "$$folder/bin/python" -m pip install --quiet '.[dev]' && \
	  { sed -n '/^#/p' requirements.lock && \
	    "$$folder/bin/python" -m pip freeze --all --exclude cleanba_acme; } \
	    > "$$folder/lock" && \
	  cp "$$folder/lock" requirements.lock

clean:  ## Removes .venv and everything built; results/ stays.
	@! command -v $(BAZEL) > /dev/null || $(BAZEL) clean --expunge
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
