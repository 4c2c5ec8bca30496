"""put, array and get: right values on every node, in any order of calls, and no hang."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.gates import Gate
from tests.ray.raycluster import LARGE, RayCluster


@ray.remote(num_cpus=0)
def total(value: Any) -> float:
    return float(np.asarray(value).sum(dtype=np.float64))


@ray.remote(num_cpus=0)
def filled(value: float, size: int = LARGE) -> hop.Array:
    return hop.array(np.full(size, value, np.float32))


@pytest.mark.parametrize("size", [0, 1, 1000, 16_384, 16_385, LARGE])
def test_put_on_one_node_is_got_on_all(cluster: RayCluster, size: int) -> None:
    sent = np.arange(size, dtype=np.float32)
    ref = hop.put(sent)
    sums = [total.options(**cluster.on(node)).remote(ref) for node in range(3)]
    assert ray.get(sums) == [float(sent.sum(dtype=np.float64))] * 3
    np.testing.assert_array_equal(hop.get(ref), sent)


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "complex64", "<U3", "datetime64[s]"])
def test_any_plain_dtype_and_shape_comes_back(cluster: RayCluster, dtype: str) -> None:
    sent = np.arange(24).reshape(2, 3, 4).astype(dtype)
    received = hop.get(hop.put(sent.T))  # not contiguous
    assert received.dtype == sent.dtype
    np.testing.assert_array_equal(received, sent.T)


def test_get_may_be_called_before_the_task_has_put(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def late(gate: list[ray.ObjectRef]) -> hop.Array:
        ray.get(gate)
        return hop.array(np.full(LARGE, 5, np.float32))

    gate = Gate.remote()
    refs = [late.options(**cluster.on(node)).remote([gate.passed.remote()]) for node in (1, 2)]
    received: list[Any] = []
    getter = threading.Thread(target=lambda: received.extend(hop.get(refs, timeout_s=60)))
    getter.start()
    ray.get(gate.open.remote())
    getter.join()
    assert [array[-1] for array in received] == [5, 5]


def test_arrays_are_arguments_and_parts_of_arguments(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def both(direct: hop.Array, parts: dict[str, Any]) -> float:
        return float(np.asarray(direct).sum() + hop.get(parts["ref"])[0] + parts["array"].nbytes)

    ref = hop.put(np.ones(10, np.float32))
    handle = ray.get(ref)
    assert ray.get(both.remote(ref, {"ref": ref, "array": handle})) == 10 + 1 + 40


def test_an_actor_returns_its_cached_handle_many_times(cluster: RayCluster) -> None:
    @ray.remote
    class Parameters:
        def __init__(self) -> None:
            self.weights = hop.array(np.zeros(LARGE, np.float32))

        def get_weights(self) -> hop.Array:
            return self.weights

        def add(self, gradient: hop.Array) -> None:
            self.weights = hop.array(np.asarray(self.weights) + np.asarray(gradient))

    actor = Parameters.options(**cluster.on(1)).remote()
    for step in range(3):
        many = hop.get([actor.get_weights.remote() for _ in range(3)])
        assert [array[0] for array in many] == [step] * 3
        ray.get(actor.add.remote(filled.remote(1)))


def test_two_arrays_of_one_task_are_two_objects(cluster: RayCluster) -> None:
    @ray.remote
    def second() -> hop.Array:
        hop.array(np.zeros(LARGE, np.float32))
        return hop.array(np.ones(LARGE, np.float32))

    assert hop.get(second.remote()).sum() == LARGE


def test_two_returns_are_two_objects(cluster: RayCluster) -> None:
    @ray.remote(num_returns=2)
    def pair() -> tuple[hop.Array, hop.Array]:
        return hop.array(np.zeros(LARGE)), hop.array(np.ones(LARGE))

    zeros, ones = hop.get(list(pair.remote()))
    assert (zeros.sum(), ones.sum()) == (0, LARGE)


def test_arrays_may_be_made_in_threads(cluster: RayCluster) -> None:
    @ray.remote
    def threads() -> list[hop.Array]:
        made: dict[int, hop.Array] = {}

        def make(number: int) -> None:
            made[number] = hop.array(np.full(LARGE, number, np.float32))

        several = [threading.Thread(target=make, args=(number,)) for number in range(4)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        return [made[number] for number in range(4)]

    arrays = ray.get(threads.remote())
    assert [array[0] for array in hop.get(arrays)] == [0, 1, 2, 3]


def test_calls_of_an_async_actor_make_their_own_arrays(cluster: RayCluster) -> None:
    @ray.remote
    class Several:
        async def make(self, number: int) -> hop.Array:
            await asyncio.sleep(0)
            return await asyncio.to_thread(hop.array, np.full(LARGE, number, np.float32))

    actor = Several.remote()
    arrays = hop.get([actor.make.remote(number) for number in range(4)])
    assert [array[0] for array in arrays] == [0, 1, 2, 3]


def test_a_call_of_an_async_actor_that_is_retried_makes_its_array_again(
    cluster: RayCluster,
) -> None:
    """Case 24_a_clock_that_is_set_back: the second life's clock is an hour behind."""

    @ray.remote(num_cpus=0, max_restarts=1, max_task_retries=1)
    class Mortal:
        def __init__(self, mark: str) -> None:
            self.again = os.path.exists(mark)
            Path(mark).touch()
            if self.again:
                time.time = lambda: time.clock_gettime(time.CLOCK_REALTIME) - 3600

        async def make(self) -> hop.Array:
            made = await asyncio.to_thread(hop.array, np.full(LARGE, int(self.again), np.float32))
            if not self.again:
                os._exit(1)
            return made

    with tempfile.TemporaryDirectory() as directory:
        ref = Mortal.remote(f"{directory}/mark").make.remote()
        assert hop.get(ref, timeout_s=60)[0] == 1


def test_a_driver_makes_arrays_for_tasks(cluster: RayCluster) -> None:
    assert ray.get(total.remote(hop.array(np.ones(LARGE)))) == LARGE


def test_a_task_that_is_retried_puts_the_same_object_again(cluster: RayCluster) -> None:
    @ray.remote(max_retries=2, num_cpus=0)
    def dies_once() -> tuple[hop.Array, bytes]:
        from hoplite_ray.plugin.seams import core as seams

        made = hop.array(np.full(LARGE, seams.attempt_number(), np.float32))
        if seams.attempt_number() == 0:
            os._exit(1)
        return made, made._object_id

    array, object_id = ray.get(dies_once.remote())
    assert array._object_id == object_id
    assert hop.get(array)[0] == 1


def test_writing_into_a_received_array_changes_only_that(cluster: RayCluster) -> None:
    ref = hop.put(np.zeros(LARGE, np.float32))
    first = hop.get(ref)
    first[:] = 7
    assert hop.get(ref).sum() == 0
    assert np.asarray(ray.get(ref)).sum() == 0
    assert first.sum() == 7 * LARGE


def test_writing_into_the_source_after_put_changes_nothing(cluster: RayCluster) -> None:
    sent = np.zeros(LARGE, np.float32)
    ref = hop.put(sent)
    sent[:] = 1
    assert hop.get(ref).sum() == 0


def test_after_free_and_reuse_the_next_object_reads_right(cluster: RayCluster) -> None:
    size = 4 << 20  # 16 MiB: the arena of the cluster holds six
    for number in range(12):
        received = hop.get(hop.put(np.full(size, number, np.float32)), timeout_s=20)
        received[0] = -1  # a private page of a range that is freed next
        assert received[1:].min() == received[1:].max() == number
        del received
