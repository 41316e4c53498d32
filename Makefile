# Everything a contributor types. Needs Python 3.11 or newer with venv, and make; the rest goes into .venv from the lock files.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Set to 1: `make demo` ends as soon as all clusters are Available, or says after 60 s why they are not.
ONCE   ?=
# How many hubs `make demo` starts: with HUBS=2 you can kill one, and see its clusters arrive on the other.
HUBS   ?= 1
# More arguments for pytest, as in `make test ARGS="-k kubeconfig -x"`.
ARGS   ?=

# What `make fuzz` makes up: requests by the published OpenAPI, mutated bodies, tokens and gRPC messages (fuzz), mutated certificate signing requests (csrs). ARGS goes to each.
FUZZ   ?= fuzz csrs

# What `make images` builds with, and how the images are named: as in the charts' values.
ENGINE  ?= $(firstword $(foreach each,docker podman buildah,$(shell command -v $(each))))
IMAGES  ?= muster
VERSION  = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# Set to 1: `make dist` also builds the images, and stores each as an archive.
ARCHIVES ?=
# The wheel as `make dist` installs it: `make test INSTALLED=$PWD/build/installed/bin` types the pages with its programs.
INSTALLATION := build/installed

# Processes that share the suite. Much of it waits, so four are faster than two on two cores. 0: one, in this terminal.
WORKERS ?= 4

# The console: its vendored libraries are compared with their hashes, its modules are checked by their JSDoc types.
CONSOLE := hub/extensions/console

PROTO   := $(shell find proto -name '*.proto' 2>/dev/null)
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
           --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'

.PHONY: help
help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(VENV)/.runtime ## a hub, three hollow clusters and three spokes on this machine (ONCE=1: stop when all are Available; HUBS=2: two hubs, kill one)
	@exec $(BIN)/python -m hollow.demo --hubs=$(HUBS) $(if $(filter-out 0,$(ONCE)),--once)

.PHONY: test
test: $(VENV)/.dev ## the whole test suite, PostgreSQL included (ARGS="..." goes to pytest; WORKERS=0: one test after the other)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

.PHONY: mutations
mutations: $(VENV)/.dev ## apply each patch of tests/mutations to a copy and see its tests fail (ARGS="NAME ..."; ARGS=--whole: the whole suite)
	$(BIN)/python -m tests.mutations $(ARGS)

.PHONY: check
check: $(VENV)/.dev ## format, lint, types, import contracts, generated code and pages, functions named in docs/explanation, words in names, types of the console, mutations that apply
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@$(MAKE) --no-print-directory drift
	@$(BIN)/python -m hubctl.reference --check
	@$(BIN)/python -m docs.reference_pages --check
	@cd $(CONSOLE)/static/vendor && sha256sum --check --quiet SHA256SUMS
	@$(BIN)/deno check --quiet --no-lock --config $(CONSOLE)/deno.json $(CONSOLE)/static/main.js $(CONSOLE)/static/core/worker.js
	@$(BIN)/python -m tests.walks
	@$(BIN)/python -m tests.vocabulary
	@git apply --check tests/mutations/*.patch

.PHONY: format
format: $(VENV)/.dev ## format and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# protoc names its output after the .proto file, so -Imachinery/wire=proto gives importable modules under machinery/wire.
define generate
PATH=$(CURDIR)/$(BIN):$$PATH python -m grpc_tools.protoc -Imachinery/wire=proto \
	--python_out=$(1) --grpc_python_out=$(1) --mypy_out=$(1) --mypy_grpc_out=$(1) \
	$(PROTO:proto/%=machinery/wire/%)
endef

.PHONY: proto
proto: $(VENV)/.dev ## generate machinery/wire from proto/
	$(call generate,.)

.PHONY: charts
charts: $(VENV)/.dev ## write what is generated of the charts: the tables of values, the hub's settings in its schema
	$(BIN)/python -m docs.chart_pages

.PHONY: reference
reference: $(VENV)/.dev ## generate docs/reference/hubctl and api, the pages of settings, and the tables of metrics and query fields
	$(BIN)/python -m hubctl.reference
	$(BIN)/python -m docs.reference_pages

.PHONY: drift
drift: $(VENV)/.dev ## fail when machinery/wire is not what proto/ generates
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(call generate,$$fresh); \
	diff -r --exclude=__pycache__ --exclude=__init__.py "$$fresh/machinery/wire" machinery/wire \
		|| { echo 'machinery/wire is not what proto/ generates: run make proto and commit the result' >&2; exit 1; }; \
	echo 'machinery/wire is what proto/ generates'

.PHONY: images
images: ## build the images of hub and spoke, with the tag of the charts (ENGINE=podman: instead of the first that is installed; IMAGES=registry.example.com/team)
	@[ -n "$(ENGINE)" ] || { echo 'make images needs docker, podman or buildah: install one of them' >&2; exit 1; }
	@for program in hub spoke; do $(ENGINE) build --target $$program --tag $(IMAGES)/$$program:$(VERSION) .; done
	@echo 'Built $(IMAGES)/hub:$(VERSION) and $(IMAGES)/spoke:$(VERSION). docs/how-to/on-kind.md brings them into a cluster.'

.PHONY: dist
dist: $(VENV)/.release ## build what a release publishes into dist/: wheel, sdist, charts, lock file, SBOM and checksums (ARCHIVES=1: archives of the images too)
	@rm -rf dist $(INSTALLATION)
	$(BIN)/python -m hatchling build --directory dist
	$(BIN)/python -c 'import helm_python; [helm_python.package(f"charts/{chart}", destination="dist") for chart in ("hub", "spoke")]'
	cp requirements.lock dist
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(INSTALLATION)
	$(BIN)/uv pip install --quiet --python $(INSTALLATION) --require-hashes -r requirements.lock -r requirements-hub.lock
	$(BIN)/uv pip install --quiet --python $(INSTALLATION) --no-deps dist/*.whl
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json $(INSTALLATION)
ifneq ($(filter-out 0,$(ARCHIVES)),)
	@$(MAKE) --no-print-directory images
	@for program in hub spoke; do $(ENGINE) save $(IMAGES)/$$program:$(VERSION) | gzip --no-name >dist/muster-$$program-image-$(VERSION).tar.gz; done
endif
	cd dist && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .

.PHONY: bench
bench: $(VENV)/.dev ## measure the core figures and compare them with the baseline (ARGS="NAME": one benchmark of bench/README.md)
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-scale
bench-scale: $(VENV)/.dev ## ten thousand simulated agents at one hub, about four hours (ARGS="--agents 1000 --phases steady --postgres")
	$(BIN)/python -m bench scale $(ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## the tests that repeat a trial, with many trials each; writes bench/soak.md (ARGS="TEST": only prints)
	$(BIN)/python -m bench.soak $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev ## generated requests, bodies, tokens, messages and CSRs; writes bench/fuzz.md and bench/csrs.md (FUZZ=csrs ARGS="--cases 1000000")
	@for what in $(FUZZ); do $(BIN)/python -m bench.$$what $(ARGS); done

.PHONY: lock
lock: $(VENV)/.dev ## resolve the lock files anew (UPGRADE=1: to the newest versions)
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements.lock pyproject.toml --extra hub --extra spoke --extra hollow
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements-hub.lock pyproject.toml --extra hub --extra tracing --constraint requirements.lock
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements-spoke.lock pyproject.toml --extra spoke --extra tracing --constraint requirements.lock
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements-build.lock --group build
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements-dev.lock --group dev --constraint requirements.lock --constraint requirements-build.lock
	$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements-release.lock --group release --constraint requirements-dev.lock

.PHONY: clean
clean: ## remove .venv and everything else that was made here
	rm -rf $(VENV) .demo .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A venv is made anew when a lock changes: what was dropped from the lock must not linger. pip verifies every hash.
$(VENV)/.packages: requirements.lock requirements-build.lock
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11) and "Muster needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; say PYTHON=python3.x")'
	@echo 'Setting up $(VENV) (once, and again when a lock changes) ...'
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements.lock -r requirements-build.lock
	@touch $@

# The programs themselves, run from the tree: installed again when their names may have changed.
$(VENV)/.runtime: $(VENV)/.packages pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.tools: requirements-dev.lock $(VENV)/.packages
	@echo 'Adding the tools for tests and checks to $(VENV) ...'
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.release: requirements-release.lock $(VENV)/.dev
	@$(PIP) install --require-hashes -r requirements-release.lock
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime $(VENV)/.tools
	@touch $@
