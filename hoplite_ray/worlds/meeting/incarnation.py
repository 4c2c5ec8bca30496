"""One incarnation of a world at one member: an attempt at an epoch, and the epoch that begins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from hoplite_ray._native import WorldEdges, WorldPort
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import field, hear, say
from hoplite_ray.worlds.handshake.tls import tls_of
from hoplite_ray.worlds.meeting.members import Member, Record


class Wire:
    """A proven connection that will be an edge, and its shared memory, if any.

    The end of its context closes what no edge has taken.
    """

    def __init__(self, sock: socket.socket, watch: int, memory: int, *, is_first: bool) -> None:
        self.sock = sock
        self.watch = watch
        self.memory = memory
        self.is_first = is_first

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        if self.memory >= 0:
            os.close(self.memory)

    def become_edge(self, edges: WorldEdges, rank: int) -> None:
        """Give the connection to the native core, as the edge to a rank."""
        memory, self.memory = self.memory, -1
        edges.add_edge(
            rank,
            self.watch,
            self.sock.detach(),
            memory=memory,
            is_first=self.is_first,
            tls=tls_of(self.sock),
        )


class Incarnation:
    """One incarnation at this member: its edges once all members are known, and what to release.

    Only the event loop of meetings uses it. `exits` has what `close` releases.
    """

    def __init__(self, record: Record, rank: int, transport: str) -> None:
        self.id = record.incarnation
        self.name = record.name
        self.token = record.token
        self.rank = rank
        self.transport = transport
        self.epoch = record.epoch
        self.gathering: Gathering | None = None  # at rank 0; None elsewhere
        self.is_open = asyncio.Event()
        self.exits = contextlib.ExitStack()
        self.abilities: dict[int, Ability] = {}  # of all members, once it is open
        self.machines: set[str] = set()  # of all members, once it is open
        self._edges: WorldEdges | None = None
        self.others: dict[int, Member] = {}
        self._missing: set[int] = set()
        self._is_complete = asyncio.Event()

    def __str__(self) -> str:
        return f"world {self.name!r}"

    @property
    def edges(self) -> WorldEdges:
        """The native core's edges. REQUIRES: `open` was called."""
        assert self._edges is not None
        return self._edges

    def open(self, port: WorldPort, epoch: int, members: Mapping[int, Member]) -> None:
        """Take in the table of members: edges may come."""
        self.epoch = epoch
        self.abilities = {rank: member.ability for rank, member in members.items()}
        self.machines = {member.machine for member in members.values()}
        self.others = {rank: member for rank, member in members.items() if rank != self.rank}
        self._missing = {rank for rank in self.others if rank > 0}
        self._edges = port.open_world(self.name, epoch, self.rank, len(members))
        self.exits.callback(self._edges.close)
        self._note_missing()
        self.is_open.set()

    def members_to_dial(self) -> list[Member]:
        """Return the members to dial: ranks 1 to below this one. Higher ranks dial this one."""
        return [member for rank, member in self.others.items() if 0 < rank < self.rank]

    def expect(self, rank: int, peer: str, transport: str) -> None:
        """Raise RefusedError unless an edge of that rank, process and transport is due."""
        member = self.others.get(rank)
        if member is None or member.uuid != peer or rank not in self._missing or rank < self.rank:
            raise RefusedError("stale", f"no edge of rank {rank} is due here")
        self.check_transport(rank, transport)

    def check_transport(self, rank: int, transport: str) -> None:
        """Raise RefusedError unless this member takes the transport that a rank offers."""
        if self.transport not in ("auto", transport):
            raise RefusedError(
                "transport",
                f"rank {self.rank} takes {self.transport} only, and rank {rank} offers {transport}",
            )

    def add_edge(self, rank: int, wire: Wire) -> None:
        """Make a connection the edge to a rank."""
        wire.become_edge(self.edges, rank)
        self._missing.discard(rank)
        self._note_missing()

    async def wait_until_complete(self) -> None:
        """Return when all edges are there, except the one to rank 0."""
        await self._is_complete.wait()

    def close(self) -> None:
        """Release all that the incarnation has."""
        self._missing.clear()
        self.exits.close()

    def _note_missing(self) -> None:
        if not self._missing:
            self._is_complete.set()


class Gathering:
    """The members that have come to rank 0, and the steps that rank 0 leads them through.

    A member's connection becomes its edge once every member has all its edges.
    """

    def __init__(self, leader: Member, size: int) -> None:
        self.members = {0: leader}
        self.epochs_seen: dict[int, int] = {}
        self._size = size
        self._met: set[int] = set()
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._table: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._begins: asyncio.Future[None] = loop.create_future()
        self._has_lost = False

    @property
    def is_pair(self) -> bool:
        """True for a world of two: the table lets rank 1 begin, because it has all its edges."""
        return self._size == 2

    def missing(self) -> list[int]:
        """Return the ranks that have not come."""
        return [rank for rank in range(self._size) if rank not in self.members]

    async def wait_until_full(self) -> None:
        """Return when all members have come."""
        while self.missing():
            self._changed.clear()
            await self._changed.wait()

    def tell(self, epoch: int) -> None:
        """Send all members the table of members."""
        members = [self.members[rank].fields() for rank in range(self._size)]
        self._table.set_result({"members": members, "epoch": epoch})

    async def wait_until_met(self) -> None:
        """Return when all members have reported that they have all their edges.

        Raises:  ConnectionError if a member goes away before.
        """
        while len(self._met) < self._size - 1 and not self._has_lost:
            self._changed.clear()
            await self._changed.wait()
        if self._has_lost:
            raise ConnectionResetError("a member has gone away while all met")

    def begin(self) -> None:
        """Let all members begin."""
        self._begins.set_result(None)

    def end(self) -> None:
        """Give the incarnation up: members that wait here get an error."""
        for future in (self._table, self._begins):
            future.cancel()

    def check(self, rank: int, hello: dict[str, Any]) -> Member:
        """Return the member that has come with this hello.

        Raises:  RefusedError with the reason if the member does not belong here.
        """
        size = field(hello, "size", int)
        member = Member.parse(field(hello, "who", dict))
        if self._table.done():
            raise RefusedError("stale", "all members of that incarnation have come")
        if size != self._size:
            raise RefusedError(
                "size", f"rank 0 makes it of {self._size} members, and rank {rank} says {size}"
            )
        if not 0 < rank < self._size or member.rank != rank:
            raise RefusedError("nonsense", f"rank {rank} is not one of {self._size}")
        if rank in self.members:
            raise RefusedError("taken", f"rank {rank} is taken by another process")
        return member

    async def seat(self, sock: socket.socket, member: Member, epoch_seen: int) -> None:
        """Take a member in, send it the table, and return when all members begin.

        Raises:  ConnectionError if the member goes away, or the incarnation was given up.
        """
        rank = member.rank
        self.members[rank] = member
        self.epochs_seen[rank] = epoch_seen
        self._changed.set()
        heard = asyncio.ensure_future(hear(sock))
        try:
            await _wait_unless(heard, self._table)
            if self.is_pair:  # the bytes after the table are the edge's
                await _cancel(heard)
                await say(sock, **self._table.result())
                self._note_met(rank)
                await _wait_unless(None, self._begins)
                return
            await say(sock, **self._table.result())
            await _wait_unless(
                self._begins, heard
            )  # `_begins` ends early only if the incarnation is given up
            heard.result()
            self._note_met(rank)
            heard = asyncio.ensure_future(hear(sock))  # only the end of the connection comes now
            await _wait_unless(heard, self._begins)
        finally:
            await _cancel(heard)
            self._leave(rank)

    def _note_met(self, rank: int) -> None:
        self._met.add(rank)
        self._changed.set()

    def _leave(self, rank: int) -> None:
        if not self._table.done():
            del self.members[rank]
        elif not self._begins.done():
            self._has_lost = True
        self._changed.set()


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _wait_unless(other: asyncio.Future[Any] | None, wanted: asyncio.Future[Any]) -> None:
    """Wait for `wanted`.

    Raises:  ConnectionError if `other` ends first: a member has gone away, or the incarnation was
             given up.
    """
    both = {wanted} if other is None else {other, wanted}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not wanted.done() or wanted.cancelled():
        raise ConnectionAbortedError("an incarnation of a world was given up while it was joined")
