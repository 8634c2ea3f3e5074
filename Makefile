# `make` lists the targets. Each target installs its dependencies; only make and a Python >= 3.11 are required.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BENCH_VENV := .venv-bench
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH_VENV)/.installed

# PYTHON is the first interpreter that is new enough; those that can make environments come first. `make PYTHON=…`
# chooses another. An interpreter that cannot be started (a pyenv shim of a version that is not active) is skipped.
PYTHONS := python3 python3.13 python3.12 python3.11 python3.14 $(wildcard $(HOME)/.pyenv/versions/3.1[1-4].*/bin/python3)
PYTHON ?= $(shell for need in sys,venv,ensurepip sys; do for name in $(PYTHONS); do \
	"$$name" -c "import $$need; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))" >/dev/null 2>&1 \
	&& { echo "$$name"; exit; }; done; done)

# Install wheels only, unless the caller decides otherwise, because a machine may lack a compiler.
export PIP_ONLY_BINARY ?= :all:
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Empty: Python stores compiled modules, also where the environment forbids that. The tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

# Arguments for pytest, e.g. `make test ARGS='-k fork -x'`.
ARGS ?=
TEST_SECONDS ?= 2400
BOUNDED := $(if $(shell command -v timeout),timeout --kill-after=30 $(TEST_SECONDS))

# `make chaos DURATION=600 SEED=7 REDIS=sentinel`; REDIS is pair, sentinel or cluster. `make dashboards DURATION=120`
DURATION ?= 60
SEED ?= 1
REDIS ?= pair

# $(call install,<environment>,<extra>)
define install
	@test -n "$(PYTHON)" || { echo "runyard needs Python 3.11 to 3.14; found none. Install one or give its path: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || { echo "$(PYTHON) is not a Python 3.11 to 3.14 that runs here; give the path of one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make environments: install its venv package (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(1)
	$(1)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(1)/bin/python -m pip install --quiet -e ".[$(2)]"
endef

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | while IFS=$$'\t' read -r name text; do printf '  %-15s %s\n' "$$name" "$$text"; done

$(STAMP): pyproject.toml
	$(call install,$(VENV),dev)
	@touch $@

$(BENCH_STAMP): pyproject.toml
	$(call install,$(BENCH_VENV),bench)
	@touch $@

.PHONY: venv
venv: $(STAMP) ## Make .venv with everything for development

.PHONY: console
console: $(STAMP) ## Build the console that the API serves at /console
	$(BIN)/python api/console/build.py

.PHONY: test
test: $(STAMP) console ## Run the whole test suite against private servers
	$(BOUNDED) $(BIN)/python -m pytest -n 4 --dist loadgroup $(ARGS)

.PHONY: long
long: ## Run the whole test suite with all cases of every test, which takes an hour
	$(MAKE) test RUNYARD_TEST_LONG=1 TEST_SECONDS=7200

.PHONY: unit
unit: $(STAMP) ## Run the tests that need no server
	$(BIN)/python -m pytest tests/unit $(ARGS)

.PHONY: properties
properties: $(STAMP) ## Convert 5,000 generated messages between each pair of message formats
	RUNYARD_TEST_FORMATS=5000 $(BIN)/python -m pytest --timeout 900 tests/unit/formats $(ARGS)

.PHONY: chaos
chaos: $(STAMP) ## Kill, pause and disconnect processes and servers for DURATION seconds, then check every promise
	$(BIN)/python -m tests.chaos --duration $(DURATION) --seed $(SEED) --redis $(REDIS)

.PHONY: growth
growth: $(STAMP) ## Load a large deployment, and check that speed and idle load are those of a small one
	$(BIN)/python -m tests.growth

.PHONY: console-figures
console-figures: $(STAMP) console ## Measure the console on a large thread, and prompts beside 200 idle consoles
	$(BIN)/python -m tests.console.figures

.PHONY: sizing
sizing: $(STAMP) ## Measure what runs, tokens, suspended runs, forks, streams and processes cost
	$(BIN)/python -m benchmarks.sizing $(ARGS)

.PHONY: dashboards
dashboards: $(STAMP) ## Play a deployment for DURATION seconds, and draw each dashboard from a real Prometheus, with a table of all queries, in build/dashboards
	$(BIN)/python -m pip install --quiet "matplotlib>=3.9"
	$(BIN)/python -m tests.monitoring --seconds $(DURATION) --out build/dashboards

.PHONY: schema
schema: $(STAMP) ## Write schema.sql, the page that shows what all migrations and functions amount to
	$(BIN)/python -m tests.support.schema_page

.PHONY: mutants
mutants: $(STAMP) ## Remove one guard after the other and check that a test, or chaos, fails (ARGS: words of names, --continue)
	$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: demo
demo: $(STAMP) console ## Start servers and workers and show what runyard does, in half a minute
	$(BIN)/runyard demo

.PHONY: bench
bench: $(BENCH_STAMP) ## Measure runyard and its peers, in a separate environment
	$(BENCH_VENV)/bin/python -m benchmarks $(ARGS)

.PHONY: clean
clean: ## Remove environments, caches and build results
	rm -rf $(VENV) $(BENCH_VENV) build dist api/console/node_modules api/runyard_api/console_files .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find runner backends api examples tests -name __pycache__ -type d -prune -exec rm -rf {} +
