# Two commands do all the set-up: `make demo` shows what voicemem does, `make test` runs every test.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check bench fuzz schemathesis asyncapi clean

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

# Asks the AsyncAPI parser (npm) what it thinks of /asyncapi.json; needs node.
asyncapi: .venv/installed
	mkdir -p .asyncapi && cd .asyncapi && npm install --silent --no-fund --no-audit @asyncapi/parser@3.6.3
	$(BIN)/python -c 'from voicemem.server.rest.asyncapi import document; print(document().decode())' > .asyncapi/document.json
	cd .asyncapi && node --input-type=module --eval "import { Parser } from '@asyncapi/parser'; import fs from 'fs'; \
	  const found = await new Parser().parse(fs.readFileSync('document.json', 'utf8')); \
	  for (const one of found.diagnostics) console.log(one.severity, one.message, one.path.join('.')); \
	  process.exit(found.document ? 0 : 1)"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "voicemem needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server]'
	@touch $@

.venv/installed-tests: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis .asyncapi
