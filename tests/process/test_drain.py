"""A node that is drained may be killed: what only it had is elsewhere by then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import numpy as np

from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import ControlError
from tests.process.command import at, hoplite_ray, stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

SIZES = (100, 5000, 70_000, MIB, 3 * MIB + 17, 20 * MIB)


def put_some(nodes: Nodes, rank: int) -> dict[bytes, int]:
    """Objects of all sizes on one node: id -> seed."""
    return {nodes.put(rank, numbers(size, seed)): seed for seed, size in enumerate(SIZES)}


def test_a_drained_node_may_be_killed_and_nothing_is_lost(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    put = put_some(nodes, 0)
    shared = nodes.put(0, numbers(MIB, 99))
    nodes.get(1, shared)
    ran = hoplite_ray("drain", f"{nodes.processes[0].node_id:x}", *at(nodes.processes[1]))
    assert ran.status == 0, ran
    assert "is drained: it holds nothing that no other node has" in ran.out
    nodes.kill(0)
    nodes.view(1, size=2)
    for object_id, seed in put.items():
        for rank in (1, 2):
            np.testing.assert_array_equal(nodes.get(rank, object_id), numbers(SIZES[seed], seed))
    np.testing.assert_array_equal(nodes.get(2, shared), numbers(MIB, 99))


def test_what_has_no_room_elsewhere_is_named(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    nodes.add(arena_bytes=16 * MIB)
    small, large = nodes.put(0, numbers(MIB)), nodes.put(0, numbers(64 * MIB))
    name = f"{nodes.processes[0].node_id:x}"
    ran = hoplite_ray("drain", name, "--timeout-s", "3", "--json", *at(nodes.processes[0]))
    assert ran.status == 1, ran
    assert ran.told["drained"] is False
    assert ran.told["left"] == [{"object_id": large.hex(), "size_bytes": 64 * MIB}]
    text = hoplite_ray("drain", name, "--timeout-s", "0", *at(nodes.processes[0]))
    assert text.status == 1
    assert f"{large.hex()}  64.0 MiB" in text.out
    assert small.hex() not in text.out


def test_a_node_alone_has_nowhere_to_drain_to(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    object_id = nodes.put(0, numbers(MIB))
    control = nodes.processes[0].control
    reply = nodes.call(0, lambda calls: calls.drain(control, nodes.key(0), timeout_s=0.5))
    assert (reply.drained, reply.sole_copies) == (False, 1)
    assert [each.object_id for each in reply.left] == [object_id]
    nodes.add()  # now there is
    assert nodes.call(0, lambda calls: calls.drain(control, nodes.key(0), timeout_s=WAIT_S)).drained
    ended = nodes.counters(0)  # HopliteDrains fires on the first of the two alone
    assert (ended["sole_copies"], ended["draining"]) == (0, 1)


def test_asking_again_and_hanging_up_change_nothing(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    nodes.put(0, numbers(MIB))
    control = nodes.processes[0].control

    async def hang_up(calls: ControlClient) -> bool:
        asked = asyncio.create_task(calls.drain(control, nodes.key(0), timeout_s=WAIT_S))
        while not (await calls.describe(control)).draining:
            assert not asked.done()
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        return (await calls.describe(control)).draining

    assert nodes.call(0, hang_up)
    nodes.add()
    for _ in range(2):
        assert nodes.call(
            0, lambda calls: calls.drain(control, nodes.key(0), timeout_s=WAIT_S)
        ).drained


def test_what_is_put_on_a_draining_node_moves_too(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    control = nodes.processes[0].control

    async def drain(calls: ControlClient) -> bool:
        return (await calls.drain(control, nodes.key(0), timeout_s=WAIT_S)).drained

    assert nodes.call(0, drain)
    put = put_some(nodes, 0)
    assert nodes.call(0, drain)
    nodes.kill(0)
    for object_id, seed in put.items():
        np.testing.assert_array_equal(nodes.get(1, object_id), numbers(SIZES[seed], seed))


def test_a_node_that_drains_does_so_in_its_next_life(cluster: MakeNodes, tmp_path: Path) -> None:
    nodes = cluster(3)
    first, second, _ = nodes.processes

    async def drain(calls: ControlClient) -> bool:
        return (await calls.drain(second.control, nodes.key(1), timeout_s=WAIT_S)).drained

    async def drains_again(calls: ControlClient) -> bool:
        async for view in calls.watch(first.control, 0):
            for member in view.members:
                if member.key == (second.node_id, 2):
                    await drains(calls, member.control)
                    return True
        return False

    async def drains(calls: ControlClient, address: str) -> None:
        while True:
            with suppress(ControlError):  # "ask again": its own join is still in flight
                told = await calls.describe(address)
                assert told.incarnation == 2
                if told.draining:
                    return
            await asyncio.sleep(0.01)

    assert nodes.call(0, drain)
    with stopped(second):
        nodes.view(0, size=2)
    assert nodes.call(0, drains_again)
