"""Drivers that end amid what they do: nothing native is left, and their status is their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hoplite_ray as hop
from hoplite_ray.tables.log import value_ids
from tests.ray.raycluster import ARENA_BYTES, RayCluster, eventually, is_gone

PRELUDE = """
import asyncio, sys, threading
import numpy as np, ray, hoplite_ray as hop

ray.init(
    address=sys.argv[1],
    log_to_driver=False,
    runtime_env={"hoplite": {"arena_bytes": int(sys.argv[2])}},
)
ref = hop.put(np.zeros(200_000))

@ray.remote(num_cpus=0, max_retries=0)
def never():
    threading.Event().wait()
"""

PROGRAMS = {
    "gets without end": """
first = threading.Event()
def spin():
    while True:
        hop.get(ref)
        first.set()
threading.Thread(target=spin, daemon=True).start()
first.wait()
""",
    "a value that a thread holds": """
held = threading.Event()
def hold():
    value = hop.get(ref)
    held.set()
    threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
""",
    "a get in a loop that was left": """
async def begin():
    global task
    task = asyncio.create_task(hop.get_async([ref, never.remote()]))
    done, pending = await asyncio.wait([task], timeout=0.5)
    assert pending
loop = asyncio.new_event_loop()
loop.run_until_complete(begin())
""",
    "a get that a shutdown ends": """
async def begin():
    task = asyncio.create_task(hop.get_async(never.remote()))
    done, pending = await asyncio.wait([task], timeout=0.5)
    assert pending
    ray.shutdown()
asyncio.run(begin())
""",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_driver_ends_as_it_should(cluster: RayCluster, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, cluster.cluster.address, str(ARENA_BYTES)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "nanobind" not in done.stderr


SUPERSEDES = """
table = hop.Table("left", keep=1, keep_s=0)
for turn in range(2):
    versions = table.put_all({str(key): np.full(1_000, turn) for key in range(64)})
    print(*(f"{each.writer}/{each.value}" for each in versions.values()))
"""


def test_a_driver_deletes_the_values_that_its_last_put_has_superseded(cluster: RayCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + SUPERSEDES, cluster.cluster.address, str(ARENA_BYTES)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    superseded, kept = ([each.split("/") for each in line.split()] for line in lines)
    assert len(superseded) == len(kept) == 64
    for writer, value in superseded:
        for object_id in value_ids("left", writer, int(value), 2):
            assert eventually(lambda each=object_id: is_gone(each))
    ids = [value_ids("left", writer, int(value), 1)[0] for writer, value in kept]
    assert not any(map(is_gone, ids))
    table = hop.Table("left", keep=1, keep_s=0)  # the tests that follow fill these nodes
    for key in range(64):
        table.remove(str(key))
    assert all(eventually(lambda each=each: is_gone(each)) for each in ids)
