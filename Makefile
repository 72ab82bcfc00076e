# Everything happens in ./.venv and ./build. Stamp files in .venv say what has been done, so that a
# second `make test` starts the tests at once. Debian packages are installed where one is missing.

MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# make PYTHON=/path/to/python3.x takes another interpreter (3.11 or newer) for a new .venv.
PYTHON :=
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python

# What a fresh Debian may lack.
BUILD_PACKAGES := gcc libc6-dev python3 python3-dev python3-venv
TEST_PACKAGES := etcd-server iproute2 kmod user-mode-linux
BENCH_PACKAGES := etcd-server iproute2 valgrind

B := decode instructions react pods vpcs status

EXT_SOURCES := $(wildcard ext/netreeve/*.p* ext/netreeve/_ext/*.p*)
PYTHON_FILES := $(wildcard src tests benchmarks setup.py)
STUBBED := $(patsubst src/netreeve/_ext/%.pyi,netreeve._ext.%,$(wildcard src/netreeve/_ext/*.pyi))

PIP_INSTALL := $(PY) -m pip install -qq --disable-pip-version-check

# $(call apt_install,packages)
apt_install = \
	command -v apt-get >/dev/null || { echo "make: install what Debian calls: $(1)" >&2; exit 1; }; \
	[ "$$(id -u)" = 0 ] || { echo "make: missing, and only root can install: $(1)" >&2; exit 77; }; \
	echo "make: installing from Debian:" $(1); \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(1) >/dev/null

.PHONY: help venv build demo test lint format bench lock proto clean
.PHONY: need-root test-packages bench-packages paths style types c-warnings

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(VENV)/.runtime ## make .venv with the pinned dependencies of build and agent

build: $(VENV)/.built ## compile the extensions in place; .venv/bin/netreeve is the command

demo: need-root build ## show the agent at work in a private network namespace (root)
	$(BIN)/netreeve demo

test: need-root test-packages build $(VENV)/.dev ## run the tests (root); T=PATH for some of them
	$(PY) -m pytest $(T)

lint: paths style types c-warnings ## check format, import order, types, stubs, warnings of C, Dockerfile

format: $(VENV)/.dev ## bring Python files into the form that lint wants
	$(BIN)/ruff check --fix $(PYTHON_FILES)
	$(BIN)/ruff format $(PYTHON_FILES)

bench: need-root bench-packages build $(VENV)/.dev ## run the benchmarks (root); B=NAME for some of them
	for name in $(B); do echo; echo "== $$name"; $(PY) benchmarks/$$name.py; done

lock: $(VENV)/.runtime ## pin the newest dependencies that pyproject.toml allows
	$(PIP_INSTALL) uv
	$(LOCK) --output-file requirements.lock pyproject.toml
	$(PY) -c '$(PRINT_BUILD_REQUIRES)' | $(LOCK) --output-file requirements-build.lock -
	$(LOCK) --output-file requirements-dev.lock --group test --group lint \
		--constraint requirements.lock --constraint requirements-build.lock

proto: $(VENV)/.dev ## write the Python modules of rpc.proto anew
	cd src && $(CURDIR)/$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		netreeve/io/etcd/rpc.proto

clean: ## remove everything that was made here, .venv too
	rm -rf $(VENV) build dist src/*.egg-info src/netreeve/_ext/*.so ext/netreeve/_ext/*.c
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find $(wildcard src tests benchmarks) -name __pycache__ -prune -exec rm -rf {} +

# ── steps ───────────────────────────────────────────────────────────────────────────────────────

# The interpreter is looked for by the shell: it may just have been installed.
$(VENV)/.created:
	@python() { "$$(command -v $(or $(PYTHON),python3.11 || command -v python3))" "$$@"; }; \
	can_build() { \
		echo '#include <linux/netlink.h>' | gcc -E - && \
		python -c 'import ensurepip, os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")'; \
	}; \
	can_build >/dev/null 2>&1 || { $(call apt_install,$(BUILD_PACKAGES)); }; \
	python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: needs Python 3.11 or newer: make PYTHON=/path/to/python3.x" >&2; exit 1; }; \
	python -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: requirements.lock requirements-build.lock | $(VENV)/.created
	$(PIP_INSTALL) --require-hashes -r requirements.lock -r requirements-build.lock
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	$(PIP_INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

# The editable install finds everything compiled; it adds the command, and src/ to the path.
$(VENV)/.built: $(EXT_SOURCES) setup.py pyproject.toml $(VENV)/.runtime
	$(PY) setup.py --quiet build_ext --inplace
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

need-root:
	@[ "$$(id -u)" = 0 ] || { \
		echo "make: network namespaces need root: sudo make $(MAKECMDGOALS)" >&2; exit 77; }

# Where there is no dpkg, a missing command makes its tests fail by name.
test-packages: PACKAGES := $(TEST_PACKAGES)
bench-packages: PACKAGES := $(BENCH_PACKAGES)
test-packages bench-packages:
	@command -v dpkg-query >/dev/null || exit 0; \
	installed() { dpkg-query -W -f '$${db:Status-Status} $${Package}\n' | sed -n 's/^installed //p'; }; \
	missing=$$(comm -13 <(installed | sort) <(printf '%s\n' $(PACKAGES) | sort)); \
	[ -z "$$missing" ] || { $(call apt_install,$$missing); }

style: $(VENV)/.dev
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint ext  # it calls pycodestyle by name
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint Dockerfile

types: build $(VENV)/.dev
	$(BIN)/mypy
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml \
		--allowlist ext/stubtest.allow $(STUBBED)

# A build of its own, with every warning an error; nothing of it is used.
c-warnings: $(VENV)/.runtime
	rm -rf build/warnings
	mkdir -p build/warnings
	cp -r setup.py pyproject.toml README.md LICENSE src ext build/warnings/
	rm -f build/warnings/ext/netreeve/_ext/*.c
	cd build/warnings && NETREEVE_BUILD_WERROR=1 $(CURDIR)/$(PY) setup.py --quiet build_ext --force

# Names of package registries, and paths of one machine, have no place in the files of the project.
paths:
	@git rev-parse --git-dir >/dev/null
	@! git grep --untracked -nIE '(pypi|pythonhosted|debian)[.]org|/(root|work|home/[a-z]+)[/]' || \
		{ echo "make: the lines above name a registry or a path of one machine" >&2; exit 1; }

LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"
PRINT_BUILD_REQUIRES := import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
