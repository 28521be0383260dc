# Everything that developers and CI run. `make help` lists it.
#
# Needs: Linux, root, Python 3.11+ with venv, Go 1.26+, gcc and make. Everything else is fetched
# into the cache folder ($RLFLEET_CACHE, default ~/.cache/rlfleet) by what needs it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:

RLFLEET_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rlfleet
export RLFLEET_CACHE
export PYTHONPATH := $(CURDIR)/client:$(CURDIR)/operator:$(CURDIR)/worker:$(CURDIR)/tools
export PYTHONUNBUFFERED := 1
# Engines that are killed leave their sockets behind, pytest its last runs: not outside of the cache.
export TMPDIR := $(RLFLEET_CACHE)/tmp
$(shell mkdir -p $(TMPDIR))
# Bytecode of the environments is compiled when they are made; nothing is written beside sources.
export PYTHONDONTWRITEBYTECODE := 1

ENVS := python3 tools/envs.py
PYTHON = $$($(ENVS) dev)
PYTEST = $(PYTHON) -m pytest $(if $(LONG),,-m "not long") $(PYTEST_ARGS)
# For two processors: tests that wait leave time to a third process, engines compute. Tests of a file share a
# cluster's fixtures, so files stay whole, in the order of tests/cluster/conftest.py. The tests of one shared
# engine form a group (tests/engine/conftest.py).
BY_TEST := -n 3 --dist worksteal
BY_FILE := -n 3 --dist loadfile --no-loadscope-reorder
BY_ENGINE := -n 2 --dist loadgroup
# All tests share one fleet or one worker, so their order is an input: which version serves, and what
# random weights it has. A new order in each run would find a new failure in each run.
IN_ORDER := -p no:randomly

##@ See it work

.PHONY: demo
demo: ## A trainer publishes weights to a fleet, and three things fail. KEEP=1, CLUSTER=existing, RECORD=file.svg
	@$(PYTHON) -m demo $(if $(KEEP),--keep) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(RECORD),--record $(RECORD))

.PHONY: race
race: ## Record the front page's moving picture: a hand-written loop and rlfleet, the same failure
	@$(PYTHON) -m race $(if $(KEEP),--keep)

.PHONY: cluster
cluster: ## Start a Kubernetes cluster and print how to use it
	@$(PYTHON) -m stack up

.PHONY: cluster-down
cluster-down: ## End the cluster that `make cluster` or `make demo KEEP=1` left
	@$(PYTHON) -m stack down

##@ Test

# Two with a plus run at once: each of them has one process.
TIERS := lint+type test-fast prepare test-cluster test-engine test-clients test-e2e

.PHONY: test
test: ## What CI runs, up to the first tier that fails, and the seconds of each; sets up what is missing
	@table= total=0; for tier in $(TIERS); do \
	  at_once=; [[ $$tier != *+* ]] || at_once='--jobs=2 --output-sync'; \
	  SECONDS=0; $(MAKE) --no-print-directory $$at_once $${tier//+/ } && failed= || failed=' failed'; \
	  table+=$$(printf '\n%8d s  %s' $$SECONDS "$${tier//test-/}$$failed"); (( total += SECONDS )); \
	  [[ -z $$failed ]] || break; \
	done; printf '%s\n%8d s  sum\n' "$$table" $$total; [[ -z $$failed ]]

.PHONY: test-all
test-all: ## The same with the long tests (marker `long`); `make reliability` plays every failure
	@$(MAKE) --no-print-directory test LONG=1

.PHONY: prepare
prepare: ## Build and fetch what clusters and engines need; done once, with its progress
	@$(PYTHON) -m devcluster build
	@$(PYTHON) -m checkers build
	@$(PYTHON) -m object_store
	@$(PYTHON) -m bench_scale.fakes
	@for env in operator worker clients clients-legacy trainers lua; do $(ENVS) $$env >/dev/null; done

.PHONY: test-fast
# Each process of pytest compiles all tests: twice the time until the first test without a cache.
test-fast: export PYTHONDONTWRITEBYTECODE :=
test-fast: export PYTHONPYCACHEPREFIX := $(RLFLEET_CACHE)/pycache
test-fast: ## Unit, model and contract tests, and how much of core its unit tests reach
	@$(PYTEST) tests/unit/core $(BY_TEST) --cov --cov-report=term
	@$(PYTEST) tests/unit tests/model tests/contract --ignore=tests/unit/core $(BY_TEST)

.PHONY: pytest
pytest: ## Chosen tests, without what the tiers add; LONG=1: ARGS="tests/unit/core/test_decision.py -k name"
	@$(PYTEST) $(ARGS)

.PHONY: soak
soak: ## Simulate histories with every fault, a million steps: STEPS=1000000, SEED= (default: new each time)
	@PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(PYTHON) -m tests.model.soak $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED))

.PHONY: mutants
mutants: ## How many mistakes in the planner random histories find, within STEPS=20000: ONLY=text, LEAST=90
	@PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(PYTHON) -m tests.model.score $(if $(STEPS),--steps $(STEPS)) \
	  $(if $(ONLY),--only "$(ONLY)") $(if $(LEAST),--least $(LEAST))

.PHONY: test-cluster
test-cluster: ## The dev cluster and the operator on a real control plane
	@$(PYTEST) tests/cluster $(BY_FILE)

.PHONY: test-engine
test-engine: ## The worker on real vLLM
	@$(PYTEST) tests/engine $(BY_ENGINE)

.PHONY: test-clients
test-clients: ## Trainers' clients, as published, against a real worker
	@$(PYTEST) tests/clients $(IN_ORDER)

.PHONY: test-e2e
test-e2e: ## Chart, operator, workers and a trainer on a real node
	@$(PYTEST) tests/e2e $(IN_ORDER)

.PHONY: compatibility
compatibility: ## Test the pinned versions and the oldest Kubernetes for docs/reference/compatibility.md: ONLY=engine
	@$(if $(filter-out kubernetes-oldest,$(ONLY)),:,RLFLEET_KUBERNETES=oldest $(PYTHON) -m devcluster build --profile api)
	@$(PYTHON) tools/compatibility_runs.py $(if $(ONLY),--only $(ONLY)); code=$$?; \
	  $(PYTHON) tools/compatibility.py && exit $$code

.PHONY: bench-worker
bench-worker: ## The worker against stock vLLM: docs/performance.md; ARGS="--parts streams"
	@$(PYTHON) -m bench_worker $(ARGS)

.PHONY: bench-pause
bench-pause: ## The pause of a swap and its parts against bare reload_weights, also on a GPU: ARGS=--help
	@$(PYTHON) -m bench_worker.pauses $(ARGS)

.PHONY: bench-gpu
bench-gpu: ## All that a GPU shows, in six minutes: RLFLEET_BENCH_PYTHON=/opt/vllm/bin/python; ARGS=--dry-run on CPUs
	@$(PYTHON) -m bench_gpu $(ARGS)

.PHONY: bench-staging
bench-staging: ## Staging beside busy streams, and what its steps cost: docs/performance.md; ARGS=--help
	@$(PYTHON) -m bench_staging $(ARGS)

.PHONY: bench-publish
bench-publish: ## How long a trainer takes to write a version, in full and as a delta: docs/performance.md; ARGS=--help
	@$(PYTHON) -m bench_bytes.publish $(ARGS)

.PHONY: bench-scale
bench-scale: ## 16 to 10,000 fake workers, compared with scripts: SIZES=16,256, ROUNDS=5, ARGS=--help
	@$(PYTHON) -m bench_scale $(if $(SIZES),--sizes $(SIZES)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

.PHONY: bench-bytes
bench-bytes: ## What a version costs the store and a worker, in full and as a delta: ARGS=--help
	@$(PYTHON) -m bench_bytes $(ARGS)

.PHONY: bench-peers
bench-peers: ## Until many workers behind one slow store have staged, with and without peers: ARGS=--help
	@$(PYTHON) -m bench_bytes.peers $(ARGS)

.PHONY: bench-api
bench-api: ## One call to a fleet's address, compared with scripts that call all workers: SIZES=16,256, ROUNDS=10
	@$(PYTHON) -m bench_api $(if $(SIZES),--sizes $(SIZES)) $(if $(ROUNDS),--rounds $(ROUNDS))

.PHONY: bench-router
bench-router: ## Sessions of several turns on real workers, by a plain Service and by the router: ARGS=--help
	@$(PYTHON) -m bench_router $(ARGS)

.PHONY: test-alerts
test-alerts: ## The alerts of the chart, with promtool; a part of `make lint`
	@$(PYTHON) -m checkers alerts

.PHONY: test-prometheus
test-prometheus: ## Dashboards and alerts with a real Prometheus, on a cluster with faults (Debian: apt install prometheus)
	@$(MAKE) --no-print-directory pytest LONG=1 ARGS="tests/unit/fleet_api/test_prometheus.py tests/e2e/test_monitoring.py"

.PHONY: docs
docs: ## The site of docs/ in build/site; fails on a broken link; a part of `make lint`
	@NO_MKDOCS_2_WARNING=1 $$($(ENVS) docs) -m mkdocs build --quiet --strict -f tools/site/mkdocs.yml
	@echo build/site/index.html

.PHONY: test-site
test-site: ## Visit the site of docs/ with a browser (Debian: apt install chromium)
	@$(PYTHON) -m pytest tests/contract/test_site_in_a_browser.py $(PYTEST_ARGS)

.PHONY: lint
lint: docs ## Style, imports between layers, generated files, language, workflows, alerts, the site
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check
	@$$(dirname $(PYTHON))/lint-imports
	@$(PYTHON) tools/sync_crds.py --check
	@$(PYTHON) tools/reference.py --check
	@$$($(ENVS) dashboards) -m dashboards --check
	@$(PYTHON) -m pictures --check
	@$(PYTHON) tools/compatibility.py --check
	@$(PYTHON) -m checkers workflows alerts
	@$(PYTHON) -m prose

.PHONY: type
type: ## Types
	@$(PYTHON) -m mypy

.PHONY: reliability
reliability: ## Play every failure on real workers and write docs/reliability.md
	@RLFLEET_RELIABILITY_PAGE=docs/reliability.md $(MAKE) --no-print-directory pytest LONG=1 \
	  ARGS="tests/e2e/test_delta_fleet.py tests/e2e/test_failure_rows.py $(IN_ORDER)"

.PHONY: isolation
isolation: ## One tenant attacks another one: bench/results/isolation.json, docs/reliability.md. ONLY=fleets
	@$(PYTHON) -m isolation $(if $(ONLY),--only "$(ONLY)")

.PHONY: chaos
chaos: ## Failures at random on real workers: ROLLOUTS=200, SEED=
	@$(PYTHON) -m chaos $(if $(ROLLOUTS),--rollouts $(ROLLOUTS)) $(if $(SEED),--seed $(SEED))

##@ Work on it

.PHONY: fmt
fmt: ## Format the sources
	@$(PYTHON) -m ruff check --fix --quiet || true
	@$(PYTHON) -m ruff format --quiet

.PHONY: generate
generate: ## Write the generated files: the chart's CRDs, reference pages, dashboards and diagrams
	@$(PYTHON) tools/sync_crds.py
	@$(PYTHON) tools/reference.py
	@$$($(ENVS) dashboards) -m dashboards
	@$(PYTHON) -m pictures
	@$(PYTHON) tools/compatibility.py

.PHONY: lock
lock: ## Update the pinned requirement files
	@$(ENVS) lock

.PHONY: images
images: ## Build the images operator, router and worker-cpu with buildah and debootstrap (as root); MIRROR=, TARGETS=worker
	@$(PYTHON) -m images build $(TARGETS) $(if $(MIRROR),--mirror $(MIRROR))

.PHONY: release
release: ## All files of a release in dist/: VERSION=0.1.0, REPOSITORY=https://…, REGISTRY=, IMAGES=operator,worker
	@$(PYTHON) -m release --version $(or $(VERSION),$(error VERSION is missing: make release VERSION=0.1.0)) \
	  $(if $(REPOSITORY),--repository $(REPOSITORY)) $(if $(REGISTRY),--registry $(REGISTRY)) \
	  $(if $(IMAGES),--images "$(IMAGES)") $(if $(MIRROR),--mirror $(MIRROR)) \
	  $(if $(PYTHON_IMAGE),--base $(PYTHON_IMAGE))

.PHONY: test-images
test-images: ## Build the images, and run them on a cluster that pulls them: a fleet of 2 workers, 2 versions
	@$(MAKE) --no-print-directory images
	@$(PYTHON) -m images try

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
