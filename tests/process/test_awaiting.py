"""The awaitable twins over real nodes: many at once, taken back, from several event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import (
    GetTimeoutError,
    InvalidArgumentError,
    NodeLostError,
    ObjectLostError,
    RequestCancelledError,
)
from hoplite_ray.pending import results
from hoplite_ray.store import Store, new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

MANY = 3000


def run(awaited: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(awaited, WAIT_S))


def listeners() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "listener" in each.name]


@pytest.mark.parametrize("size_bytes", [100, 3 * MIB])
def test_every_verb_can_be_awaited(three: Nodes, size_bytes: int) -> None:
    async def verbs() -> None:
        array = numbers(size_bytes)
        object_id, other, total = new_id(), new_id(), new_id()
        early = asyncio.ensure_future(three[1].get_async(object_id))
        reduced = asyncio.ensure_future(three[2].reduce_async(total, [object_id, other], op="max"))
        await three[0].put_async(object_id, array)
        np.testing.assert_array_equal(await early, array)
        await three[1].put_async(other, array[::-1])
        assert sorted((await reduced).members) == [0, 1]
        values = await three[0].gather_async([object_id, total, other])
        expected = [array, np.maximum(array, array[::-1]), array[::-1]]
        for value, each in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, each)
        everywhere = await three[0].all_reduce_async(new_id(), [object_id, other], count=2)
        for target in (object_id, other, total, everywhere.target):
            await three.client(0).begin_orphan(target).result_async()
            await three[0].delete_async(target)

    run(verbs())


def test_thousands_of_gets_wait_with_one_thread(three: Nodes) -> None:
    async def many() -> None:
        ids = [new_id() for _ in range(MANY)]
        gets = [asyncio.ensure_future(three[2].get_async(each)) for each in ids]
        await asyncio.sleep(0)
        for index, object_id in enumerate(ids):
            await three[index % 2].put_async(object_id, np.array(index))
        assert [int(value) for value in await asyncio.gather(*gets)] == list(range(MANY))
        await asyncio.gather(*(three[0].delete_async(each) for each in ids))

    run(many())
    assert len(listeners()) <= len(three.stores)


def test_a_cancelled_task_takes_its_get_back(three: Nodes) -> None:
    async def cancelled() -> None:
        pending = three[0].begin_get(new_id())
        task = asyncio.ensure_future(pending.result_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(RequestCancelledError):
            pending.result(WAIT_S)

    run(cancelled())


@pytest.mark.parametrize("moment", ["asked", "written"])
def test_a_cancelled_put_gives_its_memory_back(
    cluster: MakeNodes, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = cluster(1, arena_bytes=32 * MIB)
    array = numbers(20 * MIB)
    real = asyncio.to_thread

    async def cancelled() -> None:
        for _ in range(5):  # more than the arena has, were it not given back
            writing, taken_back = asyncio.Event(), asyncio.Event()

            async def late(
                act: Any,
                *arguments: Any,
                writing: asyncio.Event = writing,
                taken_back: asyncio.Event = taken_back,
            ) -> Any:
                writing.set()
                await taken_back.wait()  # its thread begins only now
                return await real(act, *arguments)

            monkeypatch.setattr(asyncio, "to_thread", late)
            task = asyncio.ensure_future(nodes[0].put_async(new_id(), array))
            await (writing.wait() if moment == "written" else asyncio.sleep(0))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            taken_back.set()

    run(cancelled())
    object_id = nodes.put(0, array)
    np.testing.assert_array_equal(nodes.get(0, object_id), array)


def test_a_limit_ends_an_awaited_get_and_the_store_goes_on(three: Nodes) -> None:
    object_id = new_id()
    with pytest.raises(GetTimeoutError, match=rf"get of object {object_id[:4].hex()}.*timeout_s"):
        run(three[0].get_async(object_id, timeout_s=0.05))
    with pytest.raises(GetTimeoutError, match=r"has not ended after \d+\.\d+ s"):
        run(three[0].gather_async([object_id], timeout_s=0.05))
    run(three[1].put_async(object_id, np.array(7)))
    assert run(three[0].get_async(object_id)) == 7


def test_several_event_loops_await_one_store(three: Nodes) -> None:
    ids = [new_id() for _ in range(4)]
    found: dict[bytes, int] = {}

    def loop(object_id: bytes) -> None:
        found[object_id] = int(run(three[0].get_async(object_id)))

    threads = [threading.Thread(target=loop, args=(each,)) for each in ids]
    for thread in threads:
        thread.start()
    for index, object_id in enumerate(ids):
        three[1].put(object_id, np.array(index))
    for thread in threads:
        thread.join()
    assert [found[each] for each in ids] == [0, 1, 2, 3]


def test_a_loop_that_ended_first_disturbs_nobody(three: Nodes) -> None:
    object_id = new_id()

    async def leaves() -> None:
        three[0].begin_get(object_id).add_end_callback(lambda: None)
        abandoned = asyncio.ensure_future(three[0].get_async(object_id))
        await asyncio.sleep(0)
        abandoned.cancel()  # as asyncio.run does with what is left

    asyncio.run(leaves())
    three[1].put(object_id, np.array(5))
    assert run(three[0].get_async(object_id)) == 5


def test_one_operation_can_be_awaited_and_waited_for(three: Nodes) -> None:
    pending = three[0].begin_get(object_id := new_id())
    ended = threading.Event()
    pending.add_end_callback(ended.set)

    async def put() -> Any:
        task = asyncio.ensure_future(pending.result_async())
        await three[1].put_async(object_id, np.array(3))
        return await task

    assert run(put()).value == 3
    assert ended.wait(WAIT_S)
    pending.add_end_callback(ended.clear)  # it has ended already
    three[0].get(object_id, timeout_s=WAIT_S)


def test_closing_the_store_ends_its_thread_and_what_is_awaited(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    before = len(listeners())

    async def closed() -> None:
        task = asyncio.ensure_future(nodes[0].get_async(new_id()))
        await asyncio.sleep(0)
        assert len(listeners()) == before + 1
        nodes[0].close()
        with pytest.raises(NodeLostError):
            await task

    run(closed())
    assert len(listeners()) == before
    with pytest.raises(NodeLostError, match="this store was closed; attach or start a new one"):
        run(nodes[0].get_async(new_id()))


def test_a_dead_node_ends_what_is_awaited(cluster: MakeNodes) -> None:
    nodes = cluster(1)

    async def killed() -> None:
        late = nodes[0].begin_get(new_id())
        task = asyncio.ensure_future(nodes[0].get_async(new_id()))
        await asyncio.sleep(0)
        await asyncio.to_thread(nodes.kill, 0)
        with pytest.raises(NodeLostError):
            await task
        with pytest.raises(NodeLostError):
            await late.result_async()  # nobody listens any more
        with pytest.raises(NodeLostError):
            await nodes[0].get_async(new_id())

    run(killed())


def test_a_store_that_is_dropped_lets_its_thread_go(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    before = len(listeners())
    store = Store.attach(nodes.processes[0].socket)
    run(store.put_async(new_id(), np.array(1)))
    assert len(listeners()) == before + 1
    del store
    gc.collect()
    assert len(listeners()) == before


def test_a_gather_may_be_larger_than_what_may_wait_for_its_client(three: Nodes) -> None:
    ids = [three.put(0, np.full(60_000, i % 256, np.uint8)) for i in range(1500)]
    for i, value in enumerate(three[0].gather(ids, timeout_s=WAIT_S)):
        assert value.shape == (60_000,) and (value == i % 256).all()
    for each in ids:
        three[0].delete(each, timeout_s=WAIT_S)


def test_gets_that_wait_may_all_be_answered_at_once(three: Nodes) -> None:
    ids, late = [new_id() for _ in range(1500)], np.ones(60_000, np.uint8)
    waiting = [three[0].begin_get(each) for each in ids]
    for each in ids:
        three[1].put(each, late, timeout_s=WAIT_S)
    for received in results(waiting, WAIT_S):
        np.testing.assert_array_equal(received.value, late)
    for each in ids:
        three[1].delete(each, timeout_s=WAIT_S)


def test_requests_of_several_stores_are_not_awaited_together(three: Nodes) -> None:
    pending = [three[rank].begin_get(new_id()) for rank in range(2)]
    with pytest.raises(InvalidArgumentError, match=r"of several stores; .* one store"):
        results(pending, WAIT_S)
    for each in pending:  # taken back
        with pytest.raises(RequestCancelledError):
            each.result(WAIT_S)


def test_what_ends_at_the_very_limit_is_no_time_out(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_id = new_id()
    waiting = three[0].begin_get(object_id)
    looks = []

    def ends_between(pending: object, timeout_s: float) -> int | None:
        looks.append(timeout_s)
        if len(looks) > 1:
            return len(looks)  # none of them has failed
        three[0].put(object_id, np.ones(3, np.uint8), timeout_s=WAIT_S)
        assert waiting.wait(WAIT_S)
        return None

    monkeypatch.setattr(waiting, "wait_all", ends_between)
    assert (results([waiting], 0.0)[0].value == 1).all()
    assert len(looks) == 2


def test_gather_ends_with_the_first_failure(three: Nodes) -> None:
    lost, never = new_id(), new_id()
    pending = [three[0].begin_get(never), three.client(0).begin_get(lost, exists=True)]
    with pytest.raises(ObjectLostError, match=lost[:4].hex()):
        results(pending, WAIT_S)
    with pytest.raises(RequestCancelledError):
        pending[0].result(WAIT_S)
    ids = [three.put(rank, np.array(rank)) for rank in range(3)]
    assert [int(value) for value in three[1].gather(ids, timeout_s=WAIT_S)] == [0, 1, 2]
    three[0].gather(ids, timeout_s=WAIT_S)  # so that they are there
    with pytest.raises(GetTimeoutError, match=rf"{never[:4].hex()}.*after \d+\.\d+ s"):
        three[0].gather([*ids, never], timeout_s=2.0)
    assert three[0].gather([]) == []
