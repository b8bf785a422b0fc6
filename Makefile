# Thin names for what the project can do. Everything runs from .venv; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto

.DEFAULT_GOAL := help
.PHONY: help env run test check format bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: $(READY)  ## create .venv with everything the project uses (torch: CPU build)

$(READY): pyproject.toml docker/install-torch.sh
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mapa needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sh docker/install-torch.sh $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[all,dev]'
	touch $@

run: $(READY)  ## train with 5 edges on a broker of its own, with a live view
	$(BIN)/mapa run quickstart

test: check  ## lint, types and every test that this machine can run
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

check: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## speed, as ratios measured in one run
	$(BIN)/python -m experiments.bench

clean:  ## remove the environment and caches; keeps runs/ and data/
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
