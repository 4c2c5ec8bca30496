"""The budget of each folder of tests: its recorded seconds in `make test`, on two quiet cores."""

from __future__ import annotations

import json

from tests.house.tree import Tree

# Seconds of the folder's step, beside the steps of the gate's other lane.
BUDGET_S = {
    "house": 25,
    "unit": 60,
    "process": 270,
    "cluster": 60,
    "ray": 500,
    "serve": 230,
}
VERIFIED = {"integrations"}  # folders that `make verify` alone runs
OVER = 1.25  # a recorded time above this multiple of its budget fails
RECORDED = "tests/times.json"


def recorded(tree: Tree) -> list[str]:
    """Every folder of tests has a budget and a recorded time that keeps it."""
    steps = json.loads(tree.read(RECORDED))["steps"]
    folders = {path.split("/")[1] for path in tree.matching(r"tests/\w+/test_\w+\.py")}
    without = folders - BUDGET_S.keys() - VERIFIED
    found = [f"tests/{folder}: has no budget" for folder in sorted(without)]
    for folder, budget_s in BUDGET_S.items():
        step = steps.get(f"tests-{folder}")
        if step is None:
            found.append(f"{RECORDED}: has no tests-{folder}: run make test, then make record")
        elif step["seconds"] > OVER * budget_s:
            found.append(
                f"tests/{folder}: {step['seconds']} s recorded, at most {OVER * budget_s:.0f}:"
                f" make its tests cheaper"
            )
    return found
