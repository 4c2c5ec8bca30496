"""Repeats tests under load and counts how often each fails.

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
from schedule import Clock

KEPT = Path("build/flakes")
RATE_MAX = 0.01


def run(folders: list[str], times: int, burners: int) -> bool:
    """Run the tests of `folders` so many times; return whether none fails too often."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for time in range(times):
        for folder in folders:
            with burning(burners):
                _round(folder, "not wall_clock", time)
            _round(folder, "wall_clock", time)
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


def _round(folder: str, chosen: str, time: int) -> None:
    """One run of a folder; its failures keep their logs."""
    name, clock = f"flakes-{folder}", Clock()
    report = Path(steps.report_log(name))
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    log = report.with_suffix(".log")
    command = steps.tests(folder, chosen, 0).command.replace(f"tests-{folder}.jsonl", report.name)
    with log.open("wb") as output:
        status = subprocess.run(
            ["bash", "-c", command], stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    if status == 5 and chosen == "wall_clock":
        return  # the folder has none
    tests, commit = Tests.read(report), steps_commit()
    failed = dict(tests.failed)
    if status and not failed:  # a process left behind, a leak, a runner that died
        failed[f"tests/{folder}"] = log.read_text(errors="replace")
    with (KEPT / "runs.jsonl").open("a") as runs:
        for test in tests.seconds.keys() | failed.keys():
            runs.write(
                json.dumps({"commit": commit, "test": test, "failed": test in failed}) + "\n"
            )
    for test, text in failed.items():
        _keep(test, text)
    print(
        f"round {time + 1} of {folder} ({chosen}): {tests.passed} passed, {len(failed)} failed, "
        f"{clock.seconds:.0f} s, {clock.busy:.0%} busy",
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
