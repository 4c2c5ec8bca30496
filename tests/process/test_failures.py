"""Nodes and clients that die or come at bad moments: the right bytes, or a clear error."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import (
    GetTimeoutError,
    HopliteError,
    NodeLostError,
    ObjectLostError,
    StoreFullError,
)
from hoplite_ray.store import Store, new_id
from tests.process.command import go_on, stop, stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

# Small blocks, one at a time: 64 MiB take thousands of round trips. A test that was slower still
# may find them over, which is some 50 ms later.
SLOW = {"block_bytes_max": 8192, "credit_blocks_min": 1, "credit_bytes": 8192}


def is_under_way(nodes: Nodes, rank: int, before: int = 0) -> None:
    """Return once a node has received some blocks, after the `before` of earlier transfers."""
    nodes.wait_for(rank, lambda stats: stats.blocks_received > before + 10)


@pytest.mark.parametrize("io_threads", [0, 2])
def test_the_origin_dies_while_another_holder_lives(cluster: MakeNodes, io_threads: int) -> None:
    rails = ("127.0.0.1:0",) * max(io_threads, 1)  # a connection for blocks for each thread
    nodes = cluster(3, options={**SLOW, "io_threads": io_threads}, listen=rails)
    array = numbers(32 * MIB)
    object_id = nodes.put(0, array)
    nodes.get(1, object_id)
    pending = nodes[2].begin_get(object_id)
    is_under_way(nodes, 2)
    nodes.kill(0)
    np.testing.assert_array_equal(pending.result(WAIT_S).value, array)


def test_a_relay_dies_in_the_middle(cluster: MakeNodes) -> None:
    nodes = cluster(3, options=SLOW)
    array = numbers(32 * MIB)
    while True:
        before = [nodes.stats(rank).blocks_received for rank in (1, 2)]
        object_id = nodes.put(0, array)
        relay = nodes[1].begin_get(object_id)
        is_under_way(nodes, 1, before[0])
        pending = nodes[2].begin_get(object_id)  # fed by node 1, which has a part of it
        is_under_way(nodes, 2, before[1])
        stop(nodes.processes[1])
        if not relay.wait(0.1):  # what it has answered is here
            break
        go_on(nodes.processes[1])  # it was quicker than we were: another one
        relay.result(WAIT_S), pending.result(WAIT_S)
        nodes[0].delete(object_id, timeout_s=WAIT_S)
    nodes.kill(1)
    np.testing.assert_array_equal(pending.result(WAIT_S).value, array)
    with pytest.raises(NodeLostError):
        relay.result(WAIT_S)


def test_a_relay_takes_its_own_get_back(cluster: MakeNodes) -> None:
    nodes = cluster(3, options=SLOW)
    array = numbers(32 * MIB)
    object_id = nodes.put(0, array)
    relay = nodes[1].begin_get(object_id)
    is_under_way(nodes, 1)
    pending = nodes[2].begin_get(object_id)
    relay.cancel()
    np.testing.assert_array_equal(pending.result(WAIT_S).value, array)


def test_the_only_holder_dies_in_the_middle(cluster: MakeNodes) -> None:
    nodes = cluster(2, options=SLOW)
    array = numbers(64 * MIB)
    while True:
        before = nodes.stats(1).blocks_received
        object_id = nodes.put(0, array)
        pending = nodes.client(1).begin_get(object_id, exists=True)
        is_under_way(nodes, 1, before)
        stop(nodes.processes[0])
        received = nodes.stats(1).blocks_received - before
        if received < array.nbytes // SLOW["block_bytes_max"] // 2:
            break
        go_on(nodes.processes[0])  # it was quicker than we were, or nearly: another one
        pending.result(WAIT_S)
        nodes[0].delete(object_id, timeout_s=WAIT_S)
    nodes.kill(0)
    with pytest.raises(ObjectLostError, match=object_id[:4].hex()):
        pending.result(WAIT_S)


def test_a_client_hears_that_its_node_has_died(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    pending = nodes[0].begin_get(new_id())
    nodes.kill(0)
    with pytest.raises(NodeLostError):
        pending.result(WAIT_S)
    assert not nodes[0].is_alive


def test_the_others_go_on_without_the_dead(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    nodes.kill(0)  # the oldest, which kept the view
    view = nodes.view(1, size=2)
    assert [member.node_id for member in view.members] == [nodes[1].node_id, nodes[2].node_id]
    for size_bytes in (100, MIB):
        for _ in range(5):  # of different homes
            array = numbers(size_bytes)
            np.testing.assert_array_equal(nodes.get(2, nodes.put(1, array)), array)


def test_the_home_of_objects_dies_while_gets_wait_for_them(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    kept = {nodes.put(0, array): array for array in map(numbers, (100, MIB) * 5, range(10))}
    awaited: dict[bytes, Any] = {}
    pending = {}
    while nodes.stats(3).directory_entries < 8:  # each id has its home somewhere
        object_id = new_id()
        awaited[object_id] = numbers((100, MIB)[len(awaited) % 2], len(awaited))
        for rank in (1, 2):
            pending[rank, object_id] = nodes[rank].begin_get(object_id)
    nodes.kill(3)
    for object_id, array in awaited.items():  # before, while and after it is replaced
        nodes[0].put(object_id, array, timeout_s=WAIT_S)
    for (_, object_id), get in pending.items():
        np.testing.assert_array_equal(get.result(WAIT_S).value, awaited[object_id])
    for object_id, array in kept.items():  # from the nodes that hold them
        got = nodes.client(2).begin_get(object_id, exists=True).result(WAIT_S).value
        np.testing.assert_array_equal(got, array)


def test_nodes_join_while_objects_move(cluster: MakeNodes) -> None:
    nodes = cluster(2, options=SLOW)
    arrays = {new_id(): numbers(16 * MIB, seed) for seed in range(2)}
    pending = [nodes[1].begin_get(object_id) for object_id in arrays]
    for object_id, array in arrays.items():
        nodes[0].put(object_id, array, timeout_s=WAIT_S)
    is_under_way(nodes, 1)
    nodes.add()
    nodes.add()
    for each, array in zip(pending, arrays.values(), strict=True):
        np.testing.assert_array_equal(each.result(WAIT_S).value, array)
    for rank in (2, 3):
        for object_id, array in arrays.items():
            np.testing.assert_array_equal(nodes.get(rank, object_id), array)


def test_many_streams_through_one_node_all_finish(cluster: MakeNodes) -> None:
    nodes = cluster(5, options=SLOW)
    arrays = {new_id(): numbers(2 * MIB, seed) for seed in range(8)}
    outward, inward = list(arrays)[:4], list(arrays)[4:]
    pending = {each: nodes[rank].begin_get(each) for rank, each in enumerate(outward, 1)}
    pending |= {each: nodes[0].begin_get(each) for each in inward}
    for rank, each in enumerate(inward, 1):
        nodes[rank].put(each, arrays[each], timeout_s=WAIT_S)
    for each in outward:
        nodes[0].put(each, arrays[each], timeout_s=WAIT_S)
    for each, array in arrays.items():
        np.testing.assert_array_equal(pending[each].result(WAIT_S).value, array)


def test_reports_of_deaths_that_are_late_or_of_strangers_change_nothing(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(3)
    nodes.kill(2)
    view = nodes.view(0, size=2)
    dead, stranger = (nodes[2].node_id, 1), (77, 1)
    earlier = (nodes[1].node_id, 0)  # a life of a member that there never was

    async def report(calls: ControlClient) -> None:
        for key in (dead, stranger, earlier) * 3:
            for asked in (0, 1):
                control = nodes.processes[asked].control
                await calls.report_death(control, key, reporter=nodes[1 - asked].node_id)
                await calls.report_death(control, key, reporter=stranger[0])

    nodes.call(0, report)
    assert nodes.view(0, size=2) == nodes.view(1, size=2) == view
    array = numbers(MIB)
    np.testing.assert_array_equal(nodes.get(1, nodes.put(0, array)), array)


def test_a_node_leaves_while_it_serves(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    array = numbers(4 * MIB)
    object_id = nodes.put(0, array)
    nodes.get(1, object_id)
    assert nodes.processes[0].stop() == 0
    nodes.view(2, size=2)
    np.testing.assert_array_equal(nodes.get(2, object_id), array)


CLIENT = """
import sys
from hoplite_ray import _native
from hoplite_ray.store import Store
store = Store.attach(sys.argv[1])
object_id = bytes.fromhex(sys.argv[2])
if sys.argv[3] == "get":
    held = store.get(object_id)
else:
    held = store._client._client.put(object_id, 1, b"", [(0, 20 << 20)], [bytearray(20 << 20)])
    assert held.wait(60)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("deed", ["get", "put"])
def test_what_a_killed_client_held_is_free_again(cluster: MakeNodes, deed: str) -> None:
    nodes = cluster(1, arena_bytes=32 * MIB)
    object_id = nodes.put(0, numbers(20 * MIB)) if deed == "get" else new_id()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, nodes.processes[0].socket, object_id.hex(), deed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        if deed == "get":
            nodes[0].delete(object_id, timeout_s=WAIT_S)
        with pytest.raises(HopliteError):  # it holds more than half of the arena
            nodes[0].put(new_id(), numbers(20 * MIB), timeout_s=0.3)
        client.send_signal(signal.SIGKILL)
    nodes.wait_for(0, lambda stats: stats.arena_bytes_used < MIB)
    array = numbers(20 * MIB, seed=1)
    np.testing.assert_array_equal(nodes.get(0, nodes.put(0, array)), array)


FORK = """
import os, sys
import numpy as np
from hoplite_ray.errors import UnusableAfterForkError
from hoplite_ray.store import Store, new_id
store = Store.attach(sys.argv[1])
object_id = new_id()
array = np.arange(1 << 20)
store.put(object_id, array)
received = store.get(object_id)
child = os.fork()
if child == 0:
    assert (received == array).all()
    assert not store.is_alive
    for call in (lambda: store.get(object_id), lambda: store.put(new_id(), array)):
        try:
            call()
        except UnusableAfterForkError as error:
            assert "attach a new one" in str(error)
        else:
            os._exit(3)
    store.close()
    with Store.attach(sys.argv[1]) as own:
        assert (own.get(object_id, timeout_s=60) == array).all()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (store.get(object_id, timeout_s=60) == array).all()
"""


def test_a_fork_says_that_its_store_is_unusable(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    subprocess.run([sys.executable, "-c", FORK, nodes.processes[0].socket], check=True)


INTERRUPTED = """
import sys
from hoplite_ray.store import Store, new_id
store = Store.attach(sys.argv[1])
pending = store.begin_get(new_id())
try:
    print("ready", flush=True)
    pending.result()
except KeyboardInterrupt:
    pending.cancel()  # if it came before result() was called
    assert pending.wait(60)  # it was taken back
    sys.exit(7)
"""


def test_ctrl_c_ends_a_get(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    program = [sys.executable, "-c", INTERRUPTED, nodes.processes[0].socket]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        client.send_signal(signal.SIGINT)
        assert client.wait() == 7


def test_a_full_arena_takes_the_next_object_when_one_goes(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=32 * MIB)
    first = nodes.put(0, numbers(20 * MIB))
    with pytest.raises(StoreFullError):
        nodes[0].put(new_id(), numbers(20 * MIB), timeout_s=WAIT_S)
    nodes[0].delete(first, timeout_s=WAIT_S)
    nodes.put(0, numbers(20 * MIB))


def test_two_clients_of_one_node_see_each_others_objects(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    array = numbers(MIB)
    object_id = nodes.put(0, array)
    with Store.attach(nodes.processes[0].socket) as other:
        np.testing.assert_array_equal(other.get(object_id, timeout_s=WAIT_S), array)


def test_a_limit_that_ends_before_a_node_answers_says_so(cluster: MakeNodes) -> None:
    """Case t2b: a put said that its stopped node had no room, a get that nobody had put it."""
    nodes = cluster(1)
    store, object_id = nodes[0], nodes.put(0, numbers(8))
    unsealed = store.empty(new_id(), MIB)
    with stopped(nodes.processes[0]):
        for late in (
            lambda: store.put(new_id(), numbers(8), timeout_s=0.01),
            lambda: store.put(new_id(), numbers(MIB), timeout_s=0.01),
            lambda: store.empty(new_id(), MIB, timeout_s=0.01),
            lambda: unsealed.seal(timeout_s=0.01),
            lambda: store.get(object_id, timeout_s=0.01),
            lambda: store.gather([object_id], timeout_s=0.01),
            lambda: store.delete(object_id, timeout_s=0.01),
            lambda: store.reduce(new_id(), [object_id], timeout_s=0.01),
        ):
            with pytest.raises(GetTimeoutError, match="its node does not answer"):
                late()
