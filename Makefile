# Each target works alone in a fresh clone: it creates .venv and installs what it needs first.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
JOBS ?= 2
N ?= 2000
BENCH ?=
VALIDATE ?=

BIN := .venv/bin
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
BY_FILE := --dist loadfile --no-loadscope-reorder
SUB := $(MAKE) --no-print-directory --silent

.PHONY: help demo test slow kernels cluster validate conformance papers bench lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo          compare six ways of serving on a synthetic trace; writes results/quickstart"
	@echo "make test          run the quick tests"
	@echo "make slow          run the slow tests (packaging, long random runs)"
	@echo "make kernels       check the Triton kernels without a GPU (installs torch and triton)"
	@echo "make cluster       run sweeps on Ray clusters of this machine (installs ray and optuna)"
	@echo "make validate      hold the simulator against measured servers (needs the shared data)"
	@echo "make conformance   compare with the reference on N=2000 random workloads"
	@echo "make papers        redo the figures of serving papers; writes results/papers (ten to twenty minutes)"
	@echo "make bench         measure speed against its targets, per policy"
	@echo "make lint          ruff, its formatter and mypy"
	@echo "make clean         remove .venv and caches (results stay)"

demo:
	@echo "make demo: installs phasewise into .venv if need be, then runs: phasewise run quickstart"
	@$(SUB) .venv/.installed
	@$(BIN)/phasewise run quickstart

test:
	@echo "make test: installs the development tools into .venv if need be, then runs the quick tests"
	@$(SUB) .venv/.installed-dev
	@$(PYTEST) $(BY_FILE) $(TESTFLAGS)

slow:
	@echo "make slow: installs the development tools into .venv if need be, then runs the slow tests"
	@$(SUB) .venv/.installed-dev
	@$(PYTEST) $(BY_FILE) -m "slow and not gpu" $(TESTFLAGS)

kernels:
	@echo "make kernels: installs torch and triton into .venv if need be, then checks the kernels on the CPU"
	@$(SUB) .venv/.installed-kernels
	@$(PYTEST) --dist load -m "kernels and not gpu" $(TESTFLAGS)

cluster:
	@echo "make cluster: installs ray and optuna into .venv if need be, then runs sweeps and searches on clusters"
	@$(SUB) .venv/.installed-cluster
	@$(BIN)/python -m pytest -m cluster $(TESTFLAGS)

validate:
	@echo "make validate: simulates what was measured of real servers; writes results/validation (a few minutes)"
	@$(SUB) .venv/.installed
	@$(BIN)/phasewise validate $(VALIDATE)

conformance:
	@echo "make conformance: compares with the reference simulator on $(N) random workloads"
	@$(SUB) .venv/.installed-dev
	@PHASEWISE_CONFORMANCE_N=$(N) $(PYTEST) --dist load tests/conformance -m "not bench and not gpu" $(TESTFLAGS)

papers:
	@echo "make papers: redoes the figures of serving papers with synthetic requests; writes results/papers"
	@$(SUB) .venv/.installed
	@$(BIN)/phasewise papers --jobs $(JOBS) --readme experiments/papers/README.md

bench:
	@echo "make bench: measures the speed of every policy, an hour; a part of each, minutes: make bench BENCH=--quick"
	@$(SUB) .venv/.installed-dev
	@$(BIN)/python -m tests.bench.bench $(BENCH)
	@$(BIN)/python -m tests.bench.bench_traces
	@$(BIN)/python -m tests.bench.bench_prefix

lint:
	@echo "make lint: installs the development tools into .venv if need be, then runs ruff and mypy"
	@$(SUB) .venv/.installed-dev
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . && $(BIN)/mypy --no-error-summary
	@echo "lint: no complaints"

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "phasewise needs Python 3.11 or newer, and $(PYTHON) is not; try: make demo PYTHON=python3.12"; \
		exit 1; }
	@$(PYTHON) -m venv .venv || { \
		echo "$(PYTHON) cannot create a virtual environment; on Debian or Ubuntu: apt install python3-venv"; \
		exit 1; }
	@touch $@

.venv/.installed: pyproject.toml constraints.txt | .venv/.created
	@echo "installing phasewise and its dependencies (a minute or two the first time)"
	@$(PIP) --editable .
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | .venv/.created
	@echo "installing phasewise, its dependencies and the development tools (a few minutes the first time)"
	@$(PIP) --editable ".[dev]"
	@touch $@ .venv/.installed

.venv/.installed-kernels: pyproject.toml constraints.txt | .venv/.created
	@echo "installing phasewise, the development tools, torch and triton (large: see the README for a CPU build)"
	@$(PIP) --editable ".[dev,kernels]"
	@touch $@ .venv/.installed .venv/.installed-dev

.venv/.installed-cluster: pyproject.toml constraints.txt | .venv/.created
	@echo "installing phasewise, the development tools and ray (a few minutes the first time)"
	@$(PIP) --editable ".[dev,cluster,search]"
	@touch $@ .venv/.installed .venv/.installed-dev
