"""Killed, stopped, busy and gone: real processes, told apart by the liveness threads of others."""

from __future__ import annotations

import os

import numpy as np
from holding import held, reactor_of, stopped, threads_of

from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.process.test_failures import SLOW, is_under_way

QUICK = {"liveness_suspect_ms": 300, "liveness_dead_ms": 600}
PATIENT = {"liveness_suspect_ms": 300, "liveness_dead_ms": 3_600_000}


def are_watched(nodes: Nodes, *ranks: int) -> None:
    """Return once each of these nodes has its three connections to each other node."""
    others = len(nodes.processes) - 1
    for rank in ranks:
        nodes.counters(rank, lambda counters: counters["link_handshakes"] >= 3 * others)


def pid_of(nodes: Nodes, rank: int) -> int:
    """The process of a node."""
    return nodes.processes[rank].process.pid


def test_a_killed_node_is_dead_at_once(cluster: MakeNodes) -> None:
    nodes = cluster(3, options=PATIENT)
    are_watched(nodes, 0, 1)
    nodes.kill(2)
    for rank in (0, 1):
        counters = nodes.counters(rank, lambda counters: counters["peers_dead"] == 1)
        assert counters["peers_frozen"] == counters["peers_unreachable"] == 0
    log = (nodes.processes[0].directory / "node.log").read_text()
    dead = f"node {nodes[2].node_id:x} of incarnation 1 is dead: "
    # Both are true, and on busy cores either is found first.
    assert (
        dead + "its process has ended" in log or dead + "no process listens there any more" in log
    )


def test_a_node_that_leaves_is_not_dead(cluster: MakeNodes) -> None:
    nodes = cluster(3)
    are_watched(nodes, 0, 1)
    nodes.processes[2].stop()
    nodes.view(0, size=2)
    assert nodes.counters(0, lambda counters: counters["members"] == 2)["peers_dead"] == 0


def test_a_node_that_is_stopped_for_a_while_loses_nothing(cluster: MakeNodes) -> None:
    nodes = cluster(2, options={**SLOW, **PATIENT})
    are_watched(nodes, 0)
    array = numbers(16 * MIB)
    pending = nodes[0].begin_get(nodes.put(1, array))
    is_under_way(nodes, 0)
    before = nodes.counters(0, lambda counters: True)["peers_suspected"]  # on busy cores
    with stopped(pid_of(nodes, 1)):
        nodes.counters(0, lambda counters: counters["peers_suspected"] > before)
    np.testing.assert_array_equal(pending.result(WAIT_S).value, array)
    for rank in (0, 1):
        counters = nodes.counters(rank, lambda counters: True)
        assert counters["peers_dead"] == counters["links_down"] == 0


def test_a_node_that_is_stopped_for_long_is_dead_and_joins_again(cluster: MakeNodes) -> None:
    nodes = cluster(3, options=QUICK)
    are_watched(nodes, 0, 1)
    kept = numbers(MIB)
    object_id = nodes.put(0, kept)
    with stopped(pid_of(nodes, 2)):
        nodes.view(0, size=2)
        # The view may have come before a node's own verdict, or before that was published.
        while not any(nodes.counters(rank, lambda _: True)["peers_frozen"] for rank in (0, 1)):
            continue
    view = nodes.view(0, size=3)
    lives = {member.node_id: member.incarnation for member in view.members}
    assert lives[nodes[2].node_id] == 2
    assert lives[nodes[0].node_id] == lives[nodes[1].node_id] == 1  # it accused no peer
    with type(nodes[2]).attach(nodes.processes[2].socket) as again:
        np.testing.assert_array_equal(again.get(object_id, timeout_s=WAIT_S), kept)


def test_a_busy_node_lives_where_a_stopped_one_dies(cluster: MakeNodes) -> None:
    nodes = cluster(3, options={**SLOW, **QUICK})
    are_watched(nodes, 0, 1)
    array = numbers(16 * MIB)
    pending = nodes[0].begin_get(nodes.put(1, array))
    is_under_way(nodes, 0)
    with held(reactor_of(pid_of(nodes, 1))), stopped(pid_of(nodes, 2)):
        nodes.counters(0, lambda counters: counters["peers_frozen"] == 1)
    np.testing.assert_array_equal(pending.result(WAIT_S).value, array)
    assert nodes.counters(0, lambda counters: True)["peers_dead"] == 1


def test_lives_leave_no_thread_and_no_descriptor(cluster: MakeNodes) -> None:
    nodes = cluster(3, options=QUICK)
    pid = pid_of(nodes, 2)

    def held_now() -> tuple[list[str], int]:
        try:
            threads = threads_of(pid)
            liveness = threads["hoplite-live"]
            return sorted(threads), len(os.listdir(f"/proc/{pid}/task/{liveness}/fd"))
        except (KeyError, FileNotFoundError, ProcessLookupError):  # one that has just ended
            return [], 0

    are_watched(nodes, 0, 1, 2)
    while (before := held_now())[1] < 8:  # six, and a connection from each of two peers
        assert before[1] in (0, 6, 7), before
    assert before[1] == 8, before
    for life in (2, 3):
        with stopped(pid_of(nodes, 2)):
            nodes.view(0, size=2)
        assert nodes.view(0, size=3).members[2].incarnation == life
        while held_now() != before:  # the test's limit ends it
            pass
