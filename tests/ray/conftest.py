"""The cluster that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

import hoplite_ray  # noqa: F401 - before ray.init, for the flag
from tests.ray.raycluster import ARENA_BYTES, RayCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """Three Ray nodes; a test that kills one adds one of its own."""
    started = RayCluster.start()
    try:
        environment = {
            "hoplite": {"arena_bytes": ARENA_BYTES},
            "worker_process_setup_hook": "tests.ray.raycluster.set_up_worker",
        }
        ray.init(address=started.cluster.address, runtime_env=environment, log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.stop()
