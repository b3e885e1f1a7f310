# Each target sets itself up on a machine with Python 3.11 or later, and runs.
#
#   make demo        draw what smoothing does, and learn the shortest paths of maps
#   make test        the tests, within ten minutes (make test-slow: those that take longer)
#   make test-core   those that need neither torch nor jax, on a Python of your choice:
#                    make test-core VENV=.venv-3.13 PYTHON=python3.13
#   make lint        style;  make types: static types
#   make bench       speed, against the peers: writes docs/results/speed.md
#   make docs        the documentation as HTML, in out/docs
#   make clean       remove what the other targets made, .venv included

VENV ?= .venv
WORKERS ?= auto
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: demo test test-slow test-core lint types bench docs clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py
	@rm -rf out/shortest-path
	$(BIN)/softsolve run shortest-path --preset quick --out out/shortest-path
	@$(BIN)/softsolve report out/shortest-path > /dev/null
	@echo "What smoothing does: $(CURDIR)/out/demo.png"
	@echo "The experiment's report: $(CURDIR)/out/shortest-path/report/index.html"

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow

test-core: $(VENV)/.core
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" \
	    $$($(BIN)/python tests/core.py)

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.docs
	$(BIN)/python docs/check.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/docs
	@echo "Open out/docs/index.html"

clean:
	rm -rf $(VENV) out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The core alone, and what its tests are written with.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing softsolve and its tests' tools into $(VENV)"
	@$(PIP) -e ".[lp]" hypothesis networkx ortools pytest pytest-xdist
	@touch $@

# One stamp for each set of extras; a change of either file installs again.
$(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing softsolve[$*] into $(VENV)"
	@$(PIP) -e ".[$*]"
	@touch $@

$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3 python; do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then \
	        echo "Making $(VENV) with $$python"; exec $$python -m venv $(VENV); \
	    fi; \
	done; \
	echo "softsolve needs Python 3.11 or later with its venv module, and found none." >&2; \
	echo "Install it (on Debian: apt install python3 python3-venv), or say where it is:" >&2; \
	echo "make PYTHON=/path/to/python3.11" >&2; \
	exit 1
