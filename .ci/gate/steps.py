"""The steps of each gate.

Lanes: `cluster` has what starts Ray clusters, since two of them at once are slower than one after
the other; `compute` has everything else; `alone` begins when both have ended, for tests of
wall-clock behaviour.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from schedule import Step

TREE = "build/editable"
LOGS = "build/log"
CORES = os.cpu_count() or 2
FOLDERS = ("house", "unit", "process", "cluster", "ray", "serve")
EXACT = ("house", "unit")  # a test that fails there fails the gate: it is no matter of time
TIMED = tuple(folder for folder in FOLDERS if folder not in EXACT)
RAY = ("ray", "serve")  # what starts Ray clusters
FRAMEWORKS = ("verl", "vllm")  # of tests/integrations, each in an environment of its own
WORKERS = {"process": 2 * CORES, "cluster": CORES + 1}  # tests that mostly wait

# What `make test` runs of the programs; all others are run by `make verify`.
# tests/ray/test_demo.py runs one more, benchmarks/demo.py.
TOYS_TESTED = ("examples/follow_a_block.py",)
# Seconds of each minute.
FUZZERS = {
    "frame": 8,
    "handshake": 6,
    "rail": 8,
    "edge": 7,
    "tls": 6,
    "siege": 10,
    "delta": 5,
}


def lint() -> Iterator[Step]:
    sources = "$(git ls-files --cached --others --exclude-standard 'native/*.cc' 'native/*.h')"
    yield Step("ruff-format", "ruff format --check .", 120)
    yield Step("ruff", "ruff check .", 120)
    yield Step("mypy", "mypy", 600)
    yield Step("clang-format", f"clang-format --dry-run --Werror {sources}", 120)


def fast() -> list[Step]:
    return [*lint(), tests("house", "", 600), native()]


def test() -> list[Step]:
    """What a change can break and only this level shows."""
    chosen = "not slow and not wall_clock"
    return [
        *lint(),
        tests("house", chosen, 600),
        native("-*_Slow*:Slow/*"),
        tests("unit", chosen, 900),
        Step("browser", ".ci/browser", 240),
        tests("process", chosen, 1500),
        scenarios("-*_Slow*:Slow/*"),
        *simulation(),
        tests("cluster", chosen, 900),
        tests("ray", chosen, 2700),
        tests("serve", chosen, 1200),
        *[toy(Path(program)) for program in TOYS_TESTED],
        wall_clock("wall_clock and not slow"),
    ]


def verify() -> list[Step]:
    """Everything there is."""
    chosen = "not wall_clock"
    return [
        *lint(),
        tests("house", chosen, 600),
        native(),
        tests("unit", chosen, 1200, covered=True),
        Step("browser", ".ci/browser", 240),
        tests("process", chosen, 2400, covered=True),
        scenarios(),
        *simulation(),
        tests("cluster", chosen, 1800),
        Step("clang-tidy", _clang_tidy(), 900),
        Step("wheel", ".ci/wheel", 1500),
        *native_coverage(),
        *sanitized(),
        *fuzz(1),
        Step("seeds", f".ci/lives {TREE}/hoplite_sim 5000", 3600),
        Step("states", f"{TREE}/hoplite_sim --explore small --states 300000", 3600),
        tests("ray", chosen, 5400, covered=True),
        tests("serve", chosen, 2400, covered=True),
        *[toy(program) for program in programs()],
        Step("notebooks", "jupyter execute benchmarks/notebooks/*.ipynb", 300, "cluster", "step"),
        *[integration(framework) for framework in FRAMEWORKS],
        wall_clock("wall_clock", covered=True),
        Step("repeats", "python .ci/gate flakes --folder process --times 3", 3600, "alone"),
        python_coverage(),
    ]


def tests(
    folder: str, chosen: str, limit_s: float, *, kind: str = "tests", covered: bool = False
) -> Step:
    """A folder of tests/; an empty one fails: pytest answers 5 when it collects nothing."""
    name = f"{kind}-{folder}"
    lane = "cluster" if folder in RAY else "compute"
    command = pytest(name, f"tests/{folder}", chosen, covered=covered)
    if folder in WORKERS:
        command += f" --numprocesses {WORKERS[folder]} --dist worksteal"
    return Step(name, command, limit_s, lane, "" if folder in EXACT else "tests")


def wall_clock(chosen: str, *, name: str = "wall-clock", covered: bool = False) -> Step:
    """Tests of wall-clock behaviour, with nothing beside them."""
    folders = " ".join(f"tests/{folder}" for folder in TIMED)
    command = pytest(name, folders, chosen, covered=covered)
    return Step(name, command, 900, "alone", "tests")


def integration(framework: str) -> Step:
    """The tests of a framework; alone, because they install the wheel that another step builds."""
    name = f"tests-integrations-{framework}"
    return Step(name, f".ci/integrations {framework} {report_log(name)}", 3600, "alone", "step")


def pytest(name: str, what: str, chosen: str, *, covered: bool = False) -> str:
    python = "python -m coverage run -m pytest" if covered else "python -m pytest"
    return f"{python} {what} -m '{chosen}' --durations=10 --report-log={report_log(name)}"


def report_log(name: str) -> str:
    return f"{LOGS}/{name}.jsonl"


def native(chosen: str = "*") -> Step:
    return Step("native", f"{TREE}/native_tests --gtest_brief=1 --gtest_filter='{chosen}'", 600)


def scenarios(chosen: str = "*") -> Step:
    command = f".ci/shards {TREE}/sim_tests --gtest_brief=1 --gtest_filter='{chosen}'"
    return Step("scenarios", command, 1200)


def simulation() -> Iterator[Step]:
    yield Step("simulation", f".ci/lives {TREE}/hoplite_sim 400", 480)
    yield Step("exploration", f"{TREE}/hoplite_sim --explore tiny", 240)


def programs() -> list[Path]:
    """All programs for people; results.py plays the others, so that it is no step of its own."""
    found = [*sorted(Path("examples").glob("*.py")), *sorted(Path("benchmarks").glob("*.py"))]
    return [
        program
        for program in found
        if program.name != "results.py" and "\nif __name__" in program.read_text()
    ]


def toy(program: Path) -> Step:
    """A program for people, at the size of a toy; a benchmark's lines must make a table."""
    command = f"RAY_ADDRESS=local python {program} --toy"
    if program.parent.name == "benchmarks":
        command = f"python benchmarks/results.py --toy --program {program.stem}"
    return Step(f"toy-{program.stem}", command, 480, "cluster", "step")


def _clang_tidy() -> str:
    # libstdc++'s stable_sort calls a deprecated function. The build by GCC reports our own calls.
    warnings = ("-Wno-unknown-warning-option", "-Wno-deprecated-declarations")
    extra = " ".join(f"-extra-arg={each}" for each in warnings)
    return f"run-clang-tidy.py -quiet -p {TREE} -j {CORES} {extra} " r"'/native/.*(?<!_test)\.cc$'"


def _build(name: str, targets: str, options: str) -> Step:
    """Build `targets` into build/NAME, without the extension module."""
    configure = (
        f"cmake -S . -B build/{name} -G Ninja -DCMAKE_BUILD_TYPE=Debug -DHOPLITE_PYTHON=OFF "
        f"-DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1 -D_GLIBCXX_ASSERTIONS' {options}"
    )
    build = f"cmake --build build/{name} --parallel {CORES} --target {targets}"
    return Step(f"{name}-build", f"{configure} && {build}", 2400)


def _build_asan(targets: str) -> Step:
    """One tree for tests and fuzzers: clang alone has libFuzzer, and takes half of GCC's time."""
    options = "-DCMAKE_CXX_COMPILER=clang++ -DHOPLITE_FUZZ=ON"
    return _build("asan", targets, f"{options} -DHOPLITE_SANITIZE=address,undefined")


def sanitized() -> Iterator[Step]:
    """All native tests but those that only measure virtual time, under both sanitizers."""
    chosen = "--gtest_brief=1 --gtest_filter='-*Timing*'"
    fuzzers = " ".join(f"{name}_fuzz" for name in FUZZERS)
    yield _build_asan(f"{fuzzers} native_tests hoplite_sim")
    yield Step("asan-native", f"build/asan/native_tests {chosen}", 1200)
    yield Step("asan-simulation", ".ci/lives build/asan/hoplite_sim 150", 1200)
    threads = "-DHOPLITE_SANITIZE=thread -DHOPLITE_TESTED='io;node;client;bindings;world'"
    yield _build("tsan", "native_tests", threads)
    yield Step("tsan-native", f"build/tsan/native_tests {chosen}", 1200)


def fuzz(minutes: int) -> Iterator[Step]:
    """Hostile bytes into every decoder; corpora stay in build/, where the next run goes on."""
    for name, seconds in FUZZERS.items():
        corpus = f"build/fuzz/corpus/{name}"
        command = (
            f"mkdir -p {corpus} && build/asan/{name}_fuzz -max_total_time={seconds * minutes} "
            "-max_len=4096 -timeout=5 -verbosity=0 -print_funcs=0 -print_final_stats=1 "
            f"-artifact_prefix=build/fuzz/ {corpus}"
        )
        yield Step(f"fuzz-{name}", command, seconds * minutes + 60)
    yield Step("fuzz-control", f".ci/properties {15 * minutes}", 15 * minutes + 240)


def fuzz_gate(minutes: int) -> list[Step]:
    return [_build_asan(" ".join(f"{name}_fuzz" for name in FUZZERS)), *fuzz(minutes)]


def native_coverage() -> Iterator[Step]:
    """Lines of native/ that its own tests and random lives reach."""
    # With --coverage GCC 12 warns of a std::optional's value although the code checks it first.
    counted = "-DCMAKE_CXX_FLAGS='--coverage -Wno-maybe-uninitialized'"
    yield _build("coverage", "native_tests sim_tests hoplite_sim", counted)
    programs = [
        "build/coverage/native_tests --gtest_brief=1",
        ".ci/shards build/coverage/sim_tests --gtest_brief=1",
        ".ci/lives build/coverage/hoplite_sim 100",
    ]
    run = "; ".join(["find build/coverage -name '*.gcda' -delete", *programs])
    yield Step("coverage-run", run, 2400)
    yield Step("coverage-native", "python .ci/gate coverage native", 600)


def python_coverage() -> Step:
    """Lines of the package that tests/ reaches; after all tests."""
    return Step("coverage-python", "python .ci/gate coverage python", 300, "alone")
