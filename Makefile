# Everything runs inside .venv, which is made on first use from the pinned lock files.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help install demo test lint docs unit fuzz audit bench clean

help:
	@echo "make demo     install, then fit NTFA to a simulated study; results in demo/"
	@echo "make test     install, then lint, types, import layers and tests"
	@echo "make docs     build the documentation; open docs/_build/html/index.html"
	@echo "make install  install only"
	@echo "make fuzz     damaged files for every reader, INPUTS=10000 each (an hour); make test does a minute of it"
	@echo "make audit    look up known vulnerabilities of what is pinned (needs a network)"
	@echo "make bench    benchmarks (minutes)"

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.venv/installed-dev: .venv/installed requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

install: .venv/installed

demo: .venv/installed
	$(BIN)/ntfa demo demo --overwrite

test: lint docs unit

lint: .venv/installed-dev
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

# Warnings are errors; nothing is fetched.
docs: .venv/installed-dev
	$(BIN)/python -m sphinx --quiet --fail-on-warning --fresh-env --builder html docs docs/_build/html

unit: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

INPUTS ?= 10000
fuzz: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz_run.py --inputs $(INPUTS)

# In an environment of its own: what it needs is not what we pin.
audit:
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement requirements.lock
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement requirements-dev.lock

bench: .venv/installed-dev
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/recovery.py

clean:
	rm -rf .venv demo docs/_build example-output
