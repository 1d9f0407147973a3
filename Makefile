# `make demo`, `make docs` and `make test` install what they need into .venv; Python 3.11+, bash and make are enough.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
# a line for each package that pip fetches, and one for the installation
PACKAGES := sed -u -n 's/^Collecting \([^ ]*\).*/  \1/p;s/^Installing .*/  installing all of them/p'
# each process has the tests of whole folders, and what they share, until the other one has none left
TESTS := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo docs test lint types tests warm test-gpu sanitize-gpu bench clean

demo: $(DEMO)
	$(BIN)/polymax demo --out demo-output

docs: $(READY)
	$(BIN)/python -m website
	@echo open build/website/index.html

test: lint
	# one core checks types while the other compiles
	$(MAKE) --jobs 2 types warm
	$(TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

tests: warm
	$(TESTS)

# kernels that most tests need, each by one process: workers of the tests would compile the same ones side by side
warm: $(READY)
	$(BIN)/python -m polymax warmup --dtype float64

# these two need no installation: the Python that has torch, Triton and pytest runs them from the source tree
test-gpu:
	$(PYTHON) -m tests.device

sanitize-gpu:
	$(PYTHON) -m tests.device.sanitize

bench: $(READY)
	$(BIN)/python -m benchmarks run simplex
	$(BIN)/python -m benchmarks run latency
	$(BIN)/python -m benchmarks run structures
	$(BIN)/python -m benchmarks run sparsemap
	$(BIN)/python -m benchmarks run throughput
	$(BIN)/python -m benchmarks run memory

# the packages of tests and docs are not for the demo
$(DEMO) $(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'polymax needs Python 3.11 or newer'"
	$(PYTHON) -m venv $(VENV)
	@echo "installing packages into $(VENV), once:"
	@$(BIN)/python -m pip install --upgrade --constraint constraints.txt \
		--editable ".[$(if $(filter $(DEMO),$@),demo,dev)]" | $(PACKAGES)
	touch $@

clean:
	rm -rf demo-output build dist .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find polymax polymax_recipes tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
