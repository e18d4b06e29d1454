# `make run` and `make test` are all a newcomer needs; both set up .venv on their first call only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test install check bench clean

run: $(INSTALLED)  ## train the default preset
	$(BIN)/aiorl run

test: check  ## lint, types, import contracts, tests
	$(BIN)/pytest -n 3

check: $(INSTALLED)  ## everything but the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)  ## the short benchmarks, twenty minutes; writes docs/benchmarks.md
	$(BIN)/python -m benchmarks

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "aiorl needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
