"""Messages that are replayed to a live node, over new connections and over its own links, and
with tickets of lives, links, views and minutes that are over. docs/internals/attacks.md."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import METADATA_KEY, NodeClock
from hoplite_ray.control.methods import full_name
from hoplite_ray.errors import ControlError
from tests.process.command import stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.process.wire import (
    BLOCK,
    CREDIT,
    DELETE_THERE,
    PULL_START,
    Peer,
    frame,
    hear,
    is_closed,
)
from tests.signed import clock_of, signed_at

AGAIN = 5  # times
# No node is declared dead while a test has stopped it.
PATIENT = {"liveness_dead_ms": 60_000, "liveness_cut_ms": 60_000}


def counter(nodes: Nodes, rank: int, name: str) -> int:
    return nodes.counters(rank)[name]


def counted(nodes: Nodes, rank: int, name: str, least: int) -> None:
    """Return once a counter is that high; the test's limit ends it else."""
    nodes.counters(rank, lambda now: now[name] >= least)


def serves(nodes: Nodes) -> None:
    """Objects still go both ways."""
    for rank in (0, 1):
        array = numbers(MIB, seed=rank)
        np.testing.assert_array_equal(nodes.get(1 - rank, nodes.put(rank, array)), array)


@contextmanager
def impostor(nodes: Nodes, small: int, large: int) -> Iterator[tuple[Peer, Peer, bytes]]:
    """Links of `small` to `large` that say what a test likes, and what was said to make them."""
    as_node = nodes.processes[small]
    with stopped(as_node):
        life = 10  # of the link, that the real member will yet come to
        control = Peer(nodes, large, as_node=as_node, attempt=life)
        bulk = Peer(nodes, large, as_node=as_node, attempt=life, kind=1)
        with control.socket, bulk.socket:
            bulk.meet()
            said = control.meet()
            hear(control.socket, 40)  # the node takes us for its member
            yield control, bulk, said


def by_id(nodes: Nodes) -> tuple[int, int]:
    """The node that dials, and the node that is dialled."""
    small, large = sorted((0, 1), key=lambda rank: nodes.processes[rank].node_id)
    return small, large


def test_what_was_overheard_of_a_link_opens_no_other_one(cluster: MakeNodes) -> None:
    nodes = cluster(2, options=PATIENT)
    small, large = by_id(nodes)
    kept, array = nodes.put(large, numbers(MIB)), numbers(MIB)
    epoch = nodes.view(large, size=2).epoch
    frames = frame(DELETE_THERE, kept + struct.pack("<I", 1), epoch=epoch)
    with impostor(nodes, small, large) as (control, _, said):
        hello = control.hello
    before = counter(nodes, large, "link_handshakes_refused")
    for waits in (True, False):
        replayed = Peer(nodes, large)
        with replayed.socket:
            replayed.socket.sendall(hello if waits else hello + said + frames)
            hear(replayed.socket, 40 + 62)  # a Welcome with a nonce of its own
            if waits:
                replayed.socket.sendall(said + frames)
            assert is_closed(replayed.socket)
    counted(nodes, large, "link_handshakes_refused", before + 2)
    serves(nodes)
    np.testing.assert_array_equal(nodes.get(large, kept), array)


def test_what_a_member_says_again_and_again_changes_nothing(cluster: MakeNodes) -> None:
    nodes = cluster(2, options=PATIENT)
    small, large = by_id(nodes)
    array = numbers(MIB)
    kept = nodes.put(large, array)
    epoch = nodes.view(large, size=2).epoch
    stale = counter(nodes, large, "messages_stale")
    discarded = counter(nodes, large, "link_blocks_discarded")
    start = kept + struct.pack("<IIHHII?IB?", 1, 0, 1, 0, 0, 4, False, 0, 0, False)
    block = kept + struct.pack("<IIQI", 1, 0, 0, 0)
    with impostor(nodes, small, large) as (control, bulk, _):
        delete = frame(DELETE_THERE, kept + struct.pack("<I", 1), epoch=epoch - 1)
        control.socket.sendall(delete * AGAIN)  # of a view that is over
        control.socket.sendall(frame(PULL_START, start, transfer=1 << 40, epoch=epoch) * AGAIN)
        control.socket.sendall(frame(CREDIT, struct.pack("<I", 1), transfer=1 << 40) * AGAIN)
        control.socket.sendall(frame(CREDIT, struct.pack("<I", 1 << 31), transfer=3) * AGAIN)
        # This node has not asked for them.
        bulk.socket.sendall(frame(BLOCK, block, payload=bytes(100), transfer=1) * AGAIN)
        counted(nodes, large, "messages_stale", stale + AGAIN)
        counted(nodes, large, "link_blocks_discarded", discarded + AGAIN)
        head = hear(bulk.socket, 40 + 48)
        size, offset = struct.unpack("<I", head[12:16])[0], struct.unpack("<Q", head[76:84])[0]
        assert hear(bulk.socket, size) == array[offset : offset + size].tobytes()
    serves(nodes)  # over the link's next life, which the real member has dialled
    np.testing.assert_array_equal(nodes.get(small, kept), array)


def test_tickets_of_lives_and_links_that_are_over_are_refused(
    cluster: MakeNodes, tmp_path: Path
) -> None:
    nodes = cluster(0)
    for rank in (0, 1):
        nodes.add(directory=tmp_path / str(rank))
    nodes.meet()
    small, large = by_id(nodes)
    nodes.kill(small)
    nodes.add(directory=tmp_path / str(small))  # its next life
    nodes.meet()
    old, new = nodes.processes[small], nodes.processes[2]
    assert (new.node_id, new.incarnation) == (old.node_id, old.incarnation + 1)
    np.testing.assert_array_equal(nodes.get(large, nodes.put(2, numbers(MIB))), numbers(MIB))
    for as_node, attempt in ((old, 1), (old, 1000), (new, 0)):
        peer = Peer(nodes, large, as_node=as_node, attempt=attempt)
        before = counter(nodes, large, "link_handshakes_refused")
        with peer.socket:
            peer.meet()  # the secret is right
            assert is_closed(peer.socket)
        counted(nodes, large, "link_handshakes_refused", before + 1)
    said = (nodes.processes[large].directory / "node.log").read_text()
    assert "is an earlier life, which is over" in said
    np.testing.assert_array_equal(nodes.get(2, nodes.put(large, numbers(MIB))), numbers(MIB))


def test_calls_to_others_and_of_other_times_are_refused(cluster: MakeNodes) -> None:
    nodes = cluster(2)
    first, second = nodes.processes
    secret = first.secret
    drain = pb.DrainRequest(
        timeout_ms=1, node_id=first.node_id, incarnation=first.incarnation
    ).SerializeToString()

    async def clock(control: str) -> NodeClock:
        async with grpc.aio.insecure_channel(control) as link:
            return await clock_of(link, secret)

    async def say(control: str, signed: str) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(control) as link:
            call = link.unary_unary(full_name("Drain"))(
                drain, metadata=((METADATA_KEY, signed),), timeout=WAIT_S
            )
            return await call.code()

    of_first = asyncio.run(clock(first.control))
    in_time = signed_at(of_first, secret, "Drain", drain, late_s=0.0)
    for late_s in (70, -70):
        signed = signed_at(of_first, secret, "Drain", drain, late_s=late_s)
        assert asyncio.run(say(first.control, signed)) is grpc.StatusCode.UNAUTHENTICATED
    other = asyncio.run(say(second.control, in_time))  # overheard, and repeated elsewhere
    assert other is grpc.StatusCode.UNAUTHENTICATED
    assert counter(nodes, 0, "draining") == counter(nodes, 1, "draining") == 0
    with pytest.raises(ControlError, match="answers here; look who is there"):
        nodes.call(1, lambda calls: calls.drain(second.control, nodes.key(0), timeout_s=1.0))
    assert asyncio.run(say(first.control, in_time)) is grpc.StatusCode.OK
