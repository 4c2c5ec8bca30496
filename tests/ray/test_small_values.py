"""Values of at most 64 KiB under Ray: their handles have the bytes, whatever becomes of nodes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.client import steward_on
from hoplite_ray.store import Store, new_id
from tests.ray.gates import Gate
from tests.ray.lifetimes import Canary, await_end, canary
from tests.ray.raycluster import RayCluster, eventually, is_gone
from tests.ray.test_node import is_running

SIZES = [0, 1000, SMALL_BYTES_MAX // 4]
COUNT = SIZES[-1]  # float32 elements of the largest small value


def ones(scale: float = 1, count: int = COUNT) -> Any:
    return np.full(count, scale, np.float32)


@ray.remote(num_cpus=0)
class Process:
    """Makes small values, and reads those of others."""

    def put(self, count: int = COUNT) -> list[ray.ObjectRef]:
        self.refs = [hop.put(ones(1, count))]
        return self.refs

    def array(self) -> hop.Array:
        return hop.array(ones())

    def empty(self) -> hop.Array:
        array = hop.empty(COUNT)
        array[:] = 1
        return array

    def keep(self, *values: Any) -> None:
        self.kept = values

    def sums(self) -> list[float | str]:
        return [self.sum_of(each) for each in self.kept]

    def sum_of(self, value: Any) -> float | str:
        try:
            return float(hop.get(value, timeout_s=30).sum())
        except hop.ObjectLostError as error:
            return str(error)

    def reduce(self, refs: list[ray.ObjectRef]) -> float:
        return float(hop.get(hop.reduce(refs), timeout_s=60)[0])

    def canary(self) -> Canary:
        self.anchor, named = canary()
        return named

    def pid(self) -> int:
        return os.getpid()

    def where(self) -> str:
        """Start the steward of this Ray node, and return the node's id."""
        here = attachment()
        here.begin_steward(None)
        return here.place.ray_node_id

    def fork(self, array: hop.Array) -> str:
        read, write = os.pipe()
        if os.fork() == 0:
            taken = float(array.copy().sum())
            try:
                hop.get(array)
            except Exception as error:
                os.write(write, f"{taken} {type(error).__name__}".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            return said.read()

    def without_node(self) -> list[float]:
        """Kill the node here, and make and read values while none runs."""
        hop.array(ones())
        here = attachment()
        pid = json.loads((here.place.directory / "node.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not is_running(pid) and not here._store.is_alive)
        ref, array, filled = hop.put(ones()), hop.array(ones(2)), self.empty()
        found = [float(each[0]) for each in hop.get([ref, array, filled], timeout_s=0)]
        assert not here._store.is_alive, "something has begun the next node"
        return [*found, float(hop.get(hop.reduce([ref, array]), timeout_s=60)[0])]


@pytest.fixture(scope="module")
def crew(cluster: RayCluster) -> list[Any]:
    """One process on each Ray node, which no test ends."""
    return [Process.options(**cluster.on(node)).remote() for node in range(3)]


def test_a_small_value_is_on_no_node(crew: list[Any]) -> None:
    for count in SIZES:
        put, made = hop.put(ones(1, count)), hop.array(ones(1, count))
        sums = [ray.get([each.sum_of.remote(one) for each in crew]) for one in (put, made)]
        assert sums == [[count] * 3] * 2
        assert [each.sum() for each in hop.get([put, made])] == [count] * 2
        assert not {put.binary(), made._object_id} & set(attachment().journal._owned)
        assert is_gone(put.binary()) and is_gone(made._object_id)
        assert made._anchor is None


@pytest.mark.timeout(60)  # the next node begins
def test_small_values_need_no_node_that_runs(crew: list[Any]) -> None:
    assert ray.get(crew[1].without_node.remote(), timeout=60) == [1, 2, 1, 3]


def test_after_its_makers_death_a_small_value_is_with_those_that_have_read_it(
    cluster: RayCluster, crew: list[Any]
) -> None:
    maker, reader = Process.options(**cluster.on(1)).remote(), crew[2]
    (unread,) = ray.get(maker.put.remote())
    (read,) = ray.get(maker.put.remote())
    results = [maker.array.remote(), maker.empty.remote()]
    ray.get(reader.keep.remote(read, *results, [unread]))
    end = ray.get(maker.canary.remote())
    os.kill(ray.get(maker.pid.remote()), signal.SIGKILL)
    await_end(end)
    *sums, loss = ray.get(reader.sums.remote())
    assert sums == [COUNT] * 3 and "has died" in loss
    assert [each.sum() for each in hop.get(results, timeout_s=30)] == [COUNT] * 2
    for ref in (unread, read):  # the process that has them has not read them
        with pytest.raises(hop.ObjectLostError, match="has died"):
            hop.get(ref, timeout_s=30)


def test_a_task_that_is_executed_again_has_its_own_bytes(crew: list[Any]) -> None:
    @ray.remote(max_retries=2, num_cpus=0)
    def dies_once(other: Any) -> tuple[hop.Array, hop.Array, bytes]:
        large, small = hop.array(np.ones(1 << 16)), hop.array(ones(1 + seams.attempt_number()))
        ray.get(other.keep.remote(small))
        if seams.attempt_number() == 0:
            os._exit(1)
        return large, small, small._object_id

    other = crew[2]
    large, small, object_id = ray.get(dies_once.remote(other))
    assert small._object_id == object_id and small._incarnation == 2
    assert hop.get(small)[0] == 2
    assert ray.get(other.sums.remote()) == [2 * COUNT]
    assert hop.get(hop.reduce([small, hop.put(ones())]), timeout_s=60)[0] == 3
    assert hop.get(large).sum() == 1 << 16


def test_two_nodes_reduce_the_same_small_values(crew: list[Any]) -> None:
    refs = [each.array.remote() for each in crew]
    refs += [hop.put(ones()), *(ref for each in crew for ref in ray.get(each.put.remote()))]
    refs.append(refs[0])  # twice in one reduce
    callers = [each.reduce.remote(refs) for each in crew[:2] for _ in range(3)]
    every = hop.all_reduce(refs)
    shares = hop.reduce_scatter(refs)
    assert ray.get(callers) == [8] * 6
    assert hop.get(every, timeout_s=60).tolist() == [8] * COUNT
    assert np.concatenate(hop.get(shares, timeout_s=60)).tolist() == [8] * COUNT
    assert hop.sources(every) == refs
    (again,) = hop.get([hop.gather(refs)], timeout_s=60)
    assert [each[0] for each in again] == [1] * 8


def test_the_result_of_small_values_is_small(crew: list[Any]) -> None:
    total = hop.reduce([hop.put(ones()), hop.array(ones(2))], deterministic=True)
    assert ray.get(crew[1].sum_of.remote(total)) == 3 * COUNT
    assert is_gone(total.binary())
    hop.delete(total)
    sources = [total, hop.put(ones(3)), crew[0].array.remote()]
    further = hop.reduce(sources, op="max", count=2)
    assert hop.get(further, timeout_s=60).tolist() == [3] * COUNT
    assert set(hop.sources(further)) < set(sources)


def test_a_share_of_large_values_is_reduced_with_small_ones(crew: list[Any]) -> None:
    large = [hop.put(ones(1, 4 * COUNT)) for _ in range(4)]
    share = hop.reduce_scatter(large)[1]
    mixed = hop.reduce([share, hop.put(ones()), hop.array(ones(2))])
    assert hop.get(mixed, timeout_s=60).tolist() == [7] * COUNT


def test_a_lost_share_fails_like_any_source(crew: list[Any]) -> None:
    share = hop.reduce_scatter([hop.put(ones(1, 4 * COUNT)) for _ in range(4)])[1]
    ray.wait([share], timeout=60)
    hop.delete(share)
    with pytest.raises(hop.ObjectLostError):
        hop.get(hop.reduce([share, hop.put(ones())]), timeout_s=60)
    with pytest.raises(hop.ReduceError, match=r"source 0 .*ObjectLostError") as failed:
        hop.get(hop.reduce([share, hop.put(ones()), hop.put(ones())], count=3), timeout_s=60)
    assert failed.value.lost == (0,)
    assert hop.get(hop.reduce([share, hop.put(ones()), hop.put(ones())], count=2))[0] == 2


@pytest.mark.timeout(60)  # Ray starts the steward again
def test_a_reduce_of_small_values_survives_the_steward(crew: list[Any]) -> None:
    gate = Gate.remote()
    steward = steward_on(ray.get(crew[1].where.remote()))
    total = crew[1].reduce.remote([hop.put(ones()), gate.passed.remote(hop.put(ones(2)))])
    assert eventually(lambda: count_pending(steward) == 1)
    pid = ray.get(steward.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    ray.get(gate.open.remote())
    assert ray.get(total) == 3


def count_pending(steward: Any) -> int:
    return int(ray.get(steward.__ray_call__.remote(lambda self: len(self._pending))))


@pytest.mark.timeout(60)  # an admission ends without progress, after 2 s
def test_in_a_full_store_small_values_are_put_and_reduced(cluster: RayCluster) -> None:
    store, filling = Store(attachment().store), [new_id()]
    with pytest.raises(hop.StoreFullError):
        while True:
            store.put(filling[-1], np.zeros(SMALL_BYTES_MAX, np.uint8))
            filling.append(new_id())
    small = [hop.put(ones()), hop.array(ones(2))]
    assert [each[0] for each in hop.get(small, timeout_s=0)] == [1, 2]
    assert hop.get(hop.reduce(small), timeout_s=60)[0] == 3
    for each in filling:
        store.delete(each)


def test_delete_leaves_a_small_value_to_its_handles(crew: list[Any]) -> None:
    ref, array, large = hop.put(ones()), hop.array(ones()), hop.put(np.ones(1 << 16))
    hop.delete([ref, array, large, hop.empty(3)])
    assert [each.sum() for each in hop.get([ref, array])] == [COUNT] * 2
    assert ray.get(crew[1].sum_of.remote(ref)) == COUNT
    with pytest.raises(hop.ObjectLostError):
        hop.get(large)


def test_the_child_of_a_fork_reads_the_bytes_that_it_has(crew: list[Any]) -> None:
    assert ray.get(crew[0].fork.remote(hop.array(ones()))) == (
        f"{float(COUNT)} UnusableAfterForkError"
    )
