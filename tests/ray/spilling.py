"""A Ray node that spills, by test_spill.py: three arenas of objects, read back and let go."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.process.attachment import attachment
from tests.ray.raycluster import eventually

ARENA_BYTES = 32 << 20
COUNT, FLOATS = 24, 1 << 20


@ray.remote(num_cpus=0)
def make(value: int) -> Any:
    return hop.array(np.full(FLOATS, value, np.float32))


def told() -> NodeStats:
    """Return the node's own counters."""
    place = attachment().place.directory
    record = json.loads((place / "node.json").read_text())
    return NodeStats.read(record["control"], (place / "secret").read_bytes().strip())


def main(directory: str) -> None:
    """Put half of them here, have tasks make the others; every byte has to come back."""
    options = {"arena_bytes": ARENA_BYTES, "when_full": "spill", "spill_directory": directory}
    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"hoplite": options},
    )
    refs = [hop.put(np.full(FLOATS, value, np.float32)) for value in range(COUNT // 2)]
    refs += [make.remote(value) for value in range(COUNT // 2, COUNT)]
    ray.wait(refs[COUNT // 2 :], num_returns=COUNT // 2)
    assert told().spill_bytes >= COUNT * FLOATS * 4 - ARENA_BYTES
    for value, ref in enumerate(refs):
        assert np.array_equal(hop.get(ref, timeout_s=60), np.full(FLOATS, value, np.float32)), value
    assert told().spill_bytes_read >= COUNT * FLOATS * 4 - ARENA_BYTES
    refs.clear()
    del ref
    assert eventually(lambda: told().spill_bytes == told().arena_bytes_used == 0, within_s=60)
    assert os.listdir(directory) == []


if __name__ == "__main__":
    main(sys.argv[1])
