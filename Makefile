# Everything runs in .venv, which the first target that needs it creates. `make` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
USABLE := .venv/.usable
INSTALLED := .venv/.installed
DEMO := demo-data/demo.duckdb
STREAMS := .venv-streams/.installed
ROUNDS ?= 50
SEED ?= 1
WORKERS ?= 3
SEEDS ?= 200
FIRST ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo pages serve kafka test test-slow slow-tests check lint docs pictures bench bench-stream chaos simulate soak format generate constraints wheel-demo clean

help:                    ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(USABLE)          ## audit a small synthetic fleet and report the findings: offline, without a key
	$(BIN)/driftline demo

pages: $(DEMO)           ## show the demo in a browser: prints a link that signs in; Ctrl-C stops it
	@$(BIN)/driftline operators revoke demo --db $(DEMO) >/dev/null
	@$(BIN)/driftline operators rotate demo --db $(DEMO)
	@trap : INT; $(BIN)/driftline serve --db $(DEMO) --policy demo-data/policy.yaml 2>demo-data/pages.log \
	  || { cat demo-data/pages.log >&2; exit 1; }

$(DEMO): | $(USABLE)
	$(BIN)/driftline demo

serve: $(USABLE)         ## accept records of your own fleet on loopback, and show its pages; Ctrl-C stops it
	$(BIN)/driftline serve

kafka: $(INSTALLED)      ## run an Apache Kafka at 127.0.0.1:9092 that loses all data at Ctrl-C (needs Java and Maven)
	PYTHONPATH=tests $(BIN)/python -m support.kafka_brokers one --port 9092

# Always write bytecode: without it, four workers and hundreds of processes would compile everything again. If the tests have none yet,
# one process compiles them first.
test test-slow slow-tests soak: export PYTHONDONTWRITEBYTECODE :=
test: $(INSTALLED)       ## run all tests except the slow ones, in a few minutes; make check runs all
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -qq >/dev/null || :
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'not slow' --timeout 300

test-slow: $(INSTALLED)  ## run the slow tests: whole installations, other programs, kills; make soak has the full counts
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -qq >/dev/null || :
	$(BIN)/pytest -n 4 --dist worksteal -m slow

slow-tests: $(INSTALLED) ## measure all tests and update the list of slow ones in tests/slow_tests.txt: half an hour
	@set -eu; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	DRIFTLINE_TEST_MEASURES=$$fresh PYTHONPATH=tests $(BIN)/pytest -n 2 --dist worksteal -p support.slow_tests; \
	PYTHONPATH=tests $(BIN)/python -m support.slow_tests "$$fresh"

check: lint test test-slow ## everything CI checks: format, lint, types, layers, generated files, all tests

lint: $(INSTALLED)       ## everything CI checks except the tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy docs/site
	$(BIN)/lint-imports
	$(BIN)/python -m schemas.generate --check
	$(BIN)/python docs/site/publish.py --check

docs: $(INSTALLED)       ## build the documentation as a site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'The site is in build/site: open build/site/index.html, or with the search: $(BIN)/python -m http.server --directory build/site'

pictures: $(INSTALLED)   ## take the screenshots for the documents again, of the demo in the installed Chromium
	PYTHONPATH=tests:. $(BIN)/python tests/browser/pictures.py

bench: $(INSTALLED)      ## run the benchmarks and print their tables in Markdown
	$(BIN)/python -m benchmarks

bench-stream: $(INSTALLED) $(STREAMS) ## run the benchmark on Kafka and other stream processors, each in its own environment
	$(BIN)/python -m benchmarks stream

# The tests run only a few rounds, because a complete run takes minutes.
chaos: $(INSTALLED)      ## break a complete installation at random points and check the invariants: make chaos ROUNDS=50 SEED=1
	PYTHONPATH=tests:. $(BIN)/python -m chaos --rounds $(ROUNDS) --seed $(SEED) --report docs/reliability.md

simulate: $(INSTALLED)   ## run simulated histories and check the invariants: make simulate SEEDS=10000
	PYTHONPATH=tests:. POLARS_MAX_THREADS=1 $(BIN)/python -m simulation --seeds $(SEEDS) --first $(FIRST)

# A variable instead of a marker: the same tests inject more faults, cover more versions and start every process again
# (tests/support/effort.py).
soak: $(INSTALLED)       ## run the tests with the full counts of kills, rounds and versions, then 400 runs and a week of the real OpenClaw: hours
	DRIFTLINE_TESTS=soak HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n 2 --dist worksteal --timeout 7200 -o faulthandler_timeout=0
	@set -eu; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; export PYTHONPATH=tests:.; \
	$(BIN)/python -m openclaw.verdicts "$$fresh/runs" --healthy 200 --planted 200; \
	$(BIN)/python -m openclaw.week "$$fresh/week"

format: $(INSTALLED)     ## format the code and apply safe lint fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

generate: $(INSTALLED)   ## write the generated files: schemas/records.py, published schemas, the reference
	$(BIN)/python -m schemas.generate
	$(BIN)/python docs/site/publish.py

# Use a separate environment, because pip would not look for newer versions of packages in .venv.
constraints:             ## update constraints.txt to the newest versions that pyproject.toml allows
	@set -eu; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PYTHON) -m venv "$$fresh"; \
	"$$fresh/bin/pip" install --quiet --upgrade pip; \
	"$$fresh/bin/pip" install --quiet --group dev .; \
	{ sed '/^[^#]/d' constraints.txt; \
	  "$$fresh/bin/pip" freeze --all --exclude driftline --exclude setuptools | LC_ALL=C sort -f; } > constraints.new; \
	mv constraints.new constraints.txt

# Runs outside the repository, so that only files in the wheel are found.
wheel-demo: $(INSTALLED) ## build the wheels, install them in an empty environment and run the demo there
	@set -eu; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(BIN)/hatchling build --target wheel --directory "$$fresh"; \
	(cd trial && ../$(BIN)/hatchling build --target wheel --directory "$$fresh"); \
	$(PYTHON) -m venv "$$fresh/venv"; \
	"$$fresh/venv/bin/pip" install --quiet --constraint constraints.txt "$$fresh"/*.whl; \
	cd "$$fresh"; venv/bin/driftline demo --dir "$$fresh/demo-data"

clean:                   ## remove all files that make has created
	rm -rf .venv .venv-streams .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build demo-data
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The pip that comes with Python may be too old for dependency groups, so install the pinned one first.
$(USABLE): pyproject.toml trial/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Driftline needs Python 3.11 or newer, and $(PYTHON) is not. Name another one: make PYTHON=python3.12' >&2; exit 1; }
	@echo 'Installing Driftline into .venv, once; this takes a minute or two …'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --constraint constraints.txt pip
	@$(BIN)/pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable . --editable ./trial
	@touch $@

$(INSTALLED): $(USABLE)
	@echo 'Installing the tools of development into .venv, once; this takes a minute or two …'
	@$(BIN)/pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --group dev --editable . --editable ./trial
	@touch $@

$(STREAMS): benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-streams
	.venv-streams/bin/pip install --quiet --requirement benchmarks/requirements.txt
	@touch $@
