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
# Many images set it. Without bytecode on disk, each process of a test compiles all of Ray again.
unexport PYTHONDONTWRITEBYTECODE
export RAY_USAGE_STATS_ENABLED ?= 0
export RAY_AUTH_MODE ?= disabled

.PHONY: demo test verify flakes record bench results pictures docs fix fast simulate fuzz install \
  tests-built native-built clean always

# The main job: asynchronous SGD with a parameter server, as root on an emulated network.
# Options by ARGS, as in ARGS=--loopback.
demo: $(ready)/package $(if $(findstring --torch,$(ARGS)),$(venv)/.torch)
	python benchmarks/demo.py $(ARGS)

# The gate: what a change can break and only this level shows. docs/internals/testing.md says more.
test: tests-built
	python .ci/gate test

# Everything there is.
verify: $(ready)/system-verify tests-built $(venv)/.models
	python .ci/gate verify

# The gate's part that takes under two minutes.
fast: tests-built
	python .ci/gate fast

# Repeats tests under load and counts failures: FOLDER=process TIMES=20 BURNERS=2 SLOW=1.
flakes: tests-built
	python .ci/gate flakes $(FOLDER:%=--folder %) $(TIMES:%=--times %) $(BURNERS:%=--burners %) \
	  $(SLOW:%=--slow)

# Keeps the times of the last green `make test` in tests/times.json, for tests/house.
record:
	python .ci/gate record

# The canonical benchmark: two numbers.
bench: $(ready)/package
	python benchmarks/canonical.py $(ARGS)

# Every table at one clean commit, then the page of results: TABLES="small local" for some of them.
# Those with a network need root: `sudo -E make results`. A second run goes on where one ended.
results: tests-built
	python benchmarks/results.py $(TABLES)

# The page of results and its pictures from the lines in docs/measured; or the pictures of ARGS.
pictures: $(ready)/package $(venv)/.dev
	python benchmarks/report.py $(ARGS)

# The documentation as a site, in build/site.
docs: $(ready)/package $(venv)/.dev
	NO_MKDOCS_2_WARNING=1 mkdocs build

# 5,000 random lives of a cluster, and 5,000 with all limits small; each that fails prints its seed.
# And every order of events in small worlds, as far as 300,000 states of each go; what fails prints
# its schedule.
simulate: tests-built
	.ci/lives $(tree)/hoplite_sim 5000
	$(tree)/hoplite_sim --explore small --states 300000

# Hostile bytes into every decoder, and hostile control messages, for a minute or MINUTES=60.
fuzz: $(ready)/system-verify tests-built
	python .ci/gate fuzz $(MINUTES:%=--minutes %)

# Format everything and renew the stub of the extension module.
fix: tests-built
	ruff check --fix .
	ruff format .
	git ls-files --cached --others --exclude-standard 'native/*.cc' 'native/*.h' | \
	  xargs clang-format -i
	python -m tests.house.stub build

# The package and the tools into .venv, without running anything; again after a change in native/.
install: $(ready)/package $(venv)/.dev

# The compiler and the package index don't wait for each other. The package comes last: nothing is
# left to compile then, and two programs never install into .venv at once.
tests-built: $(ready)/system-test $(venv)/.build
	$(MAKE) $(venv)/.dev & tools=$$!; $(MAKE) native-built || { kill $$tools; exit 1; }; wait $$tools
	$(MAKE) $(ready)/package

native-built: $(venv)/.build
	mkdir -p build
	cmake -S . -B $(tree) -G Ninja -DHOPLITE_TESTS=ON > build/configure.log || \
	  { cat build/configure.log; exit 1; }
	cmake --build $(tree) --parallel $(shell nproc) > build/build.log || \
	  { tail -n 60 build/build.log; exit 1; }

clean:
	rm -rf build

# Each holds the Python to use. Where tests are built, one question asks for all that the system
# must provide, because tests-built names system-test first.
$(addprefix $(ready)/system-,demo test verify): $(ready)/system-%: .ci/system
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

# By uv: pip takes four times as long for these 5 GB.
$(venv)/.dev: $(venv)/.build
	python -m pip install --quiet --group uv
	uv pip install --quiet --requirements pyproject.toml --extra examples --group dev
	touch $@

# What examples with real models need; only `make verify` runs these.
$(venv)/.models: $(venv)/.dev
	uv pip install --quiet --requirements pyproject.toml --extra models
	touch $@

# The editable install maps each module to its file, so a module that has moved is installed again.
$(ready)/modules: always
	mkdir -p $(@D)
	find -L hoplite_ray -name '*.py' | sort > $@.new
	cmp -s $@.new $@ || cp $@.new $@

# An import builds nothing: thousands of processes would each look whether there is something to do.
$(ready)/package: CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h') $(venv)/.build \
  $(ready)/modules
	python -m pip install --quiet --no-build-isolation --editable '.[examples]'
	touch $@
