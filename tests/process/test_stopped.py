"""A node process that is stopped, as by SIGSTOP or in swap: every limit of its clients holds."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.store import Store, new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

MANY = 2000  # commands; the kernel takes some 300 that the node does not read
SHORT_S = 0.001


def states(pid: int) -> set[str]:
    """The kernel's state letters of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {(each / "stat").read_text().rpartition(")")[2].split()[0] for each in tasks}


@contextmanager
def stopped(nodes: Nodes) -> Iterator[None]:
    """The node does nothing in the body."""
    pid = nodes.processes[0].process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        while states(pid) != {"T"}:  # of its threads, one after the other
            pass
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def given_up(store: Store, object_id: bytes, other: bytes) -> None:
    """One call of each kind, whose limit ends; the put is of `other`."""
    with pytest.raises(GetTimeoutError):
        store.get(object_id, timeout_s=SHORT_S)
    with pytest.raises(GetTimeoutError):
        store.put(other, np.ones(7000), timeout_s=SHORT_S)
    with pytest.raises(GetTimeoutError):
        store.empty(new_id(), MIB, timeout_s=SHORT_S)
    with pytest.raises(GetTimeoutError):
        store.delete(new_id(), timeout_s=SHORT_S)


def test_every_call_ends_by_its_limit_and_the_store_goes_on(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    store = nodes[0]
    ids = [nodes.put(0, np.array(index)) for index in range(10)]
    others = [new_id() for _ in range(MANY // 4)]
    large = nodes.put(0, np.zeros(MIB))
    view = nodes.get(0, large)
    with stopped(nodes):
        for each in others:
            given_up(store, ids[0], each)
        with pytest.raises(GetTimeoutError):
            store.gather(ids * MANY, timeout_s=SHORT_S)
        del view  # which gives its pin back
        pending = [store.begin_get(each) for each in ids]
    assert [int(each.result(WAIT_S).value) for each in pending] == list(range(10))
    for each in [*ids, *others, large]:  # some puts were on their way already
        store.delete(each, timeout_s=WAIT_S)
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used == 0)


def test_no_event_loop_waits_for_its_node(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    store = nodes[0]
    object_id = nodes.put(0, np.ones(4))
    running = threading.Event()

    async def many() -> None:
        gets = [asyncio.ensure_future(store.get_async(object_id)) for _ in range(MANY)]
        await asyncio.sleep(0)  # all are begun
        for each in gets[: MANY // 2]:
            each.cancel()
        await asyncio.gather(*gets[: MANY // 2], return_exceptions=True)
        with pytest.raises(GetTimeoutError):
            await store.get_async(object_id, timeout_s=SHORT_S)
        running.set()
        for value in await asyncio.gather(*gets[MANY // 2 :]):
            np.testing.assert_array_equal(value, np.ones(4))

    loop = threading.Thread(target=asyncio.run, args=(many(),), daemon=True)
    with stopped(nodes):
        loop.start()
        assert running.wait(WAIT_S), "the event loop waits for the node"
    loop.join(WAIT_S)
    assert not loop.is_alive()


def test_a_store_is_closed_though_its_node_does_not_read(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    store = Store.attach(nodes.processes[0].socket)
    with stopped(nodes):
        pending = [store.begin_get(new_id()) for _ in range(MANY)]
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(WAIT_S)
        assert not closing.is_alive()
        del pending
    nodes.wait_for(0, lambda stats: stats.waiters == 0)
