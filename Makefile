# Set-up and checks. `make demo` and `make test` need Python 3.11 or newer, gcc and apt; they
# install what else is missing, a virtual environment in .venv, and a private copy of CRIU.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
READY := .venv/.ready
# Tests at once: most of their time they wait for what they have started.
AT_ONCE ?= $(shell echo $$(($$(nproc) + 1)))
BUILD_INPUTS := pyproject.toml $(shell find cffi_build -type f -not -path '*/__pycache__/*')

.PHONY: help demo test lint faults native criu torch clean
.DELETE_ON_ERROR:

help: ## Show this
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: criu ## Checkpoint a program, kill it, bring it back
	$(BIN)/gpusnap demo

test: criu lint torch ## All checks: lint, types, tests
	$(BIN)/python .ci/reap $(BIN)/python -m pytest -n $(AT_ONCE) --dist loadfile --max-worker-restart 0

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

faults: criu ## Kill at every point (about 10 min), or RANDOM=N times at random [SEED=, VICTIM=]
	$(BIN)/python -m tests.faults $(if $(RANDOM),--random $(RANDOM)) $(if $(SEED),--seed $(SEED)) \
		$(if $(VICTIM),--victim $(VICTIM))

native: $(READY) ## Build the C code and the cffi modules again after a change in cffi_build
	$(PIP) install --no-build-isolation --no-deps -e .

criu: $(READY)
	@$(BIN)/python -c 'import gpusnap.criu as c; exit(c.search_criu().criu is None)' \
		|| $(BIN)/gpusnap setup-criu

torch: $(READY)
	@bash .ci/torch $(BIN)/python

$(READY): $(BUILD_INPUTS)
	PYTHON=$(PYTHON) bash .ci/system-packages
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -e '.[dev]'
	@touch $@

clean: ## Remove the environment and everything built
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
