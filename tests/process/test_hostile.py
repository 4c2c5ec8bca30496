"""Bytes of strangers, broken peers and broken clients at a live node: each costs its sender the
connection, a counter says so, and the node serves on with the descriptors and threads it had."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from hoplite_ray._native import WIRE_VERSION
from hoplite_ray.launch import NodeProcess
from hoplite_ray.store import Store, new_id
from tests.process.nodes import MIB, WAIT_S, Nodes, numbers
from tests.process.wire import (
    ALL,
    ATTACH,
    BLOCK,
    CANCEL,
    CLAIM,
    CREDIT,
    DELETE,
    DONE,
    ERROR,
    FETCHED,
    GET,
    HELLO,
    PROOF,
    REDUCE,
    RELEASE,
    WROTE,
    Peer,
    answer,
    attach,
    dial,
    frame,
    hear,
    is_closed,
    local,
)

POOLS_MAX = 8  # threads by which the pools of gRPC and of the event loop may grow meanwhile


def threads(node: NodeProcess) -> int:
    """How many it has."""
    return len(list(Path(f"/proc/{node.process.pid}/task").iterdir()))


def descriptors(node: NodeProcess) -> int:
    """How many it has open, in whichever thread's table."""
    counts = []
    for task in Path(f"/proc/{node.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            counts.append(len(os.listdir(task / "fd")))
    return max(counts)


def counted(nodes: Nodes, rank: int, name: str, least: int) -> None:
    """Return once a counter is that high."""
    nodes.counters(rank, lambda now: now[name] >= least)


def serves(nodes: Nodes) -> None:
    """Small and large objects still go both ways."""
    for size_bytes in (100, MIB):
        for rank in (0, 1):
            array = numbers(size_bytes, seed=rank)
            object_id = nodes.put(rank, array)
            np.testing.assert_array_equal(nodes.get(1 - rank, object_id), array)
            nodes[rank].delete(object_id, timeout_s=WAIT_S)


@pytest.fixture(scope="module")
def made() -> Iterator[Nodes]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    nodes = Nodes(0)
    try:
        nodes.add()
        nodes.add()
        nodes.view(0, size=2)
        serves(nodes)
        yield nodes
    finally:
        nodes.end()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def pair(made: Nodes) -> Iterator[Nodes]:
    """Two nodes, which every test here must leave alive, serving, and as small as they were."""
    serves(made)
    before = [(threads(node), descriptors(node)) for node in made.processes]
    yield made
    serves(made)
    for node, (had_threads, had_descriptors) in zip(made.processes, before, strict=True):
        assert node.process.poll() is None
        assert threads(node) <= had_threads + POOLS_MAX
        while descriptors(node) > had_descriptors:
            made[0].delete(new_id(), timeout_s=WAIT_S)  # until the kernel and gRPC closed theirs


# ---- the data port ----

STRANGE = {
    "random bytes": random.Random(7).randbytes(4096),
    "a web browser": b"GET / HTTP/1.1\r\nHost: node\r\n\r\n" + bytes(40),
    "a frame of 4 GiB": frame(HELLO, size=0xFFFFFFFF),
    "a body of 16 MiB": frame(CLAIM, size=16 * MIB),
    "another wire version": frame(HELLO, bytes(69), version=1),
    "an unknown type": frame(250),
    "a message before the handshake": frame(CREDIT, struct.pack("<I", 1)),
    "a block before the handshake": frame(BLOCK, bytes(48)),
    "a proof before the hello": frame(PROOF, bytes(32)),
    "a hello of zeros": frame(HELLO, bytes(59)),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_bytes_cost_their_connection(pair: Nodes, what: str) -> None:
    before = pair.counters(0)
    with dial(pair, 0) as stranger:
        stranger.sendall(STRANGE[what])
        assert is_closed(stranger)
    version = what == "another wire version"
    name = "link_versions_refused" if version else "link_handshakes_refused"
    counted(pair, 0, name, before[name] + 1)


@pytest.mark.parametrize("size", [0, 20, 60])
def test_half_a_hello_and_silence_is_closed_in_time(pair: Nodes, size: int) -> None:
    peer = Peer(pair, 0)
    with peer.socket as stranger:
        stranger.sendall(peer.hello[:size])
        assert is_closed(stranger)


def test_wrong_secret_gets_no_further_and_is_said(pair: Nodes) -> None:
    before = pair.counters(0)["link_handshakes_refused"]
    peer = Peer(pair, 0)
    with peer.socket as stranger:
        stranger.sendall(peer.hello)
        welcome = hear(stranger, 40 + 62)
        peer.secret = b"guessed"
        assert welcome[-32:] != peer.mac(b"hoplite welcome", peer.hello, welcome[:-32] + bytes(32))
        stranger.sendall(frame(PROOF, peer.mac(b"hoplite proof", peer.hello, welcome)))
        assert is_closed(stranger)
    counted(pair, 0, "link_handshakes_refused", before + 1)
    log = (pair.processes[0].directory / "node.log").read_text()
    assert "refused: the dialling node has another cluster's secret" in log


def test_proof_of_another_connection_does_not_fit(pair: Nodes) -> None:
    first, second = Peer(pair, 0), Peer(pair, 0)
    with first.socket, second.socket:
        first.socket.sendall(first.hello)
        overheard = hear(first.socket, 40 + 62)
        second.socket.sendall(first.hello)
        hear(second.socket, 40 + 62)
        second.socket.sendall(frame(PROOF, first.mac(b"hoplite proof", first.hello, overheard)))
        assert is_closed(second.socket)


def test_member_that_goes_mad_costs_its_link_and_not_the_node(pair: Nodes) -> None:
    small, large = sorted((0, 1), key=lambda rank: pair.processes[rank].node_id)
    before = pair.counters(large)["link_frames_bad"]
    madness = random.Random(3).randbytes(4096)
    for attempt in range(10, 100, 10):  # lives of the link that the real member has yet to come to
        control = Peer(pair, large, as_node=pair.processes[small], attempt=attempt)
        bulk = Peer(pair, large, as_node=pair.processes[small], attempt=attempt, kind=1)
        with control.socket, bulk.socket, suppress(ConnectionError, AssertionError):
            bulk.meet()
            control.meet(and_then=madness)
            while not is_closed(control.socket):
                continue  # what the node still says to its member
        if pair.counters(large)["link_frames_bad"] > before:
            break  # else the real member was quicker
    counted(pair, large, "link_frames_bad", before + 1)
    serves(pair)  # over the link's next life, which the real member has dialled


def test_resets_by_the_hundred_are_nothing(pair: Nodes) -> None:
    peer = Peer(pair, 0)
    with peer.socket:
        for turn in range(500):
            with dial(pair, 0) as stranger:
                stranger.sendall(peer.hello[: turn % 100])
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# ---- the local socket ----

ILL_MANNERED = {
    "random bytes": random.Random(11).randbytes(4096),
    "a frame between nodes": frame(CREDIT, struct.pack("<I", 1)),
    "a get before attaching": local(GET, bytes(37), request=1),
    "an attach of another version": local(ATTACH, struct.pack("<HQ", WIRE_VERSION, 1)).replace(
        b"L" + struct.pack("<H", WIRE_VERSION), b"L" + struct.pack("<H", WIRE_VERSION + 1), 1
    ),
}
ILL_SPOKEN = {
    "random bytes": random.Random(13).randbytes(4096),
    "a second attach": local(ATTACH, struct.pack("<HQ", WIRE_VERSION, 1)),
    "a get of half an id": local(GET, bytes(14), request=1),
    "a get with a payload": local(GET, bytes(37), request=1, payload=8) + bytes(8),
    "a reply": local(DONE, request=1),
    "a flag of 2": local(GET, bytes(28) + b"\2" + ALL, request=1),
    "an operation that there is not": local(REDUCE, bytes(28) + b"\xff" + bytes(10), request=1),
}


@pytest.mark.parametrize("what", ILL_MANNERED)
def test_strangers_on_the_local_socket_are_closed(pair: Nodes, what: str) -> None:
    before = pair.counters(0)["client_frames_bad"]
    with attach(pair, 0, silent=True) as client:
        client.sendall(ILL_MANNERED[what])
        assert is_closed(client)
    counted(pair, 0, "client_frames_bad", before + 1)


@pytest.mark.parametrize("what", ILL_SPOKEN)
def test_clients_that_say_what_is_no_command_are_closed(pair: Nodes, what: str) -> None:
    before = pair.counters(0)
    with attach(pair, 0) as client:
        client.sendall(ILL_SPOKEN[what])
        assert is_closed(client)
    counted(pair, 0, "client_frames_bad", before["client_frames_bad"] + 1)
    counted(pair, 0, "client_losses", before["client_losses"] + 1)


def test_commands_that_make_no_sense_are_answered_and_harm_nobody(pair: Nodes) -> None:
    array = numbers(100)
    known = pair.put(0, array)
    unknown = new_id()
    meta = bytes(8 + 4 + 4 + 4)
    whole = struct.pack("<QQI", 0, 0, 0) + meta
    outside = struct.pack("<QQI", 64, 65, 0) + meta  # a share that begins behind its sources
    senseless = [
        local(WROTE, known + struct.pack("<IQBII", 1, 1 << 62, 0, 0, 0), request=1),
        local(WROTE, unknown + struct.pack("<IQBII", 1, 0, 0, 0, 0), request=2),
        local(REDUCE, unknown + struct.pack("<BIIBB", 0, 4, 0, 0, 0) + whole, request=3),
        local(
            REDUCE,
            unknown + struct.pack("<BII", 0, *[0xFFFFFFFF] * 2) + bytes(2) + whole,
            request=4,
        ),
        local(REDUCE, known + struct.pack("<BIIBB", 0, 2, 1, 0, 0) + whole, request=5),
        local(REDUCE, unknown + struct.pack("<BIIBB", 0, 2, 1, 0, 0) + outside, request=6),
    ]
    with attach(pair, 0) as client:
        client.sendall(local(RELEASE, known + struct.pack("<I", 1), request=90))
        client.sendall(local(RELEASE, unknown + struct.pack("<I", 7), request=91))
        client.sendall(local(CANCEL, unknown, request=92))
        for request, said in enumerate(senseless, 1):
            client.sendall(said)
            kind, answered, body = answer(client)
            assert (kind, answered) == (ERROR, request), body
        client.sendall(local(DELETE, unknown + struct.pack("<I", 0), request=7))
        assert answer(client)[:2] == (DONE, 7)
        client.sendall(local(GET, known + b"\1" + ALL, request=8))
        kind, request, body = answer(client)
        assert (kind, request, body[-100:]) == (FETCHED, 8, array.tobytes())
    pair[0].delete(known, timeout_s=WAIT_S)


def test_client_that_never_reads_is_not_listened_to(pair: Nodes) -> None:
    array = numbers(60_000)
    known = pair.put(0, array)
    before = pair.counters(0)
    with attach(pair, 0) as client:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):  # the node has stopped reading: its buffer fills
            for request in range(1, 1 << 20):
                client.sendall(local(GET, known + b"\1" + ALL, request=request))
        serves(pair)
        after = pair.counters(0)
        assert after["client_replies"] - before["client_replies"] < 10_000
    counted(pair, 0, "client_losses", before["client_losses"] + 1)
    pair[0].delete(known, timeout_s=WAIT_S)


def test_a_client_that_is_cut_off_keeps_what_it_looks_at(pair: Nodes) -> None:
    array = numbers(MIB)
    pair.counters(0, lambda now: now["arena_bytes_used"] < MIB)  # what others had is gone
    known = pair.put(0, array)
    before = pair.counters(0)
    with attach(pair, 0) as client:
        client.sendall(local(GET, known + b"\1" + ALL, request=1))
        assert answer(client)[:2] == (FETCHED, 1)
        client.sendall(b"no frame" * 3)
        assert is_closed(client)
        counted(pair, 0, "client_losses", before["client_losses"] + 1)
        pair[0].delete(known, timeout_s=WAIT_S)
        known = pair.put(0, array[:100])
        assert pair.counters(0)["arena_bytes_used"] >= MIB
    pair.counters(0, lambda now: now["arena_bytes_used"] < MIB)
    pair[0].delete(known, timeout_s=WAIT_S)


def test_clients_that_die_at_any_byte_leave_nothing(pair: Nodes) -> None:
    whole = local(ATTACH, struct.pack("<HQ", 1, 1)) + local(GET, new_id() + b"\0" + ALL, request=1)
    for size in range(len(whole) + 1):
        with attach(pair, 0, silent=True) as client:
            client.sendall(whole[:size])
    pair.counters(0, lambda now: now["waiters"] == 0 and now["clients"] == 1)


AS_NOBODY = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
os.setgid(65534)
os.setuid(65534)
try:
    client.connect(sys.argv[1])
    print("closed" if client.recv(1) == b"" else "served")
except PermissionError:
    print("no way in")
except ConnectionError:
    print("closed")
"""


def test_other_users_are_refused(pair: Nodes) -> None:
    node = pair.processes[0]
    assert node.directory.stat().st_mode & 0o077 == 0
    if os.geteuid() != 0:
        return  # only root can try the rest
    before = pair.counters(0)["client_refusals"]
    program = [sys.executable, "-c", AS_NOBODY, node.socket]

    def attempt() -> str:
        done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=WAIT_S)
        return done.stdout.strip()

    assert attempt() == "no way in"
    sock = Path(node.socket)
    try:
        node.directory.chmod(0o755)  # as a careless administrator might
        sock.chmod(0o777)
        assert attempt() == "closed"
    finally:
        sock.chmod(0o700)
        node.directory.chmod(0o700)
    counted(pair, 0, "client_refusals", before + 1)


def test_node_without_descriptors_sends_newcomers_away(pair: Nodes) -> None:
    node = pair.processes[0].process.pid
    before = resource.prlimit(node, resource.RLIMIT_NOFILE)
    numbers_open = {int(each.name) for each in Path(f"/proc/{node}/fd").iterdir()}
    free = next(n for n in range(1 << 16) if n not in numbers_open)
    refused = pair.counters(0)["client_refusals"]
    try:
        resource.prlimit(node, resource.RLIMIT_NOFILE, (free, before[1]))
        with ExitStack() as let_in:  # by descriptors that were given back since we looked
            is_sent_away = False
            while not is_sent_away:
                client = let_in.enter_context(attach(pair, 0, silent=True))
                with suppress(ConnectionError):
                    client.sendall(local(ATTACH, struct.pack("<HQ", 1, os.getpid())))
                is_sent_away = is_closed(client)
            with dial(pair, 0) as stranger:
                assert is_closed(stranger)
            array = numbers(MIB)  # attached clients and linked peers are still served
            np.testing.assert_array_equal(pair.get(1, pair.put(0, array)), array)
    finally:
        resource.prlimit(node, resource.RLIMIT_NOFILE, before)
    counted(pair, 0, "client_refusals", refused + 1)
    with Store.attach(pair.processes[0].socket) as store:
        assert store.node_id == pair.processes[0].node_id
