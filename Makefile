# `make` lists the targets. Nothing here needs root, Docker or Java: Python 3.11 and pip are enough.
# Variables: PYTHON (the interpreter that makes .venv), and those named in the targets' texts.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
# pip of the interpreter that was there before, pointed at .venv: works where Debian left out ensurepip.
PIP := $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python

# No Python started here may import from the directory it happens to stand in: `operator/` stands in this one.
export PYTHONSAFEPATH := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-kubernetes check format lock scenario sim explore mutants chaos bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv from requirements.lock (does nothing when it is up to date)

# First what builds PySpark (published as source only), so that the rest, PySpark too, installs from hashed
# files alone: with build isolation pip would fetch the newest setuptools, unpinned and unchecked.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Duramen needs Python 3.11 or newer: make PYTHON=python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || $(PYTHON) -m venv --clear --without-pip .venv
	@awk '/^(setuptools|wheel)==/ { on = 1 } on { print } !/\\$$/ { on = 0 }' requirements.lock \
		> .venv/build.lock
	$(PIP) install --quiet --no-deps --require-hashes -r .venv/build.lock
	$(PIP) install --quiet --no-deps --require-hashes --no-build-isolation -r requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

run: setup ## Start a whole cluster here, append a file, compare, serve (ONCE=1 FILE=path RUNFLAGS=…)
	$(BIN)/duramen run --demo $(if $(ONCE),--once) $(if $(FILE),--file "$(FILE)") $(RUNFLAGS)

test: setup ## Run all the tests (TESTFLAGS="-k name" for some)
	$(BIN)/python -m pytest -q -rs tests -m "not kwok" $(TESTFLAGS)

# The programs take ten minutes to build once, and are built again only when their go.mod changes.
test-kubernetes: setup ## Build a real Kubernetes and run the tests that need one, as far as this machine can
	PYTHONPATH=. $(BIN)/python -m tests.kubernetes $(TESTFLAGS)

check: setup ## Format, lint, types, import contracts, style: what CI asks before the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/style

format: setup ## Format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix --exit-zero --silent .
	$(BIN)/ruff format .

lock: setup ## Remake requirements.lock, newest versions within pyproject.toml (LOCKFLAGS="-P name" for one)
	$(BIN)/uv pip compile pyproject.toml --output-file requirements.lock \
		--all-extras --universal --python-version 3.11 --generate-hashes --no-config \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet $(or $(LOCKFLAGS),--upgrade)

scenario: setup ## Run the text scenarios (REWRITE=1 rewrites what they expect: read the diff)
	$(if $(REWRITE),DURAMEN_REWRITE=1) $(BIN)/python -m pytest -q tests/scenario

# The root is on the path for `tests`; tests/style keeps `operator/` from becoming a module by that.
sim: setup ## Simulate seeds with all checkers (SEEDS=3000, or SEED=7 TRACE=1 for one)
	PYTHONPATH=. $(BIN)/python -m tests.sim \
		$(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace),--seeds $(or $(SEEDS),100)) $(SIMFLAGS)

explore: setup ## Explore every interleaving of small worlds (EXPLOREFLAGS="--bound large")
	PYTHONPATH=. $(BIN)/python -m tests.explore $(EXPLOREFLAGS)

mutants: setup ## Break each rule and find the first seed that sees it (SEEDS=2000)
	PYTHONPATH=. $(BIN)/python -m tests.sim.mutants --seeds $(or $(SEEDS),2000) $(MUTANTFLAGS)

chaos: setup ## Kill, pause and cut off real processes under load (MINUTES=20 SEED=… CHAOSFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),5) \
		$(if $(SEED),--seed $(SEED)) $(CHAOSFLAGS)

bench: setup ## Run the benchmarks (BENCHFLAGS="--help" says which)
	PYTHONPATH=. $(BIN)/python -m tests.bench $(BENCHFLAGS)

clean: ## Remove .venv, caches, build outputs and the local cluster's data
	rm -rf .venv .duramen dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./.git -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
