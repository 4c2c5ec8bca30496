"""Put on one node, get on all."""

from __future__ import annotations

import asyncio
import gc
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import (
    DuplicateObjectError,
    GetTimeoutError,
    InvalidArgumentError,
    NodeLostError,
    ObjectLostError,
    StoreFullError,
    WrongTypeError,
)
from hoplite_ray.store import Store, new_id
from hoplite_ray.values.codec import describe_empty
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

KIB = 1024
SIZES = [1, 1000, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, 3 * MIB + 7, 20 * MIB]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_was_put_on_one_is_got_on_all(three: Nodes, size_bytes: int) -> None:
    array = numbers(size_bytes)
    object_id = three.put(0, array)
    for rank in (1, 2, 0):
        np.testing.assert_array_equal(three.get(rank, object_id), array)
    three[0].delete(object_id, timeout_s=WAIT_S)


def test_less_is_small_on_slow_links(cluster: MakeNodes) -> None:
    nodes = cluster(3, options={"link_mbit": 100})
    for size_bytes in [16 * KIB, 16 * KIB + 4, 40 * KIB, 64 * KIB, 64 * KIB + 4]:
        arrays = [np.full(size_bytes // 4, rank + 1, np.float32) for rank in range(3)]
        ids = [nodes.put(rank, array) for rank, array in enumerate(arrays)]
        summed, everywhere = new_id(), new_id()
        nodes[0].reduce(summed, ids, op="sum", timeout_s=WAIT_S)
        nodes[1].all_reduce(everywhere, ids, op="sum", timeout_s=WAIT_S)
        for rank in (1, 2, 0):
            np.testing.assert_array_equal(nodes.get(rank, ids[0]), arrays[0])
            np.testing.assert_array_equal(nodes.get(rank, summed), np.sum(arrays, 0))
            np.testing.assert_array_equal(nodes.get(rank, everywhere), np.sum(arrays, 0))
        for each in (*ids, summed, everywhere):
            nodes[0].delete(each, timeout_s=WAIT_S)
    for rank in range(3):
        nodes.wait_for(rank, lambda stats: stats.arena_bytes_used == stats.objects == 0)


def test_thousands_of_small_objects_at_once_end_no_link(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    arrays = [numbers(60 * KIB, seed) for seed in range(2500)]
    ids = [nodes.put(0, array) for array in arrays]
    readers = [Store.attach(nodes.processes[1].socket) for _ in range(5)]
    lists = [ids[first::5] for first in range(5)]
    with ThreadPoolExecutor(5) as pool:
        found = pool.map(lambda store, some: store.gather(some, timeout_s=WAIT_S), readers, lists)
        for first, values in enumerate(found):
            for got, array in zip(values, arrays[first::5], strict=True):
                np.testing.assert_array_equal(got, array)
    for store in readers:
        store.close()
    nodes.add()  # all is said again
    nodes.meet()
    for object_id, array in list(zip(ids, arrays, strict=True))[::100]:
        np.testing.assert_array_equal(nodes.get(2, object_id), array)
    for rank in range(len(nodes.processes)):
        counters = nodes.counters(rank)
        assert counters["links_down"] == counters["peers_dead"] == 0


@pytest.mark.parametrize("size_bytes", [100, 5 * MIB])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_gets_in_any_order_before_and_after_the_put(
    three: Nodes, size_bytes: int, order: tuple[int, int, int]
) -> None:
    before, origin, after = order
    object_id, array = new_id(), numbers(size_bytes)
    early = [three[rank].begin_get(object_id) for rank in (before, origin)]
    three[origin].put(object_id, array, timeout_s=WAIT_S)
    late = three[after].begin_get(object_id)
    for pending in (late, *early):
        np.testing.assert_array_equal(pending.result(WAIT_S).value, array)
    three[after].delete(object_id, timeout_s=WAIT_S)


def test_every_kind_of_array_arrives_as_it_was(three: Nodes) -> None:
    arrays = [
        np.float32(2.5),
        np.empty((0, 3)),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.zeros(3, [("a", "<i2"), ("b", ">f8")]),
        np.array(["2026-11-20"], "M8[D]"),
        np.arange(100000, dtype=np.float64).reshape(100, 10, 100),
    ]
    for array in arrays:
        received = three.get(1, three.put(0, array))
        assert received.dtype == array.dtype
        np.testing.assert_array_equal(received, array)


def test_many_objects_at_once(three: Nodes) -> None:
    arrays = {new_id(): numbers(1 + 40 * KIB * n, seed=n) for n in range(20)}
    pending = {each: three[2].begin_get(each) for each in arrays}
    for n, (object_id, array) in enumerate(arrays.items()):
        three[n % 2].put(object_id, array, timeout_s=WAIT_S)
    for object_id, array in arrays.items():
        np.testing.assert_array_equal(pending[object_id].result(WAIT_S).value, array)


def test_threads_share_a_store(three: Nodes) -> None:
    def there_and_back(seed: int) -> None:
        array = numbers(1 + seed * 30 * KIB, seed)
        object_id = three.put(seed % 3, array)
        np.testing.assert_array_equal(three.get((seed + 1) % 3, object_id), array)
        three[seed % 3].delete(object_id, timeout_s=WAIT_S)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(there_and_back, seed) for seed in range(40)]:
            done.result()


def test_nodes_with_two_rails(cluster: MakeNodes) -> None:
    nodes = cluster(3, listen=["127.0.0.1:0", "127.0.0.2:0"])
    assert all(len(node.rails) == 2 for node in nodes.processes)
    array = numbers(16 * MIB)
    object_id = nodes.put(0, array)
    for rank in (1, 2):
        np.testing.assert_array_equal(nodes.get(rank, object_id), array)


@pytest.mark.parametrize("size_bytes", [1000, MIB])
def test_writing_into_a_received_array_changes_nobody_elses(three: Nodes, size_bytes: int) -> None:
    array = numbers(size_bytes)
    object_id = three.put(0, array)
    for rank in (0, 1):
        received = three.get(rank, object_id)
        received[:] = 0
        np.testing.assert_array_equal(three.get(rank, object_id), array)
        assert not received.any()
    np.testing.assert_array_equal(three.get(2, object_id), array)


def test_after_free_and_reuse_the_next_object_reads_right(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=32 * MIB)
    for seed in range(4):  # each is more than half of the arena, so its range is used again
        array = numbers(18 * MIB, seed)
        object_id = nodes.put(0, array)
        received = nodes.get(1, object_id)
        received[0] ^= 1
        nodes[0].delete(object_id, timeout_s=WAIT_S)
        np.testing.assert_array_equal(received[1:], array[1:])  # valid until it dies
        del received
        gc.collect()


def test_the_last_view_of_an_array_keeps_its_bytes(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=32 * MIB)
    array = numbers(10 * MIB)
    object_id = nodes.put(0, array)
    tail = nodes.get(1, object_id)[-1000:]
    nodes[0].delete(object_id, timeout_s=WAIT_S)
    nodes.get(1, nodes.put(0, numbers(15 * MIB, seed=1)))
    np.testing.assert_array_equal(tail, array[-1000:])


def test_a_received_array_stays_valid_without_store_and_node(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    array = numbers(MIB)
    received = nodes.get(0, nodes.put(0, array))
    nodes[0].close()
    np.testing.assert_array_equal(received, array)
    nodes.kill(0)
    np.testing.assert_array_equal(received, array)


def test_deleted_means_lost_everywhere(three: Nodes) -> None:
    object_id = three.put(0, numbers(MIB))
    three.get(1, object_id)
    three[2].delete(object_id, timeout_s=WAIT_S)
    for rank in range(3):
        with pytest.raises(ObjectLostError, match=object_id[:4].hex()):
            while True:  # a node that holds a copy hears of the end a little later
                three.client(rank).begin_get(object_id, exists=True).result(WAIT_S)


def test_an_id_is_put_once_unless_it_is_a_later_attempt(three: Nodes) -> None:
    object_id = three.put(0, numbers(MIB))
    with pytest.raises(DuplicateObjectError, match=object_id[:4].hex()):
        three[0].put(object_id, numbers(MIB, seed=1), timeout_s=WAIT_S)
    three[0].delete(object_id, timeout_s=WAIT_S)
    later = numbers(2 * MIB, seed=2)
    three.client(0).begin_put(object_id, later, incarnation=2).result(WAIT_S)
    received = three[1].begin_get(object_id).result(WAIT_S)
    assert received.incarnation == 2
    np.testing.assert_array_equal(received.value, later)


def test_a_get_of_what_nobody_puts_ends_at_its_limit(three: Nodes) -> None:
    object_id = new_id()
    with pytest.raises(GetTimeoutError, match=rf"get of object {object_id[:4].hex()}.*timeout_s"):
        three[0].get(object_id, timeout_s=0.05)
    array = numbers(100)
    three[1].put(object_id, array, timeout_s=WAIT_S)  # the store goes on as before
    np.testing.assert_array_equal(three.get(0, object_id), array)


def test_a_get_that_is_taken_back_ends(three: Nodes) -> None:
    pending = three[0].begin_get(new_id())
    assert not pending.wait(0.01)
    pending.cancel()
    assert pending.wait(WAIT_S)


def test_more_than_the_arena_is_refused(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=8 * MIB)
    with pytest.raises(StoreFullError, match="arena"):
        nodes[0].put(new_id(), numbers(9 * MIB), timeout_s=WAIT_S)
    array = numbers(MIB)
    np.testing.assert_array_equal(nodes.get(0, nodes.put(0, array)), array)


def test_arguments_are_checked_at_the_edge(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="28 bytes"):
        three[0].get(b"short")
    with pytest.raises(InvalidArgumentError, match=r'^value\["step"\] is set; '):
        three[0].put(new_id(), {"step": {3}})


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "5", True])
def test_a_limit_is_a_number_of_seconds(three: Nodes, timeout_s: Any) -> None:
    kind = WrongTypeError if isinstance(timeout_s, str | bool) else InvalidArgumentError
    with pytest.raises(kind, match=r"timeout_s is .*; it takes .*seconds, or None"):
        three[0].get(new_id(), timeout_s=timeout_s)
    with pytest.raises(kind, match=r"timeout_s is .*; it takes .*seconds, or None"):
        three[0].gather([new_id()], timeout_s=timeout_s)
    with pytest.raises(kind, match=r"timeout_s is .*; it takes .*seconds, or None"):
        asyncio.run(three[0].get_async(new_id(), timeout_s=timeout_s))


@pytest.mark.parametrize("size_bytes", [8, MIB])
def test_a_limit_of_0_takes_what_the_node_has_and_nothing_else(
    three: Nodes, size_bytes: int
) -> None:
    array, store = numbers(size_bytes), three[0]
    object_id = new_id()
    store.put(object_id, array, timeout_s=0)
    np.testing.assert_array_equal(store.get(object_id, timeout_s=0), array)
    for value in store.gather([object_id, object_id], timeout_s=0):
        np.testing.assert_array_equal(value, array)
    np.testing.assert_array_equal(asyncio.run(store.get_async(object_id, timeout_s=0)), array)
    (value,) = asyncio.run(store.gather_async([object_id], timeout_s=0))
    np.testing.assert_array_equal(value, array)
    absent = new_id()
    for call in (
        lambda: store.get(absent, timeout_s=0),
        lambda: store.gather([object_id, absent], timeout_s=0),
        lambda: asyncio.run(store.get_async(absent, timeout_s=0)),
        lambda: asyncio.run(store.gather_async([object_id, absent], timeout_s=0)),
        lambda: store.reduce(new_id(), [absent], timeout_s=0),
    ):
        with pytest.raises(GetTimeoutError):
            call()
    store.delete(object_id, timeout_s=0)


@pytest.mark.parametrize("incarnation", [-1, 0, 1 << 32, 1.0, "1", None, True])
def test_an_incarnation_is_a_number_of_32_bits(three: Nodes, incarnation: Any) -> None:
    client, template = three.client(0), describe_empty(1, "float32", "numpy")
    with pytest.raises(InvalidArgumentError, match=r"an incarnation is an int from 1 to .* higher"):
        client.begin_put(new_id(), np.zeros(1), incarnation=incarnation)
    with pytest.raises(InvalidArgumentError, match=r"an incarnation is an int from 1 to .* higher"):
        client.begin_empty(new_id(), template, incarnation=incarnation)
    if incarnation != 0:
        with pytest.raises(InvalidArgumentError, match=r"an incarnation is an int from 0 to "):
            client.begin_delete(new_id(), upto=incarnation)


def test_a_closed_store_says_so(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    nodes[0].close()
    assert not nodes[0].is_alive
    with pytest.raises(NodeLostError):
        nodes[0].get(new_id(), timeout_s=WAIT_S)


def test_nobody_to_attach_to(three: Nodes) -> None:
    with pytest.raises(NodeLostError, match="nowhere"):
        Store.attach(three.processes[0].directory / "nowhere.sock")


def test_a_store_with_nodes_of_its_own() -> None:
    with Store.start(arena_bytes=32 * MIB) as a, Store.start(join=a, arena_bytes=32 * MIB) as b:
        assert a.node_id != b.node_id
        object_id, array = new_id(), numbers(MIB)
        a.put(object_id, array)
        np.testing.assert_array_equal(b.get(object_id, timeout_s=WAIT_S), array)
