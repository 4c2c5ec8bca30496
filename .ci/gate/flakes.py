"""Repeats tests under load, in the lanes of the gate, and counts how often each fails.

Runs are kept in build/flakes/, one line a test, so that a later call goes on; `make clean` forgets
them. What is printed counts the runs of the present commit alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import steps
from reports import Tests
from schedule import Lanes, Outcome

KEPT = Path("build/flakes")
RATE_MAX = 0.01
LIMIT_S = 7200.0  # of one run of a folder


def run(folders: list[str], times: int, burners: int, *, slow: bool) -> bool:
    """Run the tests of `folders` so many times; return whether none fails too often."""
    KEPT.mkdir(parents=True, exist_ok=True)
    also = "" if slow else " and not slow"
    repeated = [
        steps.tests(folder, f"not wall_clock{also}", LIMIT_S, kind="flakes") for folder in folders
    ]
    wall_clock = steps.wall_clock(f"wall_clock{also}", name="flakes-wall-clock")
    for step in (*repeated, wall_clock):  # pytest appends
        Path(steps.report_log(step.name)).unlink(missing_ok=True)
    with burning(burners):
        Lanes(Path(steps.LOGS), _count).run(repeated * times)
    Lanes(Path(steps.LOGS), _count).run([wall_clock] * times)
    return _print_table(_counted(steps_commit()))


def steps_commit() -> str:
    command = ["git", "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Busy loops beside what runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _count(outcome: Outcome) -> None:
    """Keep what one run of a folder has shown, and the logs of its failures."""
    name = outcome.step.name
    report = Path(steps.report_log(name))
    tests, commit = Tests.read(report), steps_commit()
    report.unlink(missing_ok=True)
    failed = dict(tests.failed)
    if outcome.status and not failed:  # a process left behind, a leak, a runner that died
        failed[name] = outcome.log.read_text(errors="replace")
    with (KEPT / "runs.jsonl").open("a") as runs:
        for test in tests.seconds.keys() | failed.keys():
            runs.write(
                json.dumps({"commit": commit, "test": test, "failed": test in failed}) + "\n"
            )
    for test, text in failed.items():
        _keep(test, text)
    print(
        f"{name}: {tests.passed} passed, {len(failed)} failed, "
        f"{outcome.seconds:.0f} s, {outcome.busy:.0%} busy",
        *[f"  failed: {test}" for test in failed],
        sep="\n",
        flush=True,
    )


def _keep(test: str, text: str) -> None:
    folder = KEPT / re.sub(r"[^\w.-]+", "_", test)
    folder.mkdir(exist_ok=True)
    (folder / f"{sum(1 for _ in folder.iterdir()) + 1}.log").write_text(text)


def _counted(commit: str) -> dict[str, tuple[int, int]]:
    """How often each test failed, and ran."""
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for line in (KEPT / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        if run["commit"] == commit:
            ran[run["test"]] += 1
            failed[run["test"]] += run["failed"]
    return {test: (failed[test], ran[test]) for test in sorted(ran)}


def _print_table(counted: dict[str, tuple[int, int]]) -> bool:
    """A row for each folder, and for each test that failed."""
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for test, (failures, runs) in counted.items():
        folder = "/".join(test.split("/")[:2])
        ran[folder] += runs
        failed[folder] += failures
    print("\nfailed    runs  what")
    for folder in ran:
        print(f"{failed[folder]:6} {ran[folder]:7}  all of {folder}")
    flaky = {test: counts for test, counts in counted.items() if counts[0]}
    for test, (failures, runs) in flaky.items():
        print(f"{failures:6} {runs:7}  {test}: {failures / runs:.1%}")
    print(f"logs of what failed: {KEPT}/")
    return all(failures / runs <= RATE_MAX for failures, runs in flaky.values())
