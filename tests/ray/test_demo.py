"""`make demo` at the size of a toy, without a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from network import why_impossible

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "benchmarks/demo.py", "--toy"]
FAR_S = 280.0  # 55 s on an idle machine; starting three nodes takes most of it

pytestmark = pytest.mark.timeout(300)
needs_root = pytest.mark.skipif(
    why_impossible() is not None, reason="needs root for network namespaces"
)


def left_behind(demo: subprocess.Popen[str]) -> list[Path]:
    folders = Path("/run/netns"), Path("/run/hoplite-networks")
    return [file for folder in folders for file in folder.glob(f"hop{demo.pid}-*")]


def test_it_shows_both_rates_and_leaves_nothing_behind() -> None:
    with subprocess.Popen(
        COMMAND, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        text, _ = demo.communicate(timeout=FAR_S)
    assert demo.returncode == 0, text
    if why_impossible() is None:
        assert "3 x 500 Mbit/s, one Ray node at the end of each. Started: 1 2 3" in text
        assert "make demo ARGS='--network --nodes=3 --rate-mbit=500 --toy'" in text
    else:
        assert "No emulated network: it needs root" in text
        assert "So it runs over loopback" in text
    assert "\x1b" not in text
    assert re.search(r"hoplite_ray: [\d.]+ gradients/s, step \d+, .* accuracy 0\.[3-9]", text), text
    assert re.search(r"took in [\d.]+ x as many gradients per second as plain Ray", text), text
    assert left_behind(demo) == []


@needs_root
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],  # the same removal
)
def test_it_removes_all_when_it_is_stopped_while_nodes_start(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "--network"], cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as demo:
        assert demo.stdout is not None
        text = ""
        while "Started: 1" not in text:
            text += demo.stdout.read(1) or pytest.fail(text)
        inside = {
            int(pid)
            for name in left_behind(demo)
            if name.parent.name == "netns"
            for pid in subprocess.run(
                ["ip", "netns", "pids", name.name], capture_output=True, text=True, check=True
            ).stdout.split()
        }
        assert inside
        demo.send_signal(number)
        demo.communicate(timeout=FAR_S)
    assert demo.returncode == 128 + number
    assert left_behind(demo) == []
    assert not [pid for pid in inside if os.path.exists(f"/proc/{pid}/exe")]
