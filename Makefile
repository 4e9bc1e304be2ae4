# Every target sets up what it needs. ARGS passes options on: make demo ARGS="--json out.json"
# Tests run in WORKERS processes (2); LONG=1 adds the tests marked `long`: make control LONG=1
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
KEEP ?=
SEED ?=
SCHEDULES ?=
OUT ?=
WORKERS ?= 2
LONG ?=
# Files go to the workers in this order, and what tests/conftest.py spreads goes test by test: the long ones first.
PYTEST = SEED=$(SEED) SCHEDULES=$(or $(SCHEDULES),$(if $(LONG),10000)) STORIES=$(STORIES) $(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder $(if $(LONG),,-m "not long")

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all parts unit models simulator schedules soak protocol learning clusters control e2e size figures parity parity-reduced parity-device bench-device lint format lock crds programs images cluster-up cluster-down clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with .venv/bin/atoll in it

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "atoll needs Python 3.11 or newer; set PYTHON=python3.x")'
	@echo "[setup] creating $(VENV) with every Python dependency"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup ## Train on a real Kubernetes on this machine, kill a unit, watch it heal (KEEP=1 leaves the cluster)
	@$(BIN)/atoll demo $(if $(KEEP),--keep) $(ARGS)

test: parts clusters ## Everything that must pass before a change lands, without the tests marked `long`

test-all: ## The same with the tests marked `long`, and more schedules
	@$(MAKE) test LONG=1

parts: setup ## All suites without a cluster in one session
	$(PYTEST) tests/learning tests/protocol tests/unit tests/models tests/simulator tests/schedules $(ARGS)

unit: ## Unit tests: no cluster, no root
models: ## The models, their inner step and their packing, compiled
simulator: ## The simulator of fleets and links, the planner and their commands
schedules: ## Random schedules of the protocol and stories of the operator, in simulated time (SEED=… SCHEDULES=… STORIES=…)
protocol: ## The protocol on real sockets and disks, with processes that are killed
learning: ## Training in simulated time, and a reduced proof of learning
control: ## The operator against real API servers, one for each of the WORKERS
unit models simulator schedules protocol learning control: setup
	$(PYTEST) tests/$@ $(ARGS)

soak: setup ## Many more of them, on all cores: make soak SCHEDULES=200000 SEED=…
	$(BIN)/python tests/sim/soak.py --count $(or $(SCHEDULES),200000) $(if $(SEED),--seed $(SEED)) $(ARGS)

clusters: WORKERS = 3
clusters: setup ## control and e2e in one session; e2e mostly waits, so that there is work for a third worker (root)
	$(PYTEST) tests/e2e tests/control $(ARGS)

e2e: setup ## A run on real pods that loses a pod, a unit, a node and the syncer (root)
	$(BIN)/pytest $(if $(LONG),,-m "not long") tests/e2e $(ARGS)

size: setup ## Lines of product and tests against docs/size.json (ARGS=--write records them)
	$(BIN)/python .ci/size.py $(ARGS)

figures: setup ## Write docs/results/: every published figure beside ours
	$(BIN)/python .ci/figures.py

parity: setup ## The proof of learning, resumed case by case; hours on two cores (docs/parity.md)
	$(BIN)/atoll bench parity --resume --json $(ARGS)

parity-reduced: setup ## A reduced table in minutes (OUT=folder)
	$(BIN)/atoll bench parity --reduced --out $(or $(OUT),/tmp/parity) $(ARGS)

parity-device: setup ## Its larger sizes, on an accelerator
	$(BIN)/atoll bench parity --device --resume --json $(ARGS)

bench-device: setup ## FLOPs utilisation of the inner step, on an accelerator
	$(BIN)/atoll bench step --json --preset 125m --batch 64 --length 512 --peak-tflops 989 $(ARGS)

lint: setup ## Style, types, imports, generated files, chart, workflows, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/crds.py --check
	$(BIN)/python -m atoll_local helm lint --strict charts/atoll
	$(BIN)/python -m atoll_local actionlint
	$(BIN)/zizmor --offline --quiet .github/workflows
	$(BIN)/zensical build --strict

format: setup ## Put the code into its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Pin what the images hold, at today's versions (needs uv; ARGS=--upgrade)
	.ci/lock $(ARGS)

crds: setup ## Write crds/, the chart's copies and docs/fields.md from the models, and the chart's README
	$(BIN)/python .ci/crds.py

programs: setup ## Find or build the Kubernetes programs
	$(BIN)/python -m atoll_local programs

images: setup ## Build the operator and runtime images
	$(BIN)/python -m atoll_local images

cluster-up: setup ## Start the local cluster
	$(BIN)/python -m atoll_local up $(ARGS)

cluster-down: setup ## Remove every process, mount, namespace, rule and cgroup of it
	$(BIN)/python -m atoll_local down $(ARGS)

clean: ## Remove .venv and the tools' caches in this folder
	rm -rf $(VENV) .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist
