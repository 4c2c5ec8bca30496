"""What the test runners wrote: closing lines, failed tests, the slowest tests."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schedule import TIMED_OUT

CLOSING = re.compile(
    r"^(\[  (?:PASSED|FAILED)  \]"  # gtest
    r"|=+ .* in [0-9.]+s"  # pytest
    r"|(?:Success|Found|All checks)"  # mypy, ruff
    r"|[0-9]+ (?:files|seeds|worlds)"  # ruff format, the simulator, the exploration
    r"|stat::number_of_executed_units"  # libFuzzer
    r"|total: )"  # coverage
)
# Printed by a process that ends while Python objects of ours still exist, after its last test.
LEAK = re.compile(r"^nanobind: leaked ", re.M)


def closing_line(log: Path, status: int) -> str:
    """A runner's own last words."""
    lines = log.read_text(errors="replace").splitlines()
    found = [line for line in lines if CLOSING.match(line)]
    if status == TIMED_OUT:
        return "FAILED at its time limit"
    line = found[-1] if found else ""
    return (line or "done") if status == 0 else f"FAILED (status {status}) {line}".rstrip()


def has_leak(log: Path) -> bool:
    return LEAK.search(log.read_text(errors="replace")) is not None


@dataclass(slots=True)
class Tests:
    """The tests of one run of pytest, by node id, from its file of `--report-log`."""

    seconds: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # with all that pytest says of it
    skipped: set[str] = field(default_factory=set)

    @property
    def passed(self) -> int:
        return len(self.seconds) - len(self.failed) - len(self.skipped - self.failed.keys())

    @classmethod
    def read(cls, path: Path) -> Tests:
        """A file that is not there has no tests; a last line that is cut short does not count."""
        tests = cls()
        for report in _reports(path):
            test = report["nodeid"]
            tests.seconds[test] += report.get("duration", 0.0)
            if report["outcome"] == "failed":
                tests.failed[test] = tests.failed.get(test, "") + _text(report)
            elif report["outcome"] == "skipped":
                tests.skipped.add(test)
        return tests


def _reports(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            report = json.loads(line)
        except json.JSONDecodeError:
            continue
        kind = report.get("$report_type")
        if kind == "TestReport" or (kind == "CollectReport" and report["outcome"] == "failed"):
            yield report


def _text(report: dict[str, Any]) -> str:
    """The traceback and what the test printed."""
    traceback = report.get("longrepr")
    if isinstance(traceback, dict):
        traceback = _traceback(traceback)
    sections = "".join(f"\n--- {title}\n{text}" for title, text in report.get("sections", []))
    return f"=== {report['nodeid']}: {report.get('when', 'collect')}\n{traceback}\n{sections}\n"


def _traceback(longrepr: dict[str, Any]) -> str:
    lines: list[str] = []
    for entry in longrepr.get("reprtraceback", {}).get("reprentries", []):
        place = entry["data"].get("reprfileloc") or {}
        lines += [f"{place.get('path')}:{place.get('lineno')}: {place.get('message')}"]
        lines += entry["data"].get("lines", [])
    return "\n".join(lines)
