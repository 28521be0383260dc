# Everything that people and CI run. `make help` lists it.
#
# Needs: Linux, root, Python 3.11+ with venv, Go 1.26+, gcc and make. Everything else is fetched
# into the cache folder ($RLFLEET_CACHE, default ~/.cache/rlfleet) by what needs it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:

RLFLEET_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rlfleet
export RLFLEET_CACHE
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/worker:$(CURDIR)/tools
export PYTHONUNBUFFERED := 1
# Engines that are killed leave their sockets behind, pytest its last runs: not outside of the cache.
export TMPDIR := $(RLFLEET_CACHE)/tmp
$(shell mkdir -p $(TMPDIR))
# Bytecode of the environments is compiled when they are made; nothing is written beside sources.
export PYTHONDONTWRITEBYTECODE := 1

ENVS := python3 tools/envs.py
PYTHON = $$($(ENVS) dev)
PYTEST = $(PYTHON) -m pytest $(if $(LONG),,-m "not long") $(PYTEST_ARGS)
# Two at a time. Tests of a file share a cluster's or an engine's fixtures, so files stay whole.
BY_TEST := -n 2 --dist worksteal
BY_FILE := -n 2 --dist loadfile

##@ See it work

.PHONY: demo
demo: ## A trainer publishes weights, a fleet takes them, things go wrong. KEEP=1, CLUSTER=existing
	@$(PYTHON) -m demo $(if $(KEEP),--keep) $(if $(CLUSTER),--cluster $(CLUSTER))

.PHONY: cluster
cluster: ## Start a Kubernetes for yourself and print how to use it
	@$(PYTHON) -m stack up

.PHONY: cluster-down
cluster-down: ## End the cluster that `make cluster` or `make demo KEEP=1` left
	@$(PYTHON) -m stack down

##@ Test

.PHONY: test
test: lint type test-fast prepare test-cluster test-engine test-clients test-e2e ## Everything; sets up what is missing

.PHONY: test-all
test-all: ## Everything, and the long tests that `make test` leaves out; `make reliability` plays more
	@$(MAKE) --no-print-directory test LONG=1

.PHONY: prepare
prepare: ## Build and fetch what clusters and engines need; done once, with its progress
	@$(PYTHON) -m devcluster build
	@for env in operator worker clients clients-legacy lua; do $(ENVS) $$env >/dev/null; done

.PHONY: test-fast
test-fast: ## Unit, model and contract tests, and how much of core they reach
	@$(PYTEST) tests/unit tests/model tests/contract $(BY_TEST) --cov --cov-report=term

.PHONY: soak
soak: ## Simulated histories with every fault, a million steps: STEPS=1000000, SEED= (new every time)
	@PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(PYTHON) -m tests.model.soak $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED))

.PHONY: test-cluster
test-cluster: ## The dev cluster and the operator on a real control plane
	@$(PYTEST) tests/cluster $(BY_FILE)

.PHONY: test-engine
test-engine: ## The worker on real vLLM
	@$(PYTEST) tests/engine $(BY_FILE)

.PHONY: test-clients
test-clients: ## Trainers' clients, as published, against a real worker
	@$(PYTEST) tests/clients

.PHONY: test-e2e
test-e2e: ## Chart, operator, workers and a trainer on a real node
	@$(PYTEST) tests/e2e

.PHONY: bench-worker
bench-worker: ## The worker against stock vLLM: bench/results/worker.json, docs/performance.md
	@$(PYTHON) -m bench_worker

.PHONY: bench-staging
bench-staging: ## What the digest of every checkpoint costs: bench/results/staging.json, docs/performance.md
	@$(PYTHON) -m bench_staging

.PHONY: lint
lint: ## Style, imports between layers, generated files
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check
	@$$(dirname $(PYTHON))/lint-imports
	@$(PYTHON) tools/sync_crds.py --check
	@$(PYTHON) tools/reference.py --check

.PHONY: type
type: ## Types
	@$(PYTHON) -m mypy

.PHONY: reliability
reliability: ## Play every failure on real workers and write docs/reliability.md
	@RLFLEET_RELIABILITY_PAGE=docs/reliability.md $(PYTEST) tests/e2e/test_failure_rows.py -p no:randomly

.PHONY: chaos
chaos: ## Failures at random on real workers: ROLLOUTS=200, SEED=
	@$(PYTHON) -m chaos $(if $(ROLLOUTS),--rollouts $(ROLLOUTS)) $(if $(SEED),--seed $(SEED))

##@ Work on it

.PHONY: fmt
fmt: ## Format the sources
	@$(PYTHON) -m ruff check --fix --quiet || true
	@$(PYTHON) -m ruff format --quiet

.PHONY: generate
generate: ## Write the generated files: the chart's CRDs and their reference
	@$(PYTHON) tools/sync_crds.py
	@$(PYTHON) tools/reference.py

.PHONY: lock
lock: ## Pin the requirement files anew
	@$(ENVS) lock

.PHONY: image-operator image-worker
image-operator image-worker: image-%: ## Build an image (needs a container engine)
	docker build --target $* --tag rlfleet/$*:$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) .

.PHONY: clean
clean: ## Remove what was built in the repository
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.PHONY: clean-cache
clean-cache: clean ## Remove the cache folder too: environments and the dev cluster's programs
	@chmod -R u+w $(RLFLEET_CACHE) 2>/dev/null; rm -rf $(RLFLEET_CACHE)

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z0-9 %-]*:.*## / {split($$1, names, ":"); printf "  %-16s %s\n", names[1], $$2}' $(MAKEFILE_LIST)
