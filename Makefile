# Two commands set everything up on a fresh machine: `make demo` and `make test`.
# They need Python 3.11, make and a package index; no GPU, no account.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check proofs bench docs clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

demo: $(READY)  ## train the calculator agent and show that it learnt
	$(BIN)/python examples/calculator/demo.py

test: $(READY)  ## all tests but the slow proofs
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

proofs: $(READY)  ## slow: many kills, five seeds
	$(BIN)/python -m pytest -q -m slow

check: $(READY)  ## lint, format, types, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m osmosis_ai.cli.documents --check

docs: $(READY)  ## write the generated documents
	$(BIN)/python -m osmosis_ai.cli.documents

bench: $(READY)  ## figures of this machine, as ratios measured in one run
	$(BIN)/python bench/startup.py

clean:
	rm -rf $(VENV) .osmosis .mypy_cache .ruff_cache .pytest_cache
