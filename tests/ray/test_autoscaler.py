"""Ray's own autoscaler: nodes come when they are asked for, and go when nothing needs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # drained, idle and killed nodes: test_leaving.py, in a cluster that is there
@pytest.mark.timeout(240)  # a Ray of four nodes starts, and ends node by node
def test_nodes_come_and_go_while_transfers_run_and_what_they_keep_stays(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.ray.autoscaled", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(program, cwd=root, capture_output=True, text=True)
    assert done.stdout.endswith("all have gone\n"), done.stderr
