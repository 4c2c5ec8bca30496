"""Every private name of Ray Direct Transport that the plug-in uses: which breaks when one moves."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import ray
import ray.experimental.rdt.rdt_store
from ray._private.serialization import SerializationContext
from ray._private.worker import Worker

from hoplite_ray.plugin.seams import direct as direct_seams
from tests.ray.raycluster import RayCluster

REPLACED: list[tuple[Any, str]] = [
    (Worker, "deserialize_objects"),
    (ray.experimental.RDTManager, "queue_or_trigger_out_of_band_tensor_transfer"),
    (ray.experimental.RDTManager, "get_rdt_metadata"),
    (ray.experimental.RDTManager, "put_object"),
    (SerializationContext, "serialize_rdt_objects"),
    (ray.experimental.rdt.rdt_store.RDTStore, "add_object_primary"),
]
FOR_READERS = {"deserialize_objects", "queue_or_trigger_out_of_band_tensor_transfer"}


def replaced() -> set[str]:
    """What of Ray's this process has replaced."""
    ours = direct_seams.__name__
    return {name for owner, name in REPLACED if getattr(owner, name).__module__ == ours}


@pytest.fixture
def ref(cluster: RayCluster) -> Any:
    return ray.put(np.ones(3), _tensor_transport="hoplite_numpy")


def test_ray_is_changed_for_readers_in_every_worker_and_for_makers_at_first_use(ref: Any) -> None:
    assert replaced() == {name for _, name in REPLACED}
    assert ray.get(ray.remote(num_cpus=0)(replaced).remote()) >= FOR_READERS


@pytest.mark.parametrize("names", ["ray, hoplite_ray", "hoplite_ray, ray"])
def test_the_transports_are_known_in_whatever_order_both_are_imported(names: str) -> None:
    program = (
        f"import {names}\n"
        "@ray.remote\n"
        "class Maker:\n"
        "    @ray.method(tensor_transport='hoplite_numpy')\n"
        "    def make(self): pass\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_transport_of_names_that_of_a_ref(ref: Any) -> None:
    assert direct_seams.transport_of(ref) == "HOPLITE_NUMPY"
    assert direct_seams.transport_of(ray.put(1)) is None
    assert direct_seams.transport_of("HOPLITE_NUMPY") is None


def test_arrays_are_at_hand_while_ray_unpickles_what_it_has(ref: Any) -> None:
    assert direct_seams.arrays_at_hand() == []
    assert ray.get(ref).tolist() == [1, 1, 1]  # of which Ray has the very array
    assert direct_seams.arrays_at_hand() == []


def test_others_may_unpickle_in_the_body_only(cluster: RayCluster) -> None:
    unpickling = ray._private.worker.global_worker.function_actor_manager.lock
    free = []

    def look() -> None:
        free.append(unpickling.acquire(blocking=False))
        if free[-1]:
            unpickling.release()

    def look_elsewhere() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    with unpickling:
        look_elsewhere()
        with direct_seams.let_others_unpickle():
            look_elsewhere()
        look_elsewhere()
    with direct_seams.let_others_unpickle():
        look_elsewhere()
    assert free == [False, True, False, True]
