# The two set-up commands: `make demo` and `make test`.
# Both start from a bare clone; a second run is quick.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL: # two steps never install at the same time; what builds uses all cores by itself

venv  := $(CURDIR)/.venv
tree  := $(CURDIR)/build/editable
ready := build/stamps

# The venv's cmake, ninja and python come first for everything below, also for what Ray starts.
export PATH := $(venv)/bin:$(PATH)
export PYTHON
export VIRTUAL_ENV := $(venv)
export RAY_USAGE_STATS_ENABLED ?= 0
export RAY_AUTH_MODE ?= disabled

.PHONY: demo test bench pictures docs fix fast simulate fuzz install tests-built clean

# The main job: asynchronous SGD with a parameter server. Options by ARGS, as in ARGS=--plain.
demo: $(ready)/package $(if $(findstring --torch,$(ARGS)),$(venv)/.torch)
	python examples/async_sgd.py $(ARGS)

# The full gate.
test: tests-built
	.ci/run gate

# The gate's part that takes under two minutes.
fast: tests-built
	.ci/run gate-fast

# The canonical benchmark: two numbers.
bench: $(ready)/package
	python benchmarks/canonical.py $(ARGS)

# The pictures in docs/pictures from the lines in docs/measured, or in the files of ARGS.
pictures: $(ready)/package $(venv)/.dev
	python benchmarks/report.py $(ARGS)

# The documentation as a site, in build/site.
docs: $(ready)/package $(venv)/.dev
	mkdocs build

# 10,000 random lives of a cluster; each that fails prints its seed. And every order of events in
# small worlds, as far as 300,000 states of each go; what fails prints its schedule.
simulate: tests-built
	$(tree)/hoplite_sim --seed 1 --seeds 10000
	$(tree)/hoplite_sim --explore small --states 300000

# Hostile bytes into every decoder, and hostile control messages, for a minute or MINUTES=60.
fuzz: tests-built
	.ci/run fuzz $(MINUTES)

# Format everything and renew the stub of the extension module.
fix: tests-built
	.ci/run format
	.ci/run stub

# The package and the tools into .venv, without running anything; again after a change in native/.
install: $(ready)/package $(venv)/.dev

tests-built: $(ready)/system-test $(ready)/package $(venv)/.dev
	cmake -S . -B $(tree) -DHOPLITE_TESTS=ON > build/configure.log || \
	  { cat build/configure.log; exit 1; }
	cmake --build $(tree) --parallel $(shell nproc)

clean:
	rm -rf build

# Both hold the Python to use. Where tests are built, one question asks for all that the system
# must provide, because tests-built names system-test first.
$(ready)/system-demo $(ready)/system-test: $(ready)/system-%: .ci/system
	mkdir -p $(@D)
	.ci/system $* > $@.python
	mv $@.python $@

# The stamps of .venv lie in it, so that removing .venv or build/ brings back what was in it.
$(venv)/.build: pyproject.toml $(ready)/system-demo
	[ -x $(venv)/bin/python ] || "$$(cat $(ready)/system-demo)" -m venv $(venv)
	python -m pip install --quiet --upgrade 'pip>=25.1'
	python -m pip install --quiet --group build
	touch $@

$(venv)/.torch: $(venv)/.build
	python -m pip install --quiet --group torch
	touch $@

$(venv)/.dev: $(venv)/.build
	python -m pip install --quiet --group dev
	touch $@

# An import builds nothing: thousands of processes would each look whether there is something to do.
$(ready)/package: CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h') $(venv)/.build
	python -m pip install --quiet --no-build-isolation --editable '.[examples]'
	touch $@
