"""The cluster that all tests of this folder share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
import ray
from ray._private import state

import hoplite_ray  # noqa: F401 - before ray.init, for the flag
from tests.ray.raycluster import ARENA_BYTES, RayCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """Three Ray nodes; a test that kills one adds one of its own."""
    started = RayCluster.start()
    try:
        environment = {
            "hoplite": {"arena_bytes": ARENA_BYTES},
            "worker_process_setup_hook": "tests.ray.users_setup.set_up_worker",
        }
        ray.init(address=started.cluster.address, runtime_env=environment, log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.stop()


@pytest.fixture(scope="module", autouse=True)
def _no_actor_stays() -> Iterator[None]:
    """Kill the actors that a module leaves alive, because they would load later modules."""
    yield
    if not ray.is_initialized():
        return
    for actor in state.actors().values():
        shared = "Steward" in actor["ActorClassName"]  # by all modules, as the nodes are
        if actor["State"] == "ALIVE" and actor["Pid"] and not shared:
            with suppress(ProcessLookupError):
                os.kill(actor["Pid"], signal.SIGKILL)
