# The two set-up commands: `make demo` and `make test`. Both start from a bare clone; a second run is quick.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

venv  := $(CURDIR)/.venv
tree  := $(CURDIR)/build/editable
ready := build/stamps

# The venv's cmake, ninja and python come first for everything below, also for the processes that Ray starts.
export PATH := $(venv)/bin:$(PATH)
export PYTHON
export VIRTUAL_ENV := $(venv)
export RAY_USAGE_STATS_ENABLED ?= 0
export RAY_AUTH_MODE ?= disabled

.PHONY: demo test bench fix fast install tests-built clean

demo: $(ready)/package      ## the main job: asynchronous SGD with a parameter server, e.g. make demo ARGS=--plain
	python examples/async_sgd.py $(ARGS)

test: tests-built           ## the full gate
	.ci/run gate

fast: tests-built           ## the gate's part that takes under two minutes
	.ci/run gate-fast

bench: $(ready)/package     ## the canonical benchmark
	python benchmarks/canonical.py $(ARGS)

fix: $(ready)/package       ## format everything and renew the stub of the extension module
	.ci/run format
	.ci/run stub

install: $(ready)/package   ## the package and the tools into .venv, without running anything

tests-built: $(ready)/package
	cmake -S . -B $(tree) -DHOPLITE_TESTS=ON > build/configure.log || { cat build/configure.log; exit 1; }
	cmake --build $(tree) --parallel $(shell nproc)

clean:                      ## everything that `make` has made, .venv excepted
	rm -rf build

$(ready)/system: .ci/system
	mkdir -p $(ready)
	.ci/system > $@.python
	mv $@.python $@

# Stamps: the tools' lies in .venv, so that removing .venv or build/ brings back what was in it.
$(venv)/.tools: pyproject.toml $(ready)/system
	[ -x $(venv)/bin/python ] || "$$(cat $(ready)/system)" -m venv $(venv)
	python -m pip install --quiet --upgrade 'pip>=25.1'
	python -m pip install --quiet --group dev
	touch $@

$(ready)/package: CMakeLists.txt $(venv)/.tools
	python -m pip install --quiet --no-build-isolation -Ceditable.rebuild=true --editable '.[examples]'
	touch $@
