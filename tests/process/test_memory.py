"""Arenas that are too small, on real nodes: which operations wait, fail or go first.

`HOPLITE_RAY_OVERCOMMIT=10000 python -m pytest tests/process/test_memory.py -k overcommit` for
minutes of over-commitment: so many objects of each client.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from hoplite_ray import _native
from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import GetTimeoutError, ObjectLostError, StoreFullError
from hoplite_ray.store import Store, new_id
from hoplite_ray.values import codec
from hoplite_ray.values.layout import short_name
from tests.process.command import stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

ARENA = 32 * MIB  # 28 MiB for puts and gets, 4 for reduces
PATIENT = {"admission_grace_ms": 60_000}  # a machine under load is no reason to refuse
HASTY = {"admission_grace_ms": 200}
OVERCOMMIT = int(os.environ.get("HOPLITE_RAY_OVERCOMMIT", "30"))  # objects of each client


def is_empty(nodes: Nodes) -> None:
    """Return when no arena has a byte in use."""
    gc.collect()
    for rank in range(len(nodes.processes)):
        nodes.wait_for(rank, lambda stats: stats.arena_bytes_used == 0)


@pytest.mark.timeout(OVERCOMMIT + 120)
def test_four_times_as_many_puts_as_fit_are_overcommitted_and_nothing_is_lost(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(3, arena_bytes=ARENA, options=PATIENT)  # the third one only reads
    sockets = [node.socket for node in nodes.processes]
    clients = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.process.overcommit"),
                *(sockets[seed % 2], sockets[2]),
                *(str(OVERCOMMIT), str(seed), str(2 * ARENA), str(6 * MIB)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    printed = [client.communicate()[0] for client in clients]
    assert [client.returncode for client in clients] == [0] * 4
    objects = sum(int(line.split()[0]) for line in printed)
    assert objects == 4 * OVERCOMMIT
    moved = sum(int(line.split()[1]) for line in printed) >> 20
    sys.stdout.write(f"{objects} objects, {moved} MiB\n")
    is_empty(nodes)


def test_a_put_fails_at_once_where_none_is_to_wait(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options={**PATIENT, "when_full": "fail"})
    blocker = nodes.put(0, numbers(24 * MIB))
    with pytest.raises(StoreFullError, match="when_full=fail lets no put wait") as full:
        nodes.put(0, numbers(20 * MIB))
    assert short_name(blocker) in str(full.value)
    nodes[0].delete(blocker, timeout_s=WAIT_S)
    nodes.get(0, nodes.put(0, numbers(20 * MIB)))


def test_waiting_puts_are_served_in_the_order_of_asking(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options=PATIENT)
    blocker = nodes.put(0, numbers(24 * MIB))
    client = _native.Client(nodes.processes[0].socket)
    array = numbers(20 * MIB, seed=1)
    layout, data = codec.encode(array)
    ids = [new_id() for _ in range(4)]
    puts = [client.put(each, 1, layout.to_bytes(), layout.parts, data) for each in ids]
    nodes[0].delete(blocker, timeout_s=WAIT_S)
    for index, (object_id, put) in enumerate(zip(ids, puts, strict=True)):
        assert put.wait(WAIT_S)
        assert not any(later.wait(0) for later in puts[index + 1 :]), "only one fits"
        client.write(put, data)
        assert put.wait(WAIT_S)
        put.result()
        np.testing.assert_array_equal(nodes.get(0, object_id), array)
        gc.collect()
        nodes[0].delete(object_id, timeout_s=WAIT_S)
    client.close()
    is_empty(nodes)


def test_a_refused_put_names_who_holds_the_memory_and_why(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options=HASTY)
    large, mapped = nodes.put(0, numbers(16 * MIB)), nodes.put(0, numbers(8 * MIB))
    view = nodes.get(0, mapped)
    with pytest.raises(StoreFullError) as refused:
        nodes.put(0, numbers(10 * MIB))
    text = str(refused.value)
    assert f"{short_name(large)} {16 * MIB} bytes (put here)" in text
    assert f"{short_name(mapped)} {8 * MIB} bytes (put here, mapped by 1 client)" in text
    assert "larger arena_bytes" in text
    nodes[0].delete(mapped, timeout_s=WAIT_S)
    with pytest.raises(StoreFullError, match="deleted, mapped by 1 client"):
        nodes.put(0, numbers(10 * MIB))
    del view
    gc.collect()
    nodes.put(0, numbers(10 * MIB))


def test_what_can_never_fit_is_refused_at_once_with_both_numbers(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options=PATIENT)
    with pytest.raises(StoreFullError) as refused:
        nodes.put(0, numbers(28 * MIB + 1))
    for number in (28 * MIB + 1, 28 * MIB, ARENA):
        assert str(number) in str(refused.value)
    assert "1/8" in str(refused.value)
    nodes.put(0, numbers(28 * MIB))


def test_a_reduce_goes_through_while_seven_eighths_are_taken(cluster: MakeNodes) -> None:
    options = {**PATIENT, "credit_bytes": 1 << 16, "block_bytes_max": 1 << 14}
    nodes = cluster(2, arena_bytes=ARENA, options=options)
    arrays = [np.full(1 << 18, value, np.float32) for value in (1.0, 2.0)]
    sources = [nodes.put(1, array) for array in arrays]
    full = nodes.put(1, numbers(26 * MIB))
    target = new_id()
    nodes[0].reduce(target, sources, timeout_s=WAIT_S)
    np.testing.assert_array_equal(nodes.get(0, target), arrays[0] + arrays[1])
    gc.collect()
    for each in (*sources, full, target):
        nodes[0].delete(each, timeout_s=WAIT_S)
    is_empty(nodes)


def test_copies_are_evicted_longest_idle_first_and_orphans_before_all(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=ARENA, options=PATIENT)
    ids = [nodes.put(0, numbers(8 * MIB, seed)) for seed in range(3)]
    for each in (ids[0], ids[1], ids[2], ids[0]):  # ids[1] is the longest idle then
        nodes.get(1, each)
        gc.collect()
        nodes.wait_for(1, lambda stats: stats.arena_bytes_pinned == 0)
    nodes.client(1).begin_orphan(ids[0]).result(WAIT_S)
    nodes.wait_for(1, lambda stats: stats.arena_bytes_orphaned == 8 * MIB)
    first = nodes.put(1, numbers(8 * MIB, 7))
    assert held(nodes, 1) == {ids[1], ids[2], first}
    second = nodes.put(1, numbers(8 * MIB, 8))
    assert held(nodes, 1) == {ids[2], first, second}
    np.testing.assert_array_equal(nodes.get(1, ids[1]), numbers(8 * MIB, 1))


def test_what_is_read_or_sent_is_not_evicted(cluster: MakeNodes) -> None:
    slow = {"block_bytes_max": 8192, "credit_blocks_min": 1, "credit_bytes": 8192}
    nodes = cluster(3, arena_bytes=ARENA, options={**PATIENT, **slow})
    read, sent = nodes.put(0, numbers(8 * MIB, 1)), nodes.put(0, numbers(8 * MIB, 2))
    view = nodes.get(1, read)
    nodes.get(1, sent)
    gc.collect()
    nodes.wait_for(1, lambda stats: stats.arena_bytes_pinned == 8 * MIB)
    nodes.kill(0)  # node 1 has the last copies, and may evict unused ones
    nodes.view(2, size=2)
    pending = nodes.client(2).begin_get(sent, exists=True)
    nodes.wait_for(2, lambda stats: stats.blocks_received > 10)
    nodes.put(1, numbers(20 * MIB, 3))  # beside one of the two
    np.testing.assert_array_equal(pending.result(WAIT_S).value, numbers(8 * MIB, 2))
    np.testing.assert_array_equal(view, numbers(8 * MIB, 1))


def held(nodes: Nodes, rank: int) -> set[bytes]:
    """Ids of the objects that a node has whole."""
    node = nodes.processes[rank]

    async def ask(calls: ControlClient) -> set[bytes]:
        listed = await calls.objects(node.control, limit=100)
        return {bytes(each.object_id) for each in listed if each.state == "whole"}

    return nodes.call(rank, ask)


def test_an_orphan_whose_memory_was_needed_says_so(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options=PATIENT)
    object_id = nodes.put(0, numbers(16 * MIB))
    nodes.client(0).begin_orphan(object_id).result(WAIT_S)
    nodes.wait_for(0, lambda stats: stats.arena_bytes_orphaned == 16 * MIB)
    np.testing.assert_array_equal(nodes.get(0, object_id), numbers(16 * MIB))
    gc.collect()
    other = nodes.put(0, numbers(16 * MIB, 2))
    with pytest.raises(ObjectLostError, match="owner had died and its memory was needed"):
        nodes.client(0).begin_get(object_id, exists=True).result(WAIT_S)
    nodes[0].delete(other, timeout_s=WAIT_S)
    is_empty(nodes)


WRITER = """
import sys
from hoplite_ray import _native
from hoplite_ray.values import codec
import numpy as np
client = _native.Client(sys.argv[1])
layout, data = codec.encode(np.zeros(20 << 20, np.uint8))
put = client.put(bytes(28), 1, layout.to_bytes(), layout.parts, data)
put.wait(60)
print("reserved", flush=True)
sys.stdin.read()
"""


def test_a_client_killed_in_the_middle_of_a_put_frees_its_range(cluster: MakeNodes) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options=PATIENT)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, nodes.processes[0].socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "reserved\n"
    assert nodes.stats(0).arena_bytes_used == 20 * MIB
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=WAIT_S)
    nodes.put(0, numbers(20 * MIB))


def test_a_drained_node_is_killed_and_nothing_is_lost(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    arrays = [numbers(size, size) for size in (0, 100, 5 * MIB, 20 * MIB)]
    ids = [nodes.put(0, array) for array in arrays]
    node = nodes.processes[0]

    async def drain(calls: ControlClient) -> None:
        reply = await calls.drain(node.control, nodes.key(0), timeout_s=WAIT_S)
        assert reply.drained, reply

    nodes.call(0, drain)
    nodes.kill(0)
    for object_id, array in zip(ids, arrays, strict=True):
        np.testing.assert_array_equal(nodes.get(1, object_id), array)
        np.testing.assert_array_equal(nodes.get(2, object_id), array)


def test_an_answer_that_comes_after_its_timeout_pins_nothing(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    late = nodes.put(0, numbers(4 * MIB))
    with Store.attach(nodes.processes[0].socket) as reader:
        with stopped(nodes.processes[0]), pytest.raises(GetTimeoutError):
            reader.get(late, timeout_s=0.2)
        nodes.wait_for(0, lambda stats: stats.arena_bytes_pinned > 0)
        with pytest.raises(GetTimeoutError):
            reader.get(new_id(), timeout_s=1.0)  # hears of the first one as well
        nodes[0].delete(late)
        is_empty(nodes)
