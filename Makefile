# Everything runs from a fresh clone with make and Python 3.11 or newer; `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# With it, each of the hundreds of processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
# The interpreter of a new .venv: `make PYTHON=/path/to/python …`; else the first that really runs and is new enough.
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)
CHAOS_SECONDS ?= 600
JOBS ?= 2000
FUZZ_STATEMENTS ?= 1000000
UV ?= $(shell command -v uv || echo $(BIN)/uv)
COMPILE = $(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" --no-emit-index-url $(UPGRADE)

# SEED repeats an order of the tests, which a run prints as --randomly-seed; without it each run has another.
ORDER = $(if $(SEED),--randomly-seed=$(SEED))
PYTEST = $(BIN)/python -m pytest $(ORDER)
# Each worker has a database of its own on one embedded server; what starts processes waits more than it computes.
WORKERS ?= 4
PARALLEL = --numprocesses=$(WORKERS) --no-loadscope-reorder --max-worker-restart=0 --durations=$(DURATIONS)
DURATIONS ?= 30
HERE = not image and not system
# What needs system packages: naming its folders saves collecting all the others.
SYSTEM_TESTS := tests/system tests/deployment
CHAOS_TESTS := tests/system/test_chaos.py tests/system/test_failover.py
KEY ?= bigint

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: venv ## run the whole job flow on an embedded PostgreSQL and verify it
	@$(BIN)/python -m project.demo

.PHONY: serve
serve: venv ## run everything on the demo's data; prints address and login of the dashboard
	@$(BIN)/python -m project.demo --serve

.PHONY: slow-api
slow-api: venv ## while `make serve` runs: let 2,000 jobs wait for a slow API at once; JOBS=…
	@$(BIN)/python -m project.demo.manage call_slow_api --jobs $(JOBS)

.PHONY: docs
docs: venv ## build the documentation site in .site/html; a broken link or anchor fails it
	@$(BIN)/python -m project.local.site

.PHONY: pictures
pictures: venv ## take the pictures of the admin in docs/images (needs Debian's chromium)
	@PICTURES=docs/images $(PYTEST) -p no:cacheprovider tests/system/test_pictures.py tests/system/test_staff_browser.py

.PHONY: psql
psql: venv ## open psql on the database of the demo, while `make serve` runs or alone
	@$(BIN)/python -m project.demo.psql $(PSQL_ARGS)

.PHONY: test
test: venv ## run the checks, then every quick test that needs no system package; what fails soonest comes first
	@$(MAKE) --jobs --output-sync=target PYRIGHT=salon_jobs check $(if $(PYTEST_ARGS),,test-units)
	@$(MAKE) MARKS="$(if $(PYTEST_ARGS),,not unit and )not slow and $(HERE)" tests
	@echo
	@echo "Left out: slow tests, deeper searches, pyright on tests and demo (make test-all); what needs system packages (make test-system)."

.PHONY: test-all
test-all: test test-slow test-keys ## the same, then slow tests, deeper searches, and stores whose keys are numbers

.PHONY: test-units
test-units: venv ## run the tests that need neither a database nor a process
	@$(PYTEST) -q -m "unit and not slow and $(HERE)"

.PHONY: test-slow
test-slow: venv ## run the slow tests, search deeper for counter-examples, and have pyright check tests and demo
	@$(MAKE) --jobs --output-sync=target MARKS="(slow or hypothesis) and $(HERE)" DEPTH=--hypothesis-profile=full tests pyright

# PYTEST_ARGS chooses tests and options: make test PYTEST_ARGS="tests/jobs -k keys".
.PHONY: tests
tests:
	@$(PYTEST) -m "$(MARKS)" $(PARALLEL) $(DEPTH) $(PYTEST_ARGS)

.PHONY: test-keys
test-keys: venv ## run what a store's key has a part in with keys of another type: KEY=bigint or text; TESTS=… chooses tests
	@$(BIN)/python -m project.local.keys $(KEY) -m "not slow and $(HERE)" $(ORDER) $(PARALLEL) $(TESTS)

# In their own order: what a browser does in a file follows one site, so a process takes whole files.
SYSTEM = $(BIN)/python -m pytest -p no:randomly -m system
.PHONY: test-system
test-system: venv ## run the tests that need Debian's chromium, pgbouncer and systemd, and a short chaos
ifdef PYTEST_ARGS
	@$(SYSTEM) $(PYTEST_ARGS)
else
	@$(MAKE) --jobs --keep-going --output-sync=target system-chaos test-system-without-chaos
endif

.PHONY: system-chaos test-system-without-chaos
system-chaos:
	@$(SYSTEM) $(CHAOS_TESTS)
test-system-without-chaos: venv
	@$(SYSTEM) --numprocesses=2 --dist=loadfile --max-worker-restart=0 $(SYSTEM_TESTS) $(addprefix --ignore=,$(CHAOS_TESTS))

.PHONY: test-everything
test-everything: export FLOW_GRAPHS = 12
test-everything: venv ## all tests there are, nightly: those of CI whatever changed, chaos and the mutants
	@$(MAKE) --keep-going test-all test-system test-image demo chaos chaos-outbox mutants

.PHONY: mutants
mutants: venv ## break the code in some sixty places, one after the other, and see that a test fails each time
	@$(BIN)/python -m tests.mutants

.PHONY: test-image
test-image: venv ## build the image and run the compose file in containers, if this machine can; keeps .image
	@# Its first test waits for a base, four images and all services. In their own order: all have the same database, and
	@# the demo's data is compared whole before another test adds a store.
	@$(BIN)/python -m pytest -p no:randomly -m image --override-ini faulthandler_timeout=2400 tests/image

.PHONY: test-matrix
test-matrix: venv ## run the quick tests on each Python, Django and PostgreSQL; TESTS=… chooses tests; keeps .matrix
	@$(BIN)/python -m project.local.matrix $(TESTS)

.PHONY: chaos
chaos: venv ## kill, stop and starve workers and server for ten minutes, then fail over for ten; count every job
	@$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS)
	@$(MAKE) chaos-failover

.PHONY: chaos-failover
chaos-failover: venv ## promote a standby again and again, with and without loss; count every job and message
	@$(BIN)/python -m tests.chaos.failover --seconds $(CHAOS_SECONDS)

.PHONY: chaos-outbox
chaos-outbox: venv ## kill, freeze and starve relays, broker and database for ten minutes, and count every message
	@$(BIN)/python -m tests.chaos.outbox --seconds $(CHAOS_SECONDS)

.PHONY: fuzz
fuzz: venv ## look for leaks between stores in a million random statements; minutes
	@$(BIN)/python -m tests.tenancy.fuzz --statements $(FUZZ_STATEMENTS)

.PHONY: bench
bench: bench-peers ## measure beside peers and bare psycopg; takes three hours or more
	@$(BIN)/python -m benchmarks

.PHONY: bench-quick
bench-quick: venv ## measure with small sizes beside graphile-worker alone; about 4 minutes
	@$(BIN)/python -m benchmarks --install graphile-worker || true
	@$(BIN)/python -m benchmarks --quick

.PHONY: bench-peers
bench-peers: venv ## install the peers of the benchmark into .bench
	@$(BIN)/python -m benchmarks --install || true

.PHONY: bench-cost
bench-cost: venv ## compare what a job costs here and in another commit: BASE=… (default: the last release); 3 minutes
	@$(BIN)/python -m benchmarks.cost $(if $(BASE),--base $(BASE)) $(COST_ARGS)

.PHONY: check
check: venv ## run ruff, mypy and pyright
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy & mypy=$$!; status=0; $(MAKE) pyright || status=$$?; wait $$mypy || status=$$?; exit $$status

.PHONY: pyright
pyright: venv
	@$(BIN)/pyright --pythonpath $(BIN)/python $(PYRIGHT)

# The environment is up to date when it holds a copy of the lock it was made from; contents count, not times.
.PHONY: venv
venv: ## create or update .venv from requirements.lock
	@if cmp -s requirements.lock $(VENV)/installed.lock && $(BIN)/python -c '' 2>/dev/null; then exit 0; fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		for name in $(CANDIDATES); do \
			if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$name; break; fi; \
		done; \
		if [ -z "$${found:-}" ]; then \
			echo "Python 3.11 or newer was not found among: $(CANDIDATES). Name it: make PYTHON=…" >&2; exit 1; fi; \
		$$found -m venv --clear $(VENV) || { \
			echo "$$found cannot create virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi; \
	echo "Installing the locked requirements into $(VENV)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--only-binary :all: --no-binary nkeys --requirement requirements.lock; \
	cp requirements.lock $(VENV)/installed.lock

.PHONY: lock
lock: ## resolve the requirements again; UPGRADE=--upgrade takes newer versions
	@command -v $(UV) >/dev/null || $(BIN)/python -m pip install --quiet uv
	@$(COMPILE) --group dev --output-file requirements.lock
	@$(COMPILE) --group serve --constraint requirements.lock --output-file requirements-runtime.lock

.PHONY: bootstrap-sql
bootstrap-sql: venv ## write bootstrap_sql/roles.sql from the declaration of the roles
	@$(BIN)/python -m project.local.bootstrap_files

.PHONY: clean
clean: ## remove caches and the server of `make serve`; keeps .venv
	@rm -rf .demo .azurite .image .site .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
