"""Which nodes have an object: the one that put it, those that got it, and none."""

from __future__ import annotations

import asyncio

import pytest

from hoplite_ray.errors import InvalidArgumentError, NodeLostError
from hoplite_ray.store import Store, new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers


def holders(store: Store, object_id: bytes) -> dict[int, bool]:
    """Return the nodes that have the object, and whether they have all of it."""
    found = store.locate([object_id], timeout_s=WAIT_S)
    return {each.node_id: each.is_complete for each in found[object_id]}


def test_the_holders_of_objects_are_those_that_put_or_got_them(three: Nodes) -> None:
    first, second, third = (three[rank].node_id for rank in range(3))
    large, small, unknown = three.put(0, numbers(3 * MIB)), three.put(1, numbers(100)), new_id()
    assert holders(three[1], large) == {first: True}
    three.get(2, large)
    found = three[1].locate([large, small, large, unknown], timeout_s=WAIT_S)
    assert list(found) == [large, small, unknown]
    assert {each.node_id for each in found[large]} == {first, third}
    assert second in {each.node_id for each in found[small]}
    assert found[unknown] == []
    [own] = [each for each in found[large] if each.node_id == first]
    assert own.address == three.processes[0].rails[0]
    for each in (large, small):
        three[0].delete(each, timeout_s=WAIT_S)


def test_an_object_that_is_being_written_is_not_complete(three: Nodes) -> None:
    object_id = new_id()
    with three[0].empty(object_id, 3 * MIB, "uint8", timeout_s=WAIT_S):
        assert holders(three[1], object_id) == {three[0].node_id: False}
    assert holders(three[1], object_id) == {three[0].node_id: True}
    three[0].delete(object_id, timeout_s=WAIT_S)


def test_the_awaitable_twin_says_the_same_in_an_event_loop(three: Nodes) -> None:
    object_id = three.put(0, numbers(MIB))

    async def locate() -> None:
        found = await three[1].locate_async([object_id], timeout_s=WAIT_S)
        assert found == three[1].locate([object_id], timeout_s=WAIT_S)
        assert len(found[object_id]) == 1

    asyncio.run(locate())
    three[0].delete(object_id, timeout_s=WAIT_S)


def test_a_dead_member_is_left_out_and_a_dead_node_is_told(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    object_id = nodes.put(0, numbers(MIB))
    nodes.get(1, object_id)
    nodes.kill(1)
    assert holders(nodes[2], object_id) == {nodes[0].node_id: True}
    assert nodes[2].locate([], timeout_s=WAIT_S) == {}
    with pytest.raises(InvalidArgumentError):
        nodes[2].locate([b"too short"])
    nodes[2].close()
    with pytest.raises(NodeLostError):
        nodes[2].locate([object_id])
