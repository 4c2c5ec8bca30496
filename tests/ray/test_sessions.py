"""A process that leaves Ray and lives on: what it keeps of the session."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
from tests.ray.raycluster import eventually
import numpy as np, ray, hoplite_ray as hop

def memory_fds():
    links = []
    for each in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:
            pass  # of the listing itself
    return [each for each in links if "memfd:" in each]

ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=1 << 27)
array, filling = hop.array(np.ones(200_000)), hop.empty(200_000)
filling[...] = 2
received = hop.get(array)
assert memory_fds()
ray.shutdown()
assert eventually(lambda: "hoplite-reaper" not in [each.name for each in threading.enumerate()])
assert received.sum() == 200_000
received[0] = 5
assert received.sum() == 200_004
assert filling.copy().sum() == 400_000
del received, filling
assert eventually(lambda: not memory_fds()), memory_fds()
print("it has let go")
"""


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
def test_a_process_that_has_left_ray_holds_no_arena_and_its_arrays_are_valid() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert said.stdout == "it has let go\n", said.stderr
    assert "leaked" not in said.stderr  # by nanobind, at exit
