# `make demo`, `make docs` and `make test` set up everything they need in .venv; Python 3.11+ and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo docs test lint types tests test-gpu sanitize-gpu bench clean

demo: $(READY)
	$(BIN)/polymax demo --out demo-output

docs: $(READY)
	$(BIN)/python -m website
	@echo open build/website/index.html

test: lint types tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	# kernels that most tests need, each by one process: workers of the tests would compile the same ones side by side
	$(BIN)/python -m polymax warmup --dtype float64
	$(BIN)/python -m pytest -n 2

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

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'polymax needs Python 3.11 or newer'"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf demo-output build dist .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find polymax polymax_recipes tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
