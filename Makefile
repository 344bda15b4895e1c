# Two commands do all the set-up: `make demo` shows what voicemem does, `make test` runs every test.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check bench fuzz schemathesis clean

demo: .venv/installed
	@if [ -t 1 ]; then $(BIN)/voicemem demo; else $(BIN)/voicemem demo --fast; fi

test: .venv/installed-tests
	$(BIN)/pytest

# What is checked besides the tests: lint, format, types.
check: .venv/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed-tests
	$(BIN)/python -m bench.fold
	$(BIN)/python -m bench.ingest

# Ten minutes each; they stop at what they find. Longer: .venv/bin/python -m fuzz.wire -max_total_time=SECONDS
fuzz: .venv/installed-tests
	$(BIN)/python -m fuzz.wire -max_total_time=600
	$(BIN)/python -m fuzz.fold -max_total_time=600

# Calls every REST route as /openapi.json says, and as it does not, for ten minutes. Other calls: make schemathesis SEED=2
SEED ?= 1
schemathesis: .venv/installed-tests
	SCHEMATHESIS_SECONDS=300 SCHEMATHESIS_SEED=$(SEED) $(BIN)/pytest tests/test_schemathesis.py

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "voicemem needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/installed-tests: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis
