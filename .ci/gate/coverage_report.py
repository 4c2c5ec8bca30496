"""Line coverage by folder, beside the least that is recorded in tests/coverage.json."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import coverage

RECORDED = Path("tests/coverage.json")
PYTHON_DATA = Path("build/coverage/python")  # as pyproject.toml has it
SLACK = 0.5  # points by which a folder may fall below what is recorded
FOLDERS = ("plan", "io", "node", "world")  # of native/


def forget() -> None:
    """Remove what an earlier run has measured."""
    shutil.rmtree(PYTHON_DATA, ignore_errors=True)
    PYTHON_DATA.mkdir(parents=True)


def native() -> bool:
    """By gcov, of build/coverage."""
    command = ["gcovr", "--root=.", "--filter=native/", "--json-summary=-", "build/coverage"]
    command += ["--exclude=.*_test", "--gcov-ignore-parse-errors=all", "--merge-lines"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = {f"native/{folder}": [0, 0] for folder in FOLDERS}
    for file in json.loads(text)["files"]:
        folder = "/".join(file["filename"].split("/")[:2])
        if folder in lines:
            lines[folder][0] += file["line_covered"]
            lines[folder][1] += file["line_total"]
    return _compare({folder: 100 * hit / total for folder, (hit, total) in lines.items()})


def python() -> bool:
    """By coverage.py, of all processes that tests have started."""
    measured = coverage.Coverage()
    measured.combine()
    measured.save()
    return _compare({"hoplite_ray": measured.report()})


def _compare(percent: dict[str, float]) -> bool:
    """Print each folder; return whether none is lower than it was by more than the slack."""
    recorded = json.loads(RECORDED.read_text())
    good = True
    for folder, now in percent.items():
        lower = now < recorded[folder] - SLACK
        good &= not lower
        print(
            f"total: {folder} {now:.1f} % of lines, recorded {recorded[folder]:.1f}"
            + (f": lower by more than {SLACK}" if lower else "")
        )
    return good
