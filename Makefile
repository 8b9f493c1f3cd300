# `make` lists the targets. Nothing here needs root, Docker or Java: Python 3.11 and pip are enough.
# Variables: PYTHON (the interpreter that makes .venv), and those named in the targets' texts.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
# pip of the interpreter that was there before, pointed at .venv: works where Debian left out ensurepip.
PIP := $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python

# No Python started here may import from the directory it happens to stand in: `operator/` stands in this one.
export PYTHONSAFEPATH := 1
# Where this is set, every process that a test starts compiles all its modules anew, half a second each.
export PYTHONDONTWRITEBYTECODE :=

# By content, not by place or time: checkouts share it, and a fresh clone is checked in seconds.
MYPY_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/duramen-tests/mypy

PYTEST := $(BIN)/python -m pytest -q tests --ignore=tests/style
SPREAD := -n auto --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-fast test-kubernetes check format lock docs scenario sim explore mutants chaos bench bench-compare \
	bench-peers bench-flexible bench-metadata stalled dist soak night clean

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

# Files are spread over worker processes, the quiet ones last and alone: tests/scheduling.py.
test: setup ## Run the tests of the gate (TESTFLAGS="-k name" for some): half an hour, a JVM comes along
	$(PYTEST) $(SPREAD) -m "not kubernetes and not night" $(TESTFLAGS)

test-fast: setup ## Run what needs no server, in small sizes: the inner loop, two minutes
	DURAMEN_TIER=fast $(PYTEST) $(SPREAD) -m "not (kubernetes or night or process or zookeeper or gate)" $(TESTFLAGS)

# The programs take ten minutes to build once, and are built again only when their go.mod changes.
test-kubernetes: setup ## Build a real Kubernetes and run the tests that need one, as far as this machine can
	PYTHONPATH=. $(BIN)/python -m tests.kubernetes $(TESTFLAGS)

check: setup ## Format, lint, types, import contracts, style: what CI asks before the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --cache-dir "$(MYPY_CACHE)"
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

# Each of these tests compares a file, or a section of a page, with what the code makes now.
docs: setup ## Remake what is made from code in docs/, and the chart's definitions: read the diff
	DURAMEN_REWRITE=1 $(BIN)/python -m pytest -q \
		tests/unit/test_cli_commands.py::test_the_page_is_that_of_the_code \
		tests/unit/test_error_docs.py::test_the_error_table_is_that_of_the_code \
		tests/unit/test_error_docs.py::test_a_hex_example_is_what_the_code_spells \
		tests/unit/test_openapi.py::test_the_committed_document_is_that_of_the_code \
		tests/component/test_route_verbs.py::test_the_tables_of_the_page_are_those_of_the_code \
		tests/kubernetes/resources/test_definitions.py::test_the_charts_definitions_are_those_of_the_models \
		tests/kubernetes/resources/test_definitions.py::test_the_document_is_that_of_the_models

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

bench-compare: setup ## Compare this tree with another revision, pair by pair (BASE=rev COMPAREFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.bench.compare "$(or $(BASE),HEAD)" $(COMPAREFLAGS)

bench-peers: setup ## Measure real peers and this in turns (SCRIPTS=folder that starts them, PEERFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.bench.peers "$(SCRIPTS)" $(PEERFLAGS)

bench-flexible: setup ## Freeze, slow and fill a bookie under a flexible and a striped log (FIGUREFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.process.flexible_figures $(FIGUREFLAGS)

bench-metadata: setup ## Move 10,000 released segments out of ZooKeeper, and list them (FIGUREFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.process.metadata_figures $(FIGUREFLAGS)

stalled: setup ## Stall 2,000 sockets of each of six kinds at public ports with TLS (SOCKETS=2000)
	DURAMEN_STALLED_SOCKETS=$(or $(SOCKETS),2000) $(BIN)/python -m pytest -q -s tests/component/test_stalled_sockets.py $(TESTFLAGS)

dist: setup ## Make what is shipped in ./dist: wheel, sdist, chart, bill of materials, licences
	PYTHONPATH=. $(BIN)/python -m tests.distribution

soak: setup ## Load a cluster for hours and see whether anything grows (HOURS=8 SOAKFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.soak --hours $(or $(HOURS),8) $(SOAKFLAGS)

# What the gate has no time for: other seeds each time, long chaos, every size turned up. One report.
night: setup ## Play long tests until its time is over, write build/night.md (HOURS=8 NIGHTFLAGS=--help)
	PYTHONPATH=. $(BIN)/python -m tests.night --hours $(or $(HOURS),8) $(NIGHTFLAGS)

clean: ## Remove .venv, caches, build outputs and the local cluster's data
	rm -rf .venv .duramen dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./.git -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
