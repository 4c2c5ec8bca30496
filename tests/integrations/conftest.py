"""A cluster as frameworks start it: no flag, and the store's options in the job's environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from tests.ray.conftest import _no_actor_stays  # noqa: F401 - a fixture that all modules use
from tests.ray.raycluster import RayCluster

ARENA_BYTES = 96 << 20


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """Three Ray nodes, and a driver that has joined them by `ray.init` alone."""
    started = RayCluster.start()
    try:
        environment = {"env_vars": {"HOPLITE_RAY_ARENA_BYTES": str(ARENA_BYTES)}}
        ray.init(address=started.cluster.address, runtime_env=environment, log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.stop()
