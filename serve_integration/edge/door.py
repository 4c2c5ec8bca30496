"""Doors: how an edge between two replicas is opened.

A downstream replica listens at its door. An upstream replica connects, shows the door's token and
says the name of a world; both then join that world, whose rendezvous is the connection.
The door says whether its replica is parked, and each edge says later that it is not any more.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from hoplite_ray import WorldError
from hoplite_ray.serve.edge.edge import Edge, Handler
from hoplite_ray.serve.edge.failures import describe_error
from hoplite_ray.serve.edge.managers import manager, node_address, node_id, secrecy
from hoplite_ray.serve.errors import OtherVersionError
from hoplite_ray.worlds.handshake.acceptor import STRANGERS_MAX, Acceptor
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import field, hear, say
from hoplite_ray.worlds.handshake.tls import connected

logger = logging.getLogger("hoplite_ray.serve")

# The version of hellos, of frames, of `Query.fields`, and of the modules whose classes travel. A
# change of any of them raises it.
VERSION = 6

_JOIN_S = 10.0  # for a connection to become an edge


class Door:
    """The listening socket for upstream replicas. A replica that shows the token gets an edge.

    is_parked:  True if this replica is to be chosen only if no other is active.
    """

    def __init__(self, handler: Handler, what: str, *, is_parked: bool = False) -> None:
        """Make a closed door; `what` names the answers of this end in errors."""
        self.is_parked = is_parked
        self.edges: set[Edge] = set()
        self._handler = handler
        self._what = what
        self._reading_lock = asyncio.Lock()
        self._token = secrets.token_hex(16)

    async def open(self) -> dict[str, Any]:
        """Listen; returns what `open_edge` needs, and the Ray node, of types that JSON has.

        Raises:  ControlError if edges are to be encrypted and the certificates can't be used.
        """
        tls = await asyncio.to_thread(secrecy.context)
        address = node_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, 0), family=family, backlog=STRANGERS_MAX)
        self._acceptor = Acceptor(listening, self._greet, lambda: tls)
        return {
            "address": address,
            "node": node_id(),
            "port": listening.getsockname()[1],
            "token": self._token,
            "version": VERSION,
        }

    def activate(self) -> None:
        """Tell all senders, and all later ones, that this replica is not parked any more."""
        self.is_parked = False
        for edge in self.edges:
            edge.announce_active()

    async def close(self) -> None:
        """Stop listening, and close all edges."""
        edges = list(self.edges)
        await self._acceptor.close()
        await asyncio.gather(*(edge.close() for edge in edges))

    async def _greet(self, sock: socket.socket) -> Coroutine[Any, Any, None]:
        hello = await hear(sock)
        token = str(hello.get("token")).encode(errors="replace")
        if not hmac.compare_digest(token, self._token.encode()):
            raise RefusedError("token", "it is no token of this door: the replica has another one")
        try:
            check_version(hello, "a caller")
        except OtherVersionError as error:
            logger.warning("an edge by the door has failed: %s", describe_error(error))
            raise RefusedError("version", str(error)) from error
        name, is_parked = str(hello.get("world")), self.is_parked
        await say(sock, welcome=name, parked=is_parked)
        return self._run_edge(sock, name, knows_parked=is_parked)

    async def _run_edge(self, sock: socket.socket, name: str, *, knows_parked: bool) -> None:
        """Serve an edge until it ends; `knows_parked` is what its caller was told at the door."""
        edge = None
        try:
            async with asyncio.timeout(_JOIN_S):
                rendezvous = EdgeRendezvous(sock, is_upstream=False)
                world = await manager().join_async(
                    name, rank=1, size=2, rendezvous=rendezvous, timeout_s=_JOIN_S
                )
            edge = Edge(world, self._handler, self._what, self._reading_lock)
            self.edges.add(edge)
            if knows_parked and not self.is_parked:
                edge.announce_active()
            sock.close()
            await edge.wait_closed()
            await edge.close()
        except (WorldError, OSError, ValueError, LookupError, TypeError) as error:
            logger.debug("no edge was made by the door: %s", error)
        except Exception as error:  # one line: a traceback for each would fill the log
            logger.warning("an edge by the door has failed: %s", describe_error(error))
        finally:
            if edge is not None:
                self.edges.discard(edge)


class EdgeRendezvous:
    """The rendezvous of one edge's world: upstream sets values, which a connection carries."""

    def __init__(self, sock: socket.socket, *, is_upstream: bool) -> None:
        self._sock = sock
        self._is_upstream = is_upstream
        self._values: dict[str, bytes] = {}

    async def set(self, key: str, value: bytes) -> None:
        """Send a value to the other end."""
        self._values[key] = value
        await say(self._sock, key=key, value=value.hex())

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key. The downstream end waits for it."""
        while key not in self._values and not self._is_upstream:
            frame = await hear(self._sock)
            self._values[field(frame, "key", str)] = bytes.fromhex(field(frame, "value", str))
        return self._values.get(key)


async def open_edge(
    door: dict[str, Any],
    name: str,
    handler: Handler,
    what: str,
    notify_active: Callable[[], None] = lambda: None,
) -> Edge:
    """Open an edge to the replica behind a door.

    name:           of the edge's world; the door hears it.
    what:           names the requests of this end in errors.
    notify_active:  is called if the replica is parked, and says later that it is active.

    Raises:  RefusedError if the door refuses; OtherVersionError if the peer's edges differ;
             OSError, TimeoutError or WorldError if no edge can be made.
    """
    check_version(door, "the replica")
    tls = await asyncio.to_thread(secrecy.context)
    async with asyncio.timeout(_JOIN_S):
        with await connected(door["address"], door["port"], tls) as sock:
            await say(sock, token=door["token"], world=name, version=VERSION)
            welcome = await hear(sock)  # or why not, which raises
            rendezvous = EdgeRendezvous(sock, is_upstream=True)
            world = await manager().join_async(
                name, rank=0, size=2, rendezvous=rendezvous, timeout_s=_JOIN_S
            )
    is_parked = bool(welcome.get("parked"))
    return Edge(world, handler, what, is_parked=is_parked, notify_active=notify_active)


def check_version(hello: Mapping[str, Any], peer: str) -> None:
    """Raise OtherVersionError unless the peer's edges are of this process's version."""
    if (version := hello.get("version")) != VERSION:
        raise OtherVersionError(
            f"{peer} has version {version} of edges, and this process {VERSION}: an update of "
            "hoplite_ray is under way; they call each other once both are of one version"
        )
