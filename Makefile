# Every target sets up what it needs in .venv: a fresh clone wants nothing but Python 3.11 or newer.
#
#   make demo     pack, train, kill, resume, prove it, report (DEMO_ARGS="--json" for one JSON object)
#   make test     all tests, in two workers (PYTEST_ARGS="tests/unit/dataset -x" for a part of them, in one process)
#   make test-lab the tests against real servers, which STOKER_LAB_DIR knows how to start
#   make soak     trainings that are killed again and again, 100 times each way: an hour, or less with
#                 SOAK_ARGS="--minutes 10 --seed 1" (or "--help")
#   make lint     style, types, layers
#   make bench    the loader beside its peers, in .venv-bench (benchmarks/README.md); a smoke test of a few minutes, unless
#                 BENCH_ARGS= asks for the whole run, or BENCH_ARGS="--json out.json" for its numbers too
#   make setup    only the set-up; PYTHON=/path/to/python3 chooses the interpreter

.DEFAULT_GOAL := setup
.PHONY: setup demo test test-lab soak lint bench
.DELETE_ON_ERROR:

# 3.11 first: it is the version that the tests run on. A version manager's shim may be on PATH and yet not start, and
# some distributions split ensurepip off, so each candidate is tried, not only found.
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell IFS=:; for name in python3.11 python3.12 python3.13 python3; do for dir in $$PATH; do \
  if "$$dir/$$name" -c '$(USABLE)' </dev/null >/dev/null 2>&1; then echo "$$dir/$$name"; exit 0; fi; done; done)

DEMO_ARGS ?=
PYTEST_ARGS ?=
SOAK_ARGS ?=
BENCH_ARGS ?= --quick
PIP_INSTALL := -m pip --disable-pip-version-check --no-input -qq install -c constraints.txt
PIP := .venv/bin/python $(PIP_INSTALL)
BENCH_PIP := .venv-bench/bin/python $(PIP_INSTALL)

# Without a home pip would write its cache to the root of the file system.
ifeq ($(strip $(HOME)),)
export PIP_NO_CACHE_DIR := 1
endif

setup: .venv/.ready

demo: .venv/.ready
	@.venv/bin/stoker demo $(DEMO_ARGS)

test: .venv/.ready
	.venv/bin/python -m pytest $(PYTEST_ARGS)

test-lab: .venv/.ready
	bash tests/lab/run.sh $(PYTEST_ARGS)

soak: .venv/.ready
	@.venv/bin/python tests/soak $(SOAK_ARGS)

bench: .venv-bench/.ready
	@.venv-bench/bin/python benchmarks/bench.py $(BENCH_ARGS)

lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

# $(call make_venv,FOLDER): a virtual environment, made again if what is there does not work.
define make_venv
python='$(PYTHON)'; if ! "$${python:-none}" -c '$(USABLE)' </dev/null 2>/dev/null; then \
  echo "stoker needs Python 3.11 or newer with the venv module; $${python:-what is on PATH} is not that." >&2; \
  echo "Give another: make PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
echo "setting up $(1) with $$python (once; torch is the large part)" >&2; \
$(1)/bin/python -c '$(USABLE)' </dev/null 2>/dev/null || "$$python" -m venv --clear $(1) </dev/null
endef

# torch comes first and pinned (constraints.txt): chosen together with the rest, pip could settle on a build with
# gigabytes of GPU libraries. The stamp is written last, so that a set-up that was stopped is done again.
.venv/.ready: pyproject.toml constraints.txt
	@$(call make_venv,.venv)
	@$(PIP) torch </dev/null
	@$(PIP) -e '.[torch,dev]' </dev/null
	@touch $@

# The peers and what they need, apart from what stoker is tested with. The stub of torchvision comes before those who
# ask for it; mosaicml-streaming comes without its needs, of which requirements.txt names those that it imports.
.venv-bench/.ready: pyproject.toml constraints.txt $(wildcard benchmarks/requirements*.txt)
	@$(call make_venv,.venv-bench)
	@$(BENCH_PIP) torch </dev/null
	@$(BENCH_PIP) ./benchmarks/torchvision_stub </dev/null
	@$(BENCH_PIP) -r benchmarks/requirements.txt </dev/null
	@$(BENCH_PIP) --no-deps -r benchmarks/requirements-nodeps.txt </dev/null
	@$(BENCH_PIP) -e . </dev/null
	@touch $@
