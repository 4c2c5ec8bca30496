"""A manager's end of every connection to other managers: it answers hellos, and makes edges.

A connection begins with a hello, whose kind says what the connection is for:

* "watch": the two processes see each other die by it;
* "edge": it carries a world's messages;
* "join": a member comes to rank 0; the connection is their edge once the world begins;
* "memory": a lender gives slabs to a borrower, and the borrower reports loans that have ended.

Only the event loop of meetings uses this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from hoplite_ray._native import TlsContext, WorldPort
from hoplite_ray.errors import WorldError
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import HANDSHAKE_S, field, hear, say
from hoplite_ray.worlds.handshake.introductions import introduce, welcome
from hoplite_ray.worlds.handshake.tls import take_over
from hoplite_ray.worlds.lending.borrower import Borrower
from hoplite_ray.worlds.lending.lender import Lender
from hoplite_ray.worlds.lending.loans import Loans
from hoplite_ray.worlds.lending.memory import give_memory, take_memory
from hoplite_ray.worlds.meeting.doors import Doors, dial_far, dial_near
from hoplite_ray.worlds.meeting.incarnation import Gathering, Incarnation, Wire
from hoplite_ray.worlds.meeting.members import Member, machine_id
from hoplite_ray.worlds.meeting.watches import Watch, Watches

_WATCHES_TRIED_MAX = 3


class Place:
    """One manager, as other processes reach it. Only the event loop of meetings uses it.

    `incarnations` has those that are being joined, by id; `tls` is None where edges are plain.
    """

    def __init__(self, port: WorldPort, listen: str | None) -> None:
        self.port = port
        self.uuid = uuid.uuid4().hex
        self.machine = machine_id()
        self.watches = Watches(port)
        self.tls: TlsContext | None = None  # the context of connections to other machines
        self.incarnations: dict[str, Incarnation] = {}
        loop = asyncio.get_running_loop()
        self.lender, self.borrower = Lender(loop), Borrower(loop)
        self._open: dict[str, Incarnation] = {}
        self._doors = Doors(self.uuid, listen, self._answer, lambda: self.tls)

    @property
    def trouble(self) -> str:
        """The last connection that could not begin with TLS, in words for an error."""
        return f" ({self._doors.refusal})" if self._doors.refusal else ""

    def open_door(self, address: str) -> None:
        """Listen at an address of this machine, except when the user has named another one.

        Raises:  WorldError if the address is none of this machine.
        """
        self._doors.open_at(address)

    async def close(self) -> None:
        """Stop listening, and give memory back. The port stays open."""
        self.lender.close()
        await self._doors.close()

    def own(self, rank: int, ability: Ability) -> Member:
        """Return this process as a member."""
        return Member(rank, self.uuid, self._doors.addresses, self.machine, ability)

    def open(self, incarnation: Incarnation, epoch: int, members: Mapping[int, Member]) -> None:
        """Take in the table of members: edges may come, and then connections for shared memory."""
        incarnation.open(self.port, epoch, members)
        self._open[incarnation.id] = incarnation
        incarnation.exits.callback(self._open.pop, incarnation.id, None)

    def loans(self, incarnation: Incarnation) -> Loans:
        """Return the lender and the borrower as a world uses them."""
        peers = {rank: member.uuid for rank, member in incarnation.others.items()}

        async def dial(rank: int) -> socket.socket:
            with await dial_near(incarnation.others[rank]) as sock:
                await self._introduce(sock, incarnation, "memory", to=peers[rank])
                return take_over(sock)

        return Loans(self.lender, self.borrower, incarnation.edges.number, peers, dial)

    def forget(self, incarnation: Incarnation) -> None:
        """End the loans of an incarnation that is over."""
        self.lender.forget(incarnation.edges.number)
        others = [each.others.values() for each in self._open.values() if each is not incarnation]
        self.borrower.forget({member.uuid for members in others for member in members})

    # ---- dialled by this process

    @contextlib.asynccontextmanager
    async def dial_tcp(
        self, incarnation: Incarnation, member: Member, kind: str, **fields: Any
    ) -> AsyncIterator[tuple[socket.socket, dict[str, Any]]]:
        """Connect to a member by TCP, with both proofs; yields the connection and its answer.

        Raises:  RefusedError if the member refuses; ConnectionError if it is not there.
        """
        refused: RefusedError | None = None
        addresses = dial_far(member, self.tls, is_near=member.machine == self.machine)
        async with contextlib.aclosing(addresses):
            async for sock in addresses:
                with sock:
                    try:
                        answer = await self._introduce(sock, incarnation, kind, **fields)
                    except OSError:
                        continue
                    except RefusedError as error:
                        refused = error  # perhaps another process has that address
                        continue
                    yield sock, answer
                    return
        where = f"rank {member.rank} at any of {list(member.addresses)}"
        if refused is not None and refused.reason == "tls":
            raise RefusedError("tls", f"no TLS with {where}: {refused}")
        raise refused or ConnectionRefusedError(f"no answer of {where}")

    @contextlib.asynccontextmanager
    async def dial_edge(
        self, incarnation: Incarnation, member: Member, kind: str, **fields: Any
    ) -> AsyncIterator[Wire]:
        """Connect to a member by a connection that can be an edge, by a transport that both have.

        Raises:  RefusedError if the member refuses; ConnectionError if it is not there.
        """
        for _ in range(_WATCHES_TRIED_MAX):
            watch = self.watches.acquire(
                member.uuid, lambda name: self._dial_watch(incarnation, member, name)
            )
            incarnation.exits.callback(self.watches.release, watch)
            try:
                wire = await self._dial_wire(incarnation, member, kind, watch, **fields)
            except RefusedError as error:
                if error.reason != "watch":
                    raise
                watch.is_over = True
                continue
            with wire:
                yield wire
                return
        raise ConnectionAbortedError(f"rank {member.rank} ends each watch that is begun with it")

    async def _dial_wire(
        self, incarnation: Incarnation, member: Member, kind: str, watch: Watch, **fields: Any
    ) -> Wire:
        hello = {"watch": watch.name, "fresh": watch.is_fresh, "to": member.uuid, **fields}
        if incarnation.transport != "tcp" and member.machine == self.machine:
            try:
                sock = await dial_near(member)
            except OSError as error:
                self._refuse_far(incarnation, member, str(error))
            else:
                with sock:
                    await self._introduce(sock, incarnation, kind, memory=True, **hello)
                    number = await asyncio.shield(watch.number)
                    memory = give_memory(sock)
                    return Wire(take_over(sock), number, memory, is_first=True)
        else:
            self._refuse_far(incarnation, member, "it is on another machine")
        async with self.dial_tcp(incarnation, member, kind, memory=False, **hello) as (sock, _):
            number = await asyncio.shield(watch.number)
            return Wire(take_over(sock), number, -1, is_first=True)

    def _refuse_far(self, incarnation: Incarnation, member: Member, why: str) -> None:
        if incarnation.transport == "shared_memory":
            raise WorldError(
                f"rank {member.rank} of {incarnation} can't be reached by shared memory: {why}; "
                'use transport="auto"'
            )

    async def _dial_watch(
        self, incarnation: Incarnation, member: Member, name: str
    ) -> socket.socket:
        if member.machine == self.machine:
            with contextlib.suppress(OSError):
                with await dial_near(member) as sock:
                    await self._introduce(sock, incarnation, "watch", watch=name, to=member.uuid)
                    return take_over(sock)
        to = member.uuid
        async with self.dial_tcp(incarnation, member, "watch", watch=name, to=to) as (sock, _):
            return take_over(sock)

    async def _introduce(
        self, sock: socket.socket, incarnation: Incarnation, kind: str, **fields: Any
    ) -> dict[str, Any]:
        async with asyncio.timeout(HANDSHAKE_S):
            return await introduce(
                sock,
                incarnation.token,
                kind=kind,
                world=incarnation.name,
                life=incarnation.id,
                rank=incarnation.rank,
                uuid=self.uuid,
                **fields,
            )

    # ---- dialled by other processes

    async def _answer(self, sock: socket.socket) -> Coroutine[Any, Any, None] | None:
        hello = await hear(sock)
        incarnations = self._open if hello.get("kind") == "memory" else self.incarnations
        incarnation = incarnations.get(field(hello, "life", str))
        if incarnation is None:
            raise RefusedError("stale", "that incarnation of the world has begun, or is over")
        await welcome(sock, incarnation.token, hello)
        kind, rank = field(hello, "kind", str), field(hello, "rank", int)
        if field(hello, "to", str) != self.uuid:
            raise RefusedError("stale", "that process is not here any more")
        if kind == "join" and incarnation.gathering is not None:
            return self._seat(incarnation, incarnation.gathering, hello, sock)
        if kind == "edge":
            return self._take_edge(incarnation, rank, hello, sock)
        if kind == "watch":
            await say(sock, ok=True)
            peer, name = field(hello, "uuid", str), field(hello, "watch", str)
            self.watches.accept(peer, name, sock)
            return None
        if kind == "memory":
            await say(sock, ok=True)
            return self.borrower.serve(sock, field(hello, "uuid", str))
        raise RefusedError("nonsense", f"{kind!r:.40} is nothing that is done here")

    async def _seat(
        self,
        incarnation: Incarnation,
        gathering: Gathering,
        hello: dict[str, Any],
        sock: socket.socket,
    ) -> None:
        """Seat a member at rank 0. Its connection becomes its edge."""
        rank = field(hello, "rank", int)
        member = gathering.check(rank, hello)
        async with asyncio.timeout(HANDSHAKE_S):
            wire = await self._take_wire(incarnation, rank, hello, sock)
        with wire:
            gathering.check(rank, hello)  # again: it may have changed
            await gathering.seat(wire.sock, member, field(hello, "epoch", int))
            if not gathering.is_pair:
                with contextlib.suppress(OSError):  # a member that has gone has broken the world
                    await say(wire.sock, begin=True)
            incarnation.add_edge(rank, wire)

    async def _take_edge(
        self, incarnation: Incarnation, rank: int, hello: dict[str, Any], sock: socket.socket
    ) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            await (
                incarnation.is_open.wait()
            )  # rank 0 may tell the dialler before it tells this process
            incarnation.expect(rank, field(hello, "uuid", str), _transport(hello))
            wire = await self._take_wire(incarnation, rank, hello, sock)
        with wire:
            incarnation.expect(
                rank, field(hello, "uuid", str), _transport(hello)
            )  # again: it may have changed
            incarnation.add_edge(rank, wire)

    async def _take_wire(
        self, incarnation: Incarnation, rank: int, hello: dict[str, Any], sock: socket.socket
    ) -> Wire:
        incarnation.check_transport(rank, _transport(hello))
        watch = await self.watches.take(
            field(hello, "uuid", str),
            field(hello, "watch", str),
            is_fresh=field(hello, "fresh", bool),
        )
        incarnation.exits.callback(self.watches.release, watch)
        await say(sock, ok=True)
        memory = await take_memory(sock) if field(hello, "memory", bool) else -1
        return Wire(take_over(sock), watch.number.result(), memory, is_first=False)


def _transport(hello: dict[str, Any]) -> str:
    return "shared_memory" if field(hello, "memory", bool) else "tcp"
