"""Spilling under Ray: more than an arena is put and made, and nothing is left on the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("spilling.py")


@pytest.mark.slow  # what is spilled and read back: tests/process/test_spill.py
def test_three_arenas_are_put_and_made_and_read_and_leave_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [], "nor after its nodes have ended"
