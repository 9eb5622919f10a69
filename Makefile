# Tasks of this project; `make help` lists them. Needed: Python 3.11 or newer, git, make and the package registries.

VENV := .venv
BIN := $(VENV)/bin
REPORTS := out/reports
# Looked up only when .venv has to be made; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# Only packages whose files have the hashes of a lock are installed.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --require-hashes
UV_COMPILE := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
# Builds and pushes images; DOCKER=podman works, too.
DOCKER ?= docker
IMAGES = $(if $(IMG),--image $(IMG)) $(if $(PACKAGER_IMG),--packager-image $(PACKAGER_IMG))
PYTEST := $(BIN)/python -m pytest $(PYTEST_FLAGS)
# These tests mostly wait, so more of them run at a time than there are cores.
TEST_WORKERS ?= 6
PARALLEL := --numprocesses=$(TEST_WORKERS) --dist=loadgroup --durations=30
# Unit tests wait for a third of their time. Workers without tests take over those of others.
UNIT_PARALLEL = --numprocesses=$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist=worksteal
# Otherwise each worker and each process of a test compiles all modules again, where the environment forbids to keep them.
export PYTHONDONTWRITEBYTECODE :=
STAGES := MAKE="$(MAKE)" $(BIN)/python tools/ci/stages.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup programs tools demo test test-quick test-long test-long-unit test-long-clusters test-long-timing test-unmodified-core test-unit test-integration test-e2e test-clusters test-timing test-smoke coverage mutants e2e-live lint lint-code format generate bench bench-webhook bench-packager build wheel release docker-build docker-push docs headlamp deploy lock clean

help: ## List all tasks
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/project.stamp ## Create .venv with the project and its dependencies (.venv/bin/caphv)
	@$(if $(filter setup,$(MAKECMDGOALS)),echo 'Next: . $(BIN)/activate && caphv sandbox up',:)

# Before the tests, because a build takes longer than any test may.
programs: setup ## Build etcd, kube-apiserver and the Cluster API core unless they exist
	@$(BIN)/python -c 'import logging; from sandbox.processes import binaries; \
		logging.basicConfig(level=logging.INFO, format="%(message)s"); binaries.prepare()'

tools: setup ## Build helm, helm-controller, kubectl, kustomize, clusterctl, cluster-api-operator and promtool for tests, and download wheels, unless they exist
	@$(BIN)/python -c 'import logging; from sandbox.processes import binaries; \
		logging.basicConfig(level=logging.INFO, format="%(message)s"); [binaries.binary(name) for name in binaries.TOOLS]'
	@$(BIN)/python -m tests.support.wheels

demo: setup ## Run a cluster on a simulated Harvester, from creation to deletion
	$(BIN)/caphv sandbox demo

test: setup ## Run all checks and all tests, and say how long each stage took
	@$(STAGES) lint programs tools test-unit test-clusters test-timing

test-quick: setup ## Run before each commit: code checks, unit tests, and a few tests against a kube-apiserver
	@$(STAGES) lint-code programs test-unit test-smoke

test-long: setup ## Run the long variants of tests, and the e2e tests with the unmodified Cluster API core
	@$(STAGES) programs tools test-long-unit test-long-clusters test-long-timing test-unmodified-core

test-long-unit: export CAPHV_TEST_LONG = yes
test-long-unit: setup
	$(PYTEST) tests/unit $(UNIT_PARALLEL) --timeout=0 --junitxml=$(REPORTS)/long-unit.xml

test-long-clusters: export CAPHV_TEST_LONG = yes
test-long-clusters: programs tools
	$(PYTEST) tests/integration tests/e2e -m 'long and not timing' $(PARALLEL) --timeout=0 --junitxml=$(REPORTS)/long-clusters.xml

test-long-timing: export CAPHV_TEST_LONG = yes
test-long-timing: programs
	$(PYTEST) tests/integration -m 'long and timing' --timeout=0 --junitxml=$(REPORTS)/long-timing.xml

test-unmodified-core: export CAPHV_SANDBOX_CORE = cluster-api-core
test-unmodified-core: programs tools
	$(PYTEST) tests/e2e $(PARALLEL) --junitxml=$(REPORTS)/unmodified-core.xml

test-unit: setup ## Test pure functions: no process, no network
	$(PYTEST) tests/unit $(UNIT_PARALLEL) --durations=10 --junitxml=$(REPORTS)/unit.xml

test-integration: programs ## Test against a real kube-apiserver
	$(PYTEST) tests/integration $(PARALLEL) --junitxml=$(REPORTS)/integration.xml

test-e2e: programs tools ## Test whole scenarios with the real Cluster API core
	$(PYTEST) tests/e2e $(PARALLEL) --junitxml=$(REPORTS)/e2e.xml

# What both targets above test, but for timing: together they leave no worker without work.
test-clusters: programs tools
	$(PYTEST) tests/integration tests/e2e -m 'not timing' $(PARALLEL) --junitxml=$(REPORTS)/clusters.xml

# One after the other, because each says how long something may take. Collecting all other modules would take 2 s.
test-timing: programs
	$(PYTEST) -m timing --junitxml=$(REPORTS)/timing.xml \
		$(shell grep -rl --include='*.py' pytest.mark.timing tests/integration tests/e2e)

test-smoke: programs
	$(PYTEST) tests/integration/runtime/test_client.py tests/integration/reconciler/test_templates.py --junitxml=$(REPORTS)/smoke.xml

coverage: setup ## Measure which lines and branches of the product unit tests run (report: out/coverage/index.html)
	rm -rf out/coverage && mkdir -p out/coverage
	$(BIN)/coverage run -m pytest -q tests/unit $(UNIT_PARALLEL) --timeout=0
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --directory out/coverage
	@for package in caphv commands operations packager reconciler webhooks; do \
		printf '%-12s%s %%\n' "$$package" "$$($(BIN)/coverage report --include="$$package/*" --format=total)"; done

PACKAGES ?= operations commands reconciler webhooks packager
MUTANTS ?= --number 50
mutants: setup ## Change the code in PACKAGES at random places, and name the changes that no test notices (MUTANTS: options)
	$(BIN)/python -m tools.ci.mutants $(MUTANTS) $(PACKAGES)

e2e-live: setup ## Run the scenarios against a real Harvester (see docs/live-tests.md)
	$(PYTEST) tests/live --junitxml=$(REPORTS)/live.xml

lint-code: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers=2
	$(BIN)/lint-imports

lint: lint-code ## Check format, lint, types, import contracts and generated files
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m caphv.api.crds --check
	$(BIN)/python -m tools.generate.reference --check
	$(BIN)/python -m caphv.api.supported --check
	$(BIN)/python -m tools.generate.ruletables --check
	$(BIN)/python -m tools.generate.webhooks --check
	$(BIN)/python -m tools.generate.clusterclasses --check
	$(BIN)/python -m tools.generate.headlamp --check

format: setup ## Format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: setup ## Write the files generated from schemas, clusterclass/ and code
	$(BIN)/python -m caphv.api.crds
	$(BIN)/python -m tools.generate.reference
	$(BIN)/python -m caphv.api.supported
	$(BIN)/python -m tools.generate.ruletables
	$(BIN)/python -m tools.generate.webhooks
	$(BIN)/python -m tools.generate.clusterclasses
	$(BIN)/python -m tools.generate.headlamp

bench: setup ## Measure the provider on a simulated Harvester
	$(BIN)/python -m tools.bench

build: setup wheel ## Build the commands (.venv/bin/caphv) and the wheel

wheel: setup ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

bench-webhook: setup ## Measure the admission webhook
	$(BIN)/python -m tools.bench.webhook

bench-packager: setup ## Measure rendering, committing and pushing bundles, and following definitions
	$(BIN)/python -m tools.bench.packager

release: wheel ## Write manifests, chart, krew plugin and bill of materials of a release into out/; after headlamp, its plugin, too
	$(BIN)/python -m tools.release $(IMAGES) --wheel "$$(ls -t dist/caphv-*.whl | head -n 1)"

docker-build: ## Build the image of the provider for this machine; IMG=... names it
	$(require-image)
	$(DOCKER) build --target controller --tag '$(IMG)' .

docker-push: ## Push the image that docker-build has built; IMG=... names it
	$(require-image)
	$(DOCKER) push '$(IMG)'

# Apart from .venv: nothing else needs these packages.
docs: setup ## Build the documentation site into out/site; fails on broken links
	$(require-python)
	@test -x out/mkdocs/bin/mkdocs || $(PYTHON) -m venv --clear out/mkdocs
	@out/mkdocs/bin/python $(PIP_INSTALL) --requirement tools/website/requirements.lock
	@$(BIN)/python -m tools.generate.ruletables --site out/pages
	@NO_MKDOCS_2_WARNING=1 out/mkdocs/bin/mkdocs build --quiet --strict --config-file tools/website/mkdocs.yml

# Not a part of `make test`: nothing else needs Node.js. Scripts of packages download programs, and none is needed.
headlamp: ## Build and test the Headlamp plugin with npm (Node.js 20 or newer) into out/caphv-headlamp
	@command -v npm > /dev/null || { echo 'npm is not installed: install Node.js 20 or newer' >&2; exit 1; }
	cd headlamp && npm ci --ignore-scripts --no-audit --no-fund
	cd headlamp && npm run lint && npm run tsc && npm test && npm run build
	@rm -rf out/caphv-headlamp && mkdir -p out/caphv-headlamp
	cp headlamp/dist/main.js headlamp/package.json out/caphv-headlamp/

deploy: setup ## Install on the current cluster of kubectl; IMG=... sets another image
	$(BIN)/python -m tools.release $(IMAGES)
	kubectl apply --server-side --force-conflicts -f out/caphv.yaml

lock: ## Resolve all dependencies again into the lock files
	$(require-python)
	$(PYTHON) -m venv out/lock
	out/lock/bin/python $(PIP_INSTALL) --requirement tools/release/uv.lock
	out/lock/bin/$(UV_COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	out/lock/bin/$(UV_COMPILE) --output-file tools/website/requirements.lock tools/website/requirements.in
	out/lock/bin/$(UV_COMPILE) --output-file tools/release/uv.lock tools/release/uv.in

clean: ## Remove everything that these tasks created in the checkout
	rm -rf $(VENV) out dist headlamp/dist headlamp/node_modules .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Recreated, not updated, so that it contains only what the lock names.
$(VENV)/requirements.stamp: requirements.lock
	$(require-own-venv)
	$(require-python)
	@echo 'Installing requirements.lock into $(VENV)'
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(VENV)/project.stamp: $(VENV)/requirements.stamp pyproject.toml
	$(require-own-venv)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

define require-image
@test -n '$(IMG)' || { echo 'IMG is empty: name the image: make $@ IMG=registry.example.com/caphv:v1' >&2; exit 1; }
@command -v $(DOCKER) > /dev/null || { echo '$(DOCKER) is not installed: install Docker Engine with buildx,' \
	'or use Podman: make $@ IMG=$(IMG) DOCKER=podman' >&2; exit 1; }
endef

# A link leads to the .venv of another checkout, which would lose its packages or get this one as its project.
define require-own-venv
@test ! -L '$(VENV)' || { echo '$(VENV) is a symbolic link and older than requirements.lock or pyproject.toml:' \
	'delete the link, and make creates one of this checkout' >&2; exit 1; }
endef

define require-python
@$(if $(PYTHON),$(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo 'Python 3.11 or newer is needed: install it, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
endef
