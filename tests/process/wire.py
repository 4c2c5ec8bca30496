"""A few lines of docs/internals/wire.md: peers and clients that say what a test likes."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from contextlib import suppress

from hoplite_ray._native import WIRE_VERSION
from hoplite_ray.launch import NodeProcess
from tests.process.nodes import WAIT_S, Nodes

HELLO, PROOF, BLOCK, CLAIM, DELETE_THERE, PULL_START, CREDIT = 1, 3, 16, 32, 33, 46, 47
ATTACH, GET, DELETE, REDUCE, WROTE, RELEASE, CANCEL = 1, 18, 20, 21, 17, 19, 23
FETCHED, DONE, ERROR = 65, 67, 68
ALL = b"\xff" * 8  # a get of all bytes


def frame(
    kind: int,
    body: bytes = b"",
    *,
    version: int = WIRE_VERSION,
    size: int | None = None,
    payload: bytes = b"",
    epoch: int = 0,
    transfer: int = 0,
) -> bytes:
    """A frame between nodes."""
    size = len(body) if size is None else size
    fields = (0x46504F48, version, kind, 0, size, len(payload), epoch, transfer, 0)
    return struct.pack("<IHBBIIQQQ", *fields) + body + payload


def local(kind: int, body: bytes = b"", *, request: int = 0, payload: int = 0) -> bytes:
    """A frame between a client and its node."""
    fields = (0x4C504F48, WIRE_VERSION, kind, 0, request, len(body), payload)
    return struct.pack("<IHBBQII", *fields) + body


class Peer:
    """The dialling side of a handshake, by the book but for what a test changes."""

    def __init__(
        self,
        nodes: Nodes,
        rank: int,
        *,
        as_node: NodeProcess | None = None,
        kind: int = 0,
        attempt: int = 1,
    ) -> None:
        node = nodes.processes[rank]
        self.secret = node.secret
        self.socket = dial(nodes, rank)
        self.node_id = as_node.node_id if as_node else 1
        self.to = node.node_id
        life = as_node.incarnation if as_node else 1
        identity = struct.pack("<QIQI", self.node_id, life, self.to, node.incarnation)
        place = struct.pack("<BBI", kind, 0, attempt)
        self.hello = frame(
            HELLO,
            struct.pack("<HQ", WIRE_VERSION, 0) + identity + place + os.urandom(16),
        )

    def mac(self, label: bytes, *said: bytes) -> bytes:
        """A proof over what was said."""
        pair = struct.pack("<QQ", *sorted((self.node_id, self.to)))
        ticket = hmac.digest(self.secret, b"hoplite ticket" + pair, hashlib.sha256)
        return hmac.digest(ticket, label + b"".join(said), hashlib.sha256)

    def meet(self, and_then: bytes = b"") -> bytes:
        """Say Hello, hear Welcome, say Proof and whatever follows; returns what it said last."""
        self.socket.sendall(self.hello)
        welcome = hear(self.socket, 40 + 62)
        unproven = welcome[:-32] + bytes(32)
        assert welcome[-32:] == self.mac(b"hoplite welcome", self.hello, unproven)
        said = frame(PROOF, self.mac(b"hoplite proof", self.hello, welcome)) + and_then
        self.socket.sendall(said)
        return said


def dial(nodes: Nodes, rank: int) -> socket.socket:
    """A connection to the data port of a node."""
    host, port = nodes.processes[rank].rails[0].rsplit(":", 1)
    return socket.create_connection((host, int(port)), WAIT_S)


def attach(nodes: Nodes, rank: int, *, silent: bool = False) -> socket.socket:
    """A connection to the local socket of a node, attached unless `silent`."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(WAIT_S)
    client.connect(nodes.processes[rank].socket)
    if not silent:
        client.sendall(local(ATTACH, struct.pack("<HQ", WIRE_VERSION, os.getpid())))
        hear(client, 24 + 28)
    return client


def hear(stream: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    heard = b""
    while len(heard) < size:
        more = stream.recv(size - len(heard))
        assert more, f"closed after {len(heard)} of {size} bytes"
        heard += more
    return heard


def answer(client: socket.socket) -> tuple[int, int, bytes]:
    """The next frame from the node: type, request, body and payload."""
    _, _, kind, _, request, body, payload = struct.unpack("<IHBBQII", hear(client, 24))
    return kind, request, hear(client, body + payload)


def is_closed(stream: socket.socket) -> bool:
    """Wait until the other side closes; False if it says something new first."""
    with suppress(ConnectionError):
        return stream.recv(1 << 16) == b""
    return True
