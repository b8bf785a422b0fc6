# Short names for the project's commands. Everything runs from .venv; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto

.DEFAULT_GOAL := help
.PHONY: help env run test test-fast test-all test-network test-statistics test-experiments test-docs test-containers \
	test-browser test-cluster cluster cluster-stop check format docs docs-links bench clean images images-offline engine engine-stop up down

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

env: $(READY)  ## create .venv with everything the project uses (torch: CPU build)

$(READY): pyproject.toml docker/install-torch.sh
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mapa needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch (CPU build) and the other packages into $(VENV): minutes at the first time, pip shows what it loads"
	sh docker/install-torch.sh $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[all,dev]'
	touch $@

run: $(READY)  ## train with 5 edges on a private broker, with a live page
	$(BIN)/mapa run demo --dashboard

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

test: $(READY)  ## every promise once, without a Docker engine: about 8 minutes on two cores
	$(PYTEST) -m 'not extended and not stack and not cluster'

test-fast: $(READY)  ## while editing: no broker, no processes, nothing slow: one to two minutes
	$(PYTEST) -q -m 'not broker and not stack and not cluster and not browser and not slow' --ignore tests/broker --ignore tests/stack --ignore tests/browser

test-all: $(READY)  ## every test: `make test` and what is only extended, statistics and containers too
	$(PYTEST)

test-network: $(READY)  ## everything on a real Mosquitto
	$(PYTEST) tests/broker

test-statistics: $(READY)  ## noise, sampling and audits against their laws
	$(PYTEST) -m statistics

test-experiments: $(READY)  ## the paper's experiments, the reference table, attacks and audits
	$(PYTEST) tests/experiments

test-docs: $(READY)  ## every block and command of the documentation, and the site
	$(PYTEST) tests/docs

test-containers: $(READY)  ## images, Compose and faults on a Docker engine
	$(PYTEST) tests/stack

test-browser: $(READY)  ## the live page in Chromium
	$(PYTEST) tests/browser

test-cluster: $(READY) cluster  ## twenty edges on a real Kubernetes cluster, through deleted pods and scaling
	$(BIN)/python -m pytest -m cluster tests/cluster

check: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## build the site into build/docs with warnings as errors; needs no internet to be read
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs
	@echo "open build/docs/index.html"

docs-links: $(READY)  ## ask every external link of the site whether it still answers; needs the internet, so not in CI
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -b linkcheck -q docs build/linkcheck

bench: $(READY)  ## speed and memory, as ratios measured in one run; STRICT=1: fail if one misses its limit; QUICK=1: in minutes
	$(BIN)/python -m experiments.bench $(if $(STRICT),--strict) $(if $(QUICK),--quick)

clean:  ## remove the environment and caches; keeps runs/ and data/
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

EDGES ?=

images:  ## build the images of cloud and edges
	docker compose build --quiet cloud edge
	EDGE_TARGET=edge EDGE_IMAGE=mapa-edge docker compose build --quiet edge
	EDGE_TARGET=edge-torch EDGE_IMAGE=mapa-edge-torch docker compose build --quiet edge

images-offline:  ## build them without a registry: base, broker and torch from local packages (root)
	docker/offline/images.sh
	WHEELS_IMAGE=$$(docker image inspect local/wheels:torch >/dev/null 2>&1 && echo local/wheels:torch || echo scratch) $(MAKE) images

engine:  ## install and start a Docker engine with Compose if none is running (Debian, root; no systemd needed)
	docker/offline/engine.sh start

engine-stop:  ## stop the engine that `make engine` started, and no other
	docker/offline/engine.sh stop

cluster:  ## start a real Kubernetes cluster of one node; the first time builds it (Debian, root; 7 minutes of processor time)
	kubernetes/cluster/tools.sh
	kubernetes/cluster/cluster.sh start

cluster-stop:  ## end it; the programs stay in ~/.cache/mapa-cluster
	kubernetes/cluster/cluster.sh stop

up:  ## train with EDGES edge containers to the end, then remove the containers
	EDGES=$(EDGES) docker/up.sh

down:  ## remove the containers; the volumes with the edges' ledgers stay (docker compose down -v removes them)
	docker compose down --remove-orphans
