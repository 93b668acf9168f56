# make serve   install into .venv and serve the demo model     (ARGS="--drafter DIR" adds flags of `respsd serve`)
# make test    install into .venv, check style and types, run all tests   (ARGS="-k name" adds flags of pytest)
# make lint    check style and types only
# make format  format the code
# make proto   compile proto/ again
# make clean   remove .venv, builds and caches

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt

# The first Python from 3.11 on that can make a virtual environment; PYTHON=/path/to/python names another.
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do $$python -c "$(USABLE)" 2>/dev/null && echo $$python && break; done)

.PHONY: help serve test lint format proto clean
help:
	@sed -n 's/^# make/make/p' Makefile

serve: $(VENV)/.serve-installed
	$(BIN)/respsd serve --demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The compiler is pinned in the script and installs into a throwaway environment of its own. The second command refuses
# what would break programs that were built against an earlier API.
proto: $(VENV)/.serve-installed
	$(BIN)/python proto/generate.py
	$(BIN)/python proto/snapshot.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second run start at once; a change of the requirements installs again.
$(VENV)/.serve-installed: $(REQUIREMENTS) | $(BIN)/python
	@echo "installing respsd into $(VENV); the first time this takes some minutes"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.test-installed: $(REQUIREMENTS) | $(BIN)/python
	@echo "installing respsd and its test tools into $(VENV); the first time this takes some minutes"
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.serve-installed

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "respsd needs Python 3.11 or newer with its venv module (Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
