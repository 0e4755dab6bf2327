# Every target makes what it needs: the environment from the lock, with uv; uv itself with pip when it is missing.
SHELL := /bin/bash
PYTHON ?= python3
UV := $(shell command -v uv 2>/dev/null || echo $(CURDIR)/.tools/bin/uv)
RUN := $(UV) run --locked --extra local
# Most tests wait for something: so many processes at once also where there are fewer cores.
PROCESSES ?= 6
PARALLEL = -n $(PROCESSES) --dist loadscope --no-loadscope-reorder
# Without compiled modules on disk, every process that a test starts compiles all that it imports (4 s of CPU).
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(CURDIR)/.tools/bin/uv:
	@echo "uv not found: installing it into .tools (about 10 s)"
	@$(PYTHON) -m venv $(CURDIR)/.tools
	@$(CURDIR)/.tools/bin/pip install --quiet --disable-pip-version-check uv

.PHONY: env
env: $(UV)
	@$(UV) sync --locked --extra local --quiet --compile-bytecode
	@.venv/bin/python -m compileall -q pgrole_controller tests bench

.PHONY: dev
dev: env ## Run everything on this machine: API server, PostgreSQL, controller, samples
	@$(RUN) pgrole-controller dev $(ARGS)

.PHONY: test
test: env ## What to run before a commit: unit, integration and the core of the acceptance tests (minutes)
	@$(RUN) pytest $(PARALLEL) -m "not slow" $(ARGS)

.PHONY: test-all
test-all: env ## All tests: those of `make test`, the slow ones, deploy/ and the documentation
	@$(RUN) pytest $(PARALLEL) $(ARGS)

.PHONY: chromium
chromium: ## Install Chromium for tests/browser when it is missing: the Debian package, as root (CHROMIUM=path: another)
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || \
		{ apt-get update -q && apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; }

.PHONY: browser
browser: env chromium ## The console's pages in a real browser (ARGS="-k axe")
	@$(RUN) pytest $(PARALLEL) tests/browser $(ARGS)

.PHONY: screenshots
screenshots: env chromium ## Take the pictures of the console in docs/images
	@$(RUN) python -m tests.browser.screenshots

.PHONY: test-matrix
test-matrix: env ## The tests for each supported PostgreSQL, fetched when needed (VERSIONS="14 17" for some)
	@$(RUN) python -m tests.matrix $(VERSIONS) -- $(PARALLEL) $(ARGS)

.PHONY: test-docker
test-docker: env ## The tests with a PostgreSQL against containers postgres:NN (VERSIONS="14 17"; KUBERNETES=k3s too)
	@TEST_KUBERNETES=$(or $(KUBERNETES),local) $(RUN) python -m tests.matrix $(addprefix docker:,$(or $(VERSIONS),14 15 16 17 18)) -- $(PARALLEL) $(ARGS)

.PHONY: mutations
mutations: env ## Seed the faults of tests/mutations one by one: tests must find each (ARGS="--only worker,reassign")
	@$(RUN) python -m tests.mutations $(ARGS)

.PHONY: lint
lint: env ## ruff, strict types, imports between packages, class names, generated files up to date, SQL parses
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) lint-imports --no-cache
	@$(RUN) pgrole-controller crds --check crds
	@$(RUN) python -m tests.deploy.manifests --check
	@$(RUN) python -m tests.docs.settings_table --check
	@$(RUN) python -m tests.docs.transcript --check
	@$(RUN) python tests/parse_sql.py
	@$(RUN) python -m tests.class_names

.PHONY: format
format: env ## Rewrite what the formatter and the safe fixes can
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

.PHONY: crds
crds: env ## Generate crds/ from the models
	@$(RUN) pgrole-controller crds --write crds

.PHONY: settings
settings: env ## Generate the table of settings in docs/running.md
	@$(RUN) python -m tests.docs.settings_table

.PHONY: transcript
transcript: env ## Record the session that the README shows: docs/images/transcript.svg (starts what make dev starts)
	@$(RUN) python -m tests.docs.transcript

.PHONY: manifests
manifests: crds ## Generate what deploy/ has of crds/ and the alerts, and install.yaml (builds kubectl when it is missing)
	@$(RUN) python -m tests.deploy.manifests

.PHONY: bench
bench: env ## Measure, or compare with a stored run (ARGS="--markdown": as the table of the README)
	@$(RUN) python -m bench $(ARGS)

IMAGE ?= ghcr.io/pgrole-dev/pgrole-controller
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: image
image: ## Build the image (IMAGE=name; ARGS="--build-arg RUNTIME_IMAGE=…" replaces its base)
	@docker build --tag $(IMAGE):$(VERSION) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD) $(ARGS) .

.PHONY: sbom
sbom: env ## What the image has of Python: dist/sbom.cdx.json (CycloneDX) and dist/licences.txt
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/dist/environment $(UV) sync --locked --no-dev --no-editable --quiet
	@$(UV) export --locked --no-dev --format cyclonedx1.5 --preview-features sbom-export --quiet \
		| dist/environment/bin/python deploy/image/sbom.py dist
	@cat dist/licences.txt

.PHONY: plugin
plugin: env ## Build the kubectl plugin for krew: dist/kubectl-pgrole-… (PLATFORMS="linux/arm64 darwin/arm64")
	@$(RUN) python deploy/krew/build.py --uv $(UV) $(PLATFORMS)

.PHONY: compose-test
compose-test: env ## compose.yaml brought up, judged and taken down (ARGS=--stand-ins: without a registry, as root)
	@$(RUN) python -m tests.compose $(ARGS)

.PHONY: cluster-test
cluster-test: env ## The product in a real cluster of one node, judged and removed (ARGS=--stand-ins; root, Docker, Go)
	@$(RUN) python -m tests.cluster $(ARGS)

.PHONY: clean
clean: ## Remove the environments made here
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
