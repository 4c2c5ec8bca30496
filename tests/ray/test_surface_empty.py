"""hop.empty: written in place until it is sealed, and then as any other."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster, eventually, is_gone
from tests.ray.surface_values import needs_torch


@ray.remote(num_cpus=0)
def total(value: hop.Array) -> float:
    return float(np.asarray(value).sum(dtype=np.float64))


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_is_written_before_sealing_is_what_others_get(cluster: RayCluster, size: int) -> None:
    array = hop.empty((size,))
    assert (array.shape, array.dtype) == ((size,), np.float32)
    assert repr(array).endswith(" not sealed>")
    array[:] = 1
    array += 1
    view = np.asarray(array)
    view[0] = 5
    assert float(array[0]) == 5
    assert ray.get(total.options(**cluster.on(1)).remote(array), timeout=60) == 2 * size + 3
    assert "not sealed" not in repr(array)
    with pytest.raises(TypeError, match="immutable"):
        array[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9
    assert hop.get(array)[0] == 5


def test_a_task_fills_its_result_in_place(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def filled(value: int) -> hop.Array:
        array = hop.empty((LARGE, 2), "int64")
        np.copyto(np.asarray(array), value)
        return array

    refs = [filled.options(**cluster.on(node)).remote(node + 1) for node in range(3)]
    assert hop.get(hop.reduce(refs), timeout_s=60).tolist() == [[6, 6]] * LARGE


@pytest.mark.parametrize("seal", [hop.put, hop.array, hop.get, ray.put])
def test_what_seals(cluster: RayCluster, seal: Any) -> None:
    array = hop.empty(LARGE)
    array[...] = 3
    kept = seal(array)
    with pytest.raises(TypeError, match="immutable"):
        array[0] = 9
    assert hop.get(array).min() == 3
    del kept


def test_outside_ray_a_copy_does_not_seal(cluster: RayCluster) -> None:
    array = hop.empty(4)
    array[:] = 1
    taken = pickle.loads(pickle.dumps(array))
    array[:] = 2
    assert taken.tolist() == [1, 1, 1, 1]
    assert array.copy().tolist() == [2, 2, 2, 2]


def test_views_from_before_are_of_this_process_alone(cluster: RayCluster) -> None:
    array = hop.empty(LARGE)
    array[:] = 1
    part = np.asarray(array)[:10]
    ref = hop.put(array)
    part[:] = 7
    assert hop.get(ref)[:10].tolist() == [1] * 10


def test_many_threads_may_seal(cluster: RayCluster) -> None:
    array = hop.empty(LARGE)
    array[:] = 1
    refs: list[Any] = []
    threads = [threading.Thread(target=lambda: refs.append(hop.put(array))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(each[-1]) for each in hop.get(refs)] == [1.0] * 6


def test_what_is_never_sealed_goes_with_its_handle(cluster: RayCluster) -> None:
    from hoplite_ray.plugin.process.attachment import attachment

    array = hop.empty(LARGE)
    array[:] = 1
    object_id = array._object_id
    del array
    assert eventually(lambda: is_gone(object_id))
    for _ in range(8):  # of 60 MB in an arena of 96 MiB
        hop.empty(15 << 20, timeout_s=20)[0] = 1
    assert attachment().store.is_alive


@needs_torch
def test_tensors_are_written_in_place_too(cluster: RayCluster) -> None:
    import torch

    array = hop.empty((LARGE,), "bfloat16", "torch")
    array.torch().fill_(2.5)
    array[0] = 1
    assert ray.get(kind_of.options(**cluster.on(2)).remote(array), timeout=80) == "torch.bfloat16"
    received = hop.get(array)
    assert (received[0], received[1], received.dtype) == (1, 2.5, torch.bfloat16)


@ray.remote(num_cpus=0)
def kind_of(value: hop.Array) -> str:
    return str(value.torch().dtype)


def test_wrong_shapes_and_dtypes_are_named(cluster: RayCluster) -> None:
    for arguments in [((-1,), "float32"), (3, "flaot32"), (3, "object"), (3, "float32", "jax")]:
        with pytest.raises(hop.InvalidArgumentError):
            hop.empty(*arguments)
