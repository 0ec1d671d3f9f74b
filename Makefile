# The two commands of the README: `make run` and `make test`. Everything they need goes into .venv.
#   PYTHON=python3.12   the interpreter (3.11 to 3.13)
#   PIP_FLAGS=...       passed to pip, e.g. --extra-index-url of PyTorch's CPU wheels
PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check -q
PACKAGES := di-kernels di-cache di-scheduler di-model di-spec di-engine
EDITABLE := $(foreach package,$(PACKAGES),-e packages/$(package))
INPUTS := constraints.txt Makefile $(wildcard packages/*/pyproject.toml packages/*/CMakeLists.txt packages/*/csrc/* packages/*/csrc/*/*)
BUILD_TOOLS := hatchling scikit-build-core nanobind ninja editables $(if $(shell command -v cmake),,cmake)
TEST_TOOLS := pytest pytest-timeout hypothesis matplotlib ruff mypy clang-format
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.PHONY: setup run test lint sanitize wheels format clean

setup: $(VENV)/.ready

$(VENV)/.ready: $(INPUTS)
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 to 3.13 is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@if test -x $(VENV)/bin/python && ! $(VENV)/bin/python -c '$(SUPPORTED)'; then rm -rf $(VENV); fi
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(PIP_FLAGS) -c constraints.txt torch numpy $(BUILD_TOOLS)
	$(PIP) install $(PIP_FLAGS) -c constraints.txt --no-build-isolation $(EDITABLE)
	$(PIP) install $(PIP_FLAGS) -c constraints.txt $(TEST_TOOLS)
	touch $@

# A continuation and a dictionary answer through all six packages, from nano, the small model that di-engine ships.
run: setup
	$(VENV)/bin/di generate nano --prompt "It was a fine evening in spring, and" --max-tokens 60 --temperature 0.6 --seed 1
	$(VENV)/bin/di generate nano --prompt '<｜User｜>What does the word "river" mean?<｜Assistant｜></think>' --max-tokens 40 --temperature 0

# Threads that wait asleep: the tests' pieces of work are small, and a busy machine makes spinning threads slow.
test: setup
	OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files 'packages/*/csrc/*.cpp' 'packages/*/csrc/*.hpp')
	$(VENV)/bin/python scripts/check_imports.py

sanitize: setup
	scripts/sanitize.sh

# Every package's wheel builds alone, and its own tests pass with only what it declares.
wheels: setup
	scripts/check_wheels.sh

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $$(git ls-files 'packages/*/csrc/*.cpp' 'packages/*/csrc/*.hpp')

clean:
	rm -rf $(VENV) .cache build packages/*/build packages/*/dist
