"""A process that leaves Ray and lives on: what it keeps of the session, and that it may return."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
os.environ["RAY_prestart_worker_first_driver"] = "0"
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

def begin():
    ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=1 << 27)

begin()
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

begin()
ref = hop.put(np.full(200_000, 2, np.float32))
assert hop.get(hop.reduce([ref]))[0] == 2
ray.shutdown()
try: hop.put(np.zeros(3))
except hop.HopliteError as error: print(error)
"""


SAID = """\
it has let go
Ray is not running in this process: call ray.init() first
"""


@pytest.mark.timeout(150)  # two Rays start and end
def test_a_process_that_has_left_ray_holds_no_arena_keeps_its_arrays_and_may_begin_again() -> None:
    for _ in range(2):  # a raylet that is not up in 30 s fails for good
        said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        if "timed out during startup" not in said.stderr:
            break
    assert said.stdout == SAID, said.stderr
    assert "leaked" not in said.stderr  # by nanobind, at exit
