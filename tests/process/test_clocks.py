"""A wall clock that jumps on one of the machines, and nodes that go by none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.process.command import UNHURRIED, at, hoplite_ray
from tests.process.nodes import MIB, MakeNodes, numbers

AHEAD_S = 300
JUMPS = """
import pathlib, time
real, ahead = time.time, pathlib.Path({file!r})
time.time = lambda: real() + float(ahead.read_text())
"""


@pytest.mark.parametrize("jumps", [0, 1], ids=["of the oldest", "of another one"])
def test_a_clock_that_jumps_on_one_node_costs_a_warning(
    cluster: MakeNodes, tmp_path: Path, jumps: int
) -> None:
    """Case 25_a_clock_that_jumps_on_one_node: a death is told, and a newcomer joins."""
    clock = tmp_path / "ahead_s"
    clock.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(JUMPS.format(file=str(clock)))
    nodes = cluster(0)
    for rank in range(3):
        nodes.add(before=("env", f"PYTHONPATH={tmp_path}") if rank == jumps else ())
    nodes.meet()
    kept = nodes.put(jumps, numbers(MIB))
    clock.write_text(f"{AHEAD_S}")
    nodes.kill(2)
    nodes.meet()
    nodes.add()
    nodes.meet()
    np.testing.assert_array_equal(nodes.get(3, kept), numbers(MIB))
    found = hoplite_ray("doctor", "--json", *UNHURRIED, *at(nodes.processes[3]))
    wrong = [each for each in found.told["findings"] if each["about"] == "clock"]
    named = [each["cause"] for each in wrong if each["level"] == "warn"]
    assert [f"{nodes.processes[jumps].node_id:x}" in each for each in named] == [True]
    assert "s ahead of ours: nodes go on" in named[0]
