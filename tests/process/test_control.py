"""An operator lists the objects of real nodes, and drains a node before its end."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter

import numpy as np
import pytest

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient, RefusedError, UnreachableError
from hoplite_ray.control.service.administration import ROWS_MAX
from hoplite_ray.errors import ControlError
from hoplite_ray.store import new_id
from tests.process.command import at, hoplite_ray, stopped
from tests.process.nodes import MIB, MakeNodes, Nodes, numbers


def objects(nodes: Nodes, rank: int, limit: int = 1000) -> dict[bytes, pb.Object]:
    """The objects that a node lists."""
    control = nodes.processes[rank].control
    told = nodes.call(rank, lambda calls: calls.objects(control, limit=limit))
    assert [each.size_bytes for each in told] == sorted((e.size_bytes for e in told), reverse=True)
    return {each.object_id: each for each in told}


def test_objects_by_size_with_what_keeps_them(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    large, small, wanted = nodes.put(0, numbers(3 * MIB)), nodes.put(0, numbers(100)), new_id()
    view = nodes.get(1, large)
    waiting = [nodes[1].begin_get(wanted) for _ in range(2)]
    nodes.wait_for(1, lambda stats: stats.waiters == 2)
    here, there = objects(nodes, 0), objects(nodes, 1)
    assert (here[large].size_bytes, here[large].state, here[large].pinned) == (
        3 * MIB,
        "whole",
        True,
    )
    assert (here[small].size_bytes, here[small].state) == (100, "whole")
    assert (there[large].state, there[large].pinned, there[large].mappings) == ("whole", False, 1)
    assert (there[wanted].state, there[wanted].waiters) == ("wanted", 2)
    assert view.nbytes == 3 * MIB
    assert list(objects(nodes, 0, limit=1)) == [large]
    for each in waiting:
        each.cancel()


def test_objects_are_listed_while_they_come_and_go(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    node, stays = nodes.processes[0], nodes.put(0, numbers(2 * MIB))
    listed_often = threading.Event()

    def come_and_go() -> None:
        for seed in itertools.count():
            if seed >= 200 and listed_often.wait(0):  # the first call has to connect before
                return
            nodes[0].delete(nodes.put(0, numbers(MIB, seed)))

    async def list_beside(calls: ControlClient) -> list[list[pb.Object]]:
        churn, seen = asyncio.create_task(asyncio.to_thread(come_and_go)), []
        while not churn.done():
            seen.append(await calls.objects(node.control, limit=10))
            if len(seen) > 10:
                listed_often.set()
        await churn
        return seen

    seen = nodes.call(0, list_beside)
    assert len(seen) > 10
    for listed in seen:
        assert listed[0].object_id == stays
        assert Counter(each.object_id for each in listed).most_common(1)[0][1] == 1


def test_more_objects_than_one_message_takes(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    put = {nodes.put(0, np.full(1, number, np.int64)) for number in range(2500)}
    assert set(objects(nodes, 0, limit=ROWS_MAX)) == put
    assert len(objects(nodes, 0, limit=1999)) == 1999
    with pytest.raises(ControlError, match=f"limit {ROWS_MAX + 1} is out of range"):
        objects(nodes, 0, limit=ROWS_MAX + 1)


def test_objects_of_all_nodes_in_one_list(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    large, small = nodes.put(0, numbers(3 * MIB)), nodes.put(1, numbers(MIB))
    nodes.get(1, large)
    first, second = (f"{node.node_id:x}" for node in nodes.processes)
    ran = hoplite_ray("objects", "--json", *at(nodes.processes[0]))
    assert ran.status == 0
    rows = ran.told["objects"]
    assert [row["object_id"] for row in rows] == [large.hex(), small.hex()]
    assert sorted(rows[0]["whole"]) == sorted([first, second])
    assert (rows[0]["pinned"], rows[1]["pinned"]) == ([first], [second])
    text = hoplite_ray("objects", "--limit", "1", *at(nodes.processes[0])).out.splitlines()
    assert text[0].split()[:3] == ["OBJECT", "LIFE", "SIZE"]
    assert text[1].split()[:5] == [large.hex(), "1", "3.0", "MiB", "2"]
    assert len(text) == 2
    with stopped(nodes.processes[1]):
        partly = hoplite_ray("objects", *at(nodes.processes[0]))
    assert partly.status == 1
    assert f"not asked: node {second}/1" in partly.out


def test_calls_to_a_frozen_node_end_in_time(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    node = nodes.processes[0]
    with stopped(node):
        for call in (
            lambda calls: calls.describe(node.control, timeout_s=0.3),
            lambda calls: calls.objects(node.control, limit=1, timeout_s=0.3),
            lambda calls: calls.view(node.control, timeout_s=0.3),
        ):
            with pytest.raises(UnreachableError, match=f"at {node.control}"):
                nodes.call(0, call)
    assert nodes.call(0, lambda calls: calls.describe(node.control)).pid == node.process.pid


def test_every_call_needs_the_secret(cluster: MakeNodes) -> None:
    control = cluster(1).processes[0].control

    async def ask() -> None:
        calls = ControlClient(b"f" * 32)
        for call in (
            calls.describe(control),
            calls.probe(control, timeout_s=1.0),
            calls.objects(control, limit=1),
            calls.drain(control, (1, 1), timeout_s=1.0),
            calls.view(control),
        ):
            with pytest.raises(RefusedError, match="does not know this cluster's secret"):
                await call
        assert await calls.is_healthy(control)
        await calls.close()

    asyncio.run(ask())
