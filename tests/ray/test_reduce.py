"""reduce: exact results, which sources went in, and what becomes of failing ones."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.gates import Gate
from tests.ray.raycluster import LARGE, RayCluster, cancel


@ray.remote(num_cpus=0)
def filled(value: float, dtype: str = "float32", size: int = LARGE) -> hop.Array:
    return hop.array(np.full(size, value, dtype))


@ray.remote(num_cpus=0)
def fails(text: str = "boom") -> hop.Array:
    raise ValueError(text)


@ray.remote(num_cpus=0)
def returns(value: Any) -> Any:
    return value


@ray.remote(num_cpus=0)
class Never:
    async def ends(self) -> hop.Array:
        await asyncio.Event().wait()
        raise AssertionError


@ray.remote(num_cpus=0)
def late(gate: list[ray.ObjectRef]) -> hop.Array:
    ray.get(gate)
    return hop.array(np.ones(1000, np.float32))


@pytest.mark.parametrize("size", [1, 1000, LARGE])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_the_sum_of_eight_is_exact(cluster: RayCluster, dtype: str, size: int) -> None:
    refs = [
        filled.options(**cluster.on(index % 3)).remote(index, dtype, size) for index in range(8)
    ]
    total = hop.reduce(refs)
    received = hop.get(total, timeout_s=60)
    assert received.dtype == dtype
    np.testing.assert_array_equal(received, np.full(size, 28, dtype))
    assert hop.sources(total) == refs


def test_four_of_eight_go_in_and_are_named(cluster: RayCluster) -> None:
    refs = [filled.options(**cluster.on(index % 3)).remote(1 << index) for index in range(8)]
    total = hop.reduce(refs, count=4)
    received = hop.get(total, timeout_s=60)
    members = hop.sources(total)
    assert len(members) == 4
    assert members == sorted(members, key=refs.index)
    assert received[0] == received[-1] == sum(1 << refs.index(ref) for ref in members)


def test_the_first_that_are_ready_go_in(cluster: RayCluster) -> None:
    never = Never.remote()
    refs = [never.ends.remote(), filled.remote(1), never.ends.remote(), filled.remote(2)]
    total = hop.reduce(refs, count=2)
    assert hop.get(total, timeout_s=60)[0] == 3
    assert hop.sources(total) == [refs[1], refs[3]]


def test_max_is_the_largest_of_each_element(cluster: RayCluster) -> None:
    rows = [np.array([1, 9, 3]), np.array([4, 2, 6]), np.array([7, 8, -1])]
    assert hop.get(hop.reduce([hop.put(row) for row in rows], op="max")).tolist() == [7, 9, 6]


def test_the_same_ref_may_be_a_source_twice(cluster: RayCluster) -> None:
    ref = hop.put(np.full(LARGE, 2, np.float32))
    assert hop.get(hop.reduce([ref, ref]), timeout_s=30)[0] == 4


def test_a_result_is_a_source_and_an_argument(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def first(value: hop.Array, nested: list[ray.ObjectRef]) -> tuple[float, float]:
        return float(np.asarray(value)[0]), float(hop.get(nested[0])[0])

    once = hop.reduce([filled.remote(1), filled.remote(2)])
    twice = hop.reduce([once, filled.remote(3)])
    assert ray.get(first.options(**cluster.on(2)).remote(twice, [once]), timeout=60) == (6, 3)


def test_bare_arrays_are_taken_where_they_are(cluster: RayCluster) -> None:
    large = [returns.options(**cluster.on(node)).remote(np.full(LARGE, 1.0)) for node in range(3)]
    assert hop.get(hop.reduce(large), timeout_s=60).sum() == 3 * LARGE
    small = [returns.remote(np.full(3, 1.0)), ray.put(np.full(3, 2.0))]
    assert hop.get(hop.reduce(small), timeout_s=60).tolist() == [3, 3, 3]


def test_a_source_that_raises_is_skipped(cluster: RayCluster) -> None:
    refs = [fails.remote(), filled.remote(1), returns.remote({"none"}), filled.remote(2)]
    total = hop.reduce(refs, count=2)
    assert hop.get(total, timeout_s=60)[0] == 3
    assert hop.sources(total) == [refs[1], refs[3]]


def test_too_few_left_fails_at_once_with_every_fate(cluster: RayCluster) -> None:
    never = Never.remote()
    refs = [filled.remote(1), fails.remote("no data"), returns.remote({"a"}), never.ends.remote()]
    total = hop.reduce(refs, count=3)
    with pytest.raises(hop.ReduceError, match="needs 3 of 4 sources, only 2 are left") as caught:
        hop.get(total, timeout_s=60)
    assert caught.value.lost == (1, 2)
    fates = caught.value.fates
    said = [fate.split(": ", 1)[1] for fate in fates[1:]]
    assert said[0] == "ValueError: no data"
    assert said[1].startswith("WrongTypeError: source 2 returned set, which can't be put: ")
    assert said[2] == "pending"
    assert fates[0].startswith(f"source 0 ({refs[0].hex()[:12]}..): ")
    assert isinstance(caught.value.__cause__, (ValueError, TypeError))
    with pytest.raises(hop.ReduceError):  # by Ray itself, too
        ray.get(total)


def test_without_a_count_the_first_failure_is_raised_as_by_ray(cluster: RayCluster) -> None:
    with pytest.raises(ValueError, match="no data"):
        hop.get(hop.reduce([filled.remote(1), fails.remote("no data")]), timeout_s=60)
    with pytest.raises(TypeError, match="source 1 returned set") as caught:
        hop.get(hop.reduce([filled.remote(1), returns.remote({"a"})]), timeout_s=60)
    assert not isinstance(caught.value, ray.exceptions.RayTaskError)  # of the steward, that is


def test_a_cancelled_and_a_dead_source_are_failures(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0, max_retries=0)
    def dies() -> None:
        os._exit(1)

    cancelled = Never.remote().ends.remote()
    cancel(cancelled)
    with pytest.raises(hop.ReduceError) as caught:
        hop.get(hop.reduce([cancelled, dies.remote(), filled.remote(1)], count=2), timeout_s=60)
    assert "Cancelled" in caught.value.fates[0]
    assert "WorkerCrashedError" in caught.value.fates[1]


@pytest.mark.parametrize("dtype", ["complex64", "<U3", ">f4"])
def test_other_dtypes_are_refused_by_name(cluster: RayCluster, dtype: str) -> None:
    with pytest.raises(hop.InvalidArgumentError, match=r"source [01]: sum does not take"):
        hop.get(hop.reduce([filled.remote(1, dtype), filled.remote(2, dtype)]), timeout_s=60)


def test_sources_of_another_shape_or_dtype_do_not_fit(cluster: RayCluster) -> None:
    first = hop.put(np.zeros(4))
    with pytest.raises(hop.LayoutMismatchError, match="all sources need the same"):
        hop.get(hop.reduce([first, filled.remote(1)]), timeout_s=60)


def test_a_source_that_was_deleted_is_replaced_or_named(cluster: RayCluster) -> None:
    refs = [filled.remote(value) for value in (1, 2, 4)]
    ray.get(refs)
    hop.delete(refs[0])
    assert hop.get(hop.reduce(refs, count=2), timeout_s=60)[0] == 6
    with pytest.raises(hop.ReduceError, match="all its holders are gone") as caught:
        hop.get(hop.reduce(refs), timeout_s=60)
    assert caught.value.lost == (0,)
    fates = [fate.split(": ", 1)[1] for fate in caught.value.fates]
    assert fates == ["had been ready, then lost", "ready", "ready"]


def test_an_actor_reduces_on_its_own_node(cluster: RayCluster) -> None:
    @ray.remote
    class Parameters:
        def total(self, sources: list[ray.ObjectRef]) -> list[ray.ObjectRef]:
            self.kept = hop.reduce(sources)
            return [self.kept]

    parameters = Parameters.options(**cluster.on(2)).remote()
    refs = [filled.options(**cluster.on(node)).remote(1) for node in range(3)]
    (total,) = ray.get(parameters.total.remote(refs))
    assert hop.get(total, timeout_s=60).sum() == 3 * LARGE
    assert hop.sources(total) == refs


def test_many_reduces_are_pending_at_once(cluster: RayCluster) -> None:
    gate = Gate.remote()
    last = late.remote([gate.passed.remote()])
    totals = [hop.reduce([filled.remote(value, size=1000), last]) for value in range(40)]
    assert hop.wait(totals, timeout_s=0.5) == ([], totals)
    ray.get(gate.open.remote())
    assert [array[0] for array in hop.get(totals, timeout_s=80)] == [*range(1, 41)]


def test_bad_calls_are_refused_at_once(cluster: RayCluster) -> None:
    ref = hop.put(np.zeros(4))
    with pytest.raises(ValueError, match="at least one source"):
        hop.reduce([])
    with pytest.raises(ValueError, match="a reduce of 4097 sources; it takes 4096 at most"):
        hop.all_reduce([ref] * 4097)
    with pytest.raises(ValueError, match="ask for 1 to 1"):
        hop.reduce([ref], count=2)
    with pytest.raises(ValueError, match="op is 'median'; reduce has sum, "):
        hop.reduce([ref], op="median")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source 1 is ndarray; reduce takes refs and Arrays"):
        hop.reduce([ref, np.zeros(4)])  # type: ignore[list-item]


def test_sources_are_those_of_a_reduce_whose_refs_live(cluster: RayCluster) -> None:
    ref = hop.put(np.zeros(4))
    with pytest.raises(ValueError, match="not the result of a reduce"):
        hop.sources(ref)
    total = hop.reduce([filled.remote(1)])
    hop.get(total, timeout_s=60)
    with pytest.raises(hop.HopliteError, match="has dropped its ref"):
        hop.sources(total)


def test_a_cancelled_reduce_ends(cluster: RayCluster) -> None:
    total = hop.reduce([Never.remote().ends.remote()])
    cancel(total)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        hop.get(total, timeout_s=60)
