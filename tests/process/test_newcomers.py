"""A node joins others that hold many objects, while one of them does not hear of it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from holding import held

from hoplite_ray.pending import results
from hoplite_ray.store import new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

OBJECTS, TIMES = 100_000, 4
AT_ONCE = 1000
SILENT_TIMES = 6
HELD_S = 3.0
PARKED_MAX = 4096  # of one peer: kParkedMessagesMax


def put_many(nodes: Nodes, rank: int, count: int) -> list[bytes]:
    """Put as many objects of 4 KiB; the values of each are its number."""
    ids = [new_id() for _ in range(count)]
    for at in range(0, count, AT_ONCE):
        some = enumerate(ids[at : at + AT_ONCE], at)
        results(
            [nodes[rank].begin_put(each, np.full(512, number)) for number, each in some], WAIT_S
        )
    return ids


def has_all(nodes: Nodes, rank: int, ids: list[bytes]) -> None:
    """Get all of them on one node."""
    for at in range(0, len(ids), AT_ONCE):
        values = nodes[rank].gather(ids[at : at + AT_ONCE], timeout_s=WAIT_S)
        assert [value[-1].item() for value in values] == list(range(at, at + len(values)))


def counter(nodes: Nodes, rank: int, name: str) -> int:
    return nodes.counters(rank)[name]


def wait_for_silence(nodes: Nodes, rank: int) -> None:
    """Wait until a node has said all that a change of the view makes it say.

    A busy machine may give it no time for half a second, so it has to be silent several times.
    """
    said, silent = counter(nodes, rank, "link_frames_sent"), 0
    while silent < SILENT_TIMES:
        time.sleep(0.5)
        before, said = said, counter(nodes, rank, "link_frames_sent")
        silent = silent + 1 if said - before < AT_ONCE else 0


@pytest.mark.slow  # ParkedEngine's tests have every message of it
@pytest.mark.timeout(3600)
def test_a_newcomer_loses_nothing_while_a_member_does_not_hear_of_it(cluster: MakeNodes) -> None:
    # Views come by a node's control thread. While it is held, the node's peers, which have the
    # newer view, tell it of all their objects that it is the home of: more than it keeps. The
    # other nodes have no room for copies of what they are the homes of.
    nodes = cluster(1, arena_bytes=1024 * MIB)
    for _ in range(2):
        nodes.add(arena_bytes=8 * MIB)
    nodes.meet()
    ids = put_many(nodes, 0, OBJECTS)
    for _ in range(TIMES):
        wait_for_silence(nodes, 0)  # else its words about the last view count as those below
        parked = counter(nodes, 1, "messages_parked")
        told = counter(nodes, 0, "link_frames_sent") + OBJECTS // 2
        with held(nodes.processes[1].process.pid):  # its first thread, which also has the counters
            nodes.add(arena_bytes=8 * MIB)
            while counter(nodes, 0, "link_frames_sent") < told:
                time.sleep(0.1)
            time.sleep(HELD_S)
        newcomer = len(nodes.stores) - 1
        has_all(nodes, newcomer, ids)
        has_all(nodes, 1, ids)
        assert counter(nodes, 1, "messages_parked") > parked + PARKED_MAX
        nodes.kill(newcomer)
        nodes.meet()
