"""Worlds where data_tls is on: edges by TCP are encrypted, and both ends show a certificate."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import ControlError
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import hear, say
from hoplite_ray.worlds.handshake.introductions import introduce
from hoplite_ray.worlds.handshake.tls import TlsSocket, connected
from hoplite_ray.worlds.meeting import place
from hoplite_ray.worlds.meeting.members import Record
from hoplite_ray.worlds.meeting.secrecy import Secrecy
from tests.certificates import Authority
from tests.process.test_worlds_meeting import Table, managers, met
from tests.process.world_crew import JOIN_S, Here, Member, free_address, in_a_loop

VARIABLE = "HOPLITE_RAY_DATA_TLS"
SECRET = b"what only the members of this world may read"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def certify(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    """Members that join from here on have data_tls on, and a certificate of this authority."""
    for name, value in {**authority.certify("member"), VARIABLE: "on"}.items():
        monkeypatch.setenv(name, value)


async def until(condition: Callable[[], Any]) -> None:
    """Return when it holds: a manager works in a thread of its own."""
    async with asyncio.timeout(JOIN_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def listening(leader: worlds.WorldManager) -> place.Place:
    """Return rank 0's place when it has read its settings, and waits for other ranks."""
    await until(lambda: leader._meet is not None and leader._meet.place.incarnations)
    assert leader._meet is not None
    return leader._meet.place


@contextlib.asynccontextmanager
async def leading(leader: worlds.WorldManager, **how: Any) -> AsyncIterator[place.Place]:
    """A rank 0 that waits for other ranks until the end; yields its place."""
    leads = asyncio.create_task(leader.join_async("w", rank=0, **how))
    try:
        yield await listening(leader)
    finally:
        leads.cancel()
        await asyncio.gather(leads, return_exceptions=True)


@in_a_loop
async def test_edges_by_tcp_are_encrypted_and_carry_what_plain_ones_do(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    certify(monkeypatch, authority)
    async with managers(3) as members:
        joined = await met(members, rendezvous=free_address(), transport="tcp")
        assert [world.transports for world in joined] == [
            {other: "tls" for other in range(3) if other != rank} for rank in range(3)
        ]
        for size in (0, 1, 1000, 3_000_000):
            arrays = [np.full(size, rank, np.int64) for rank in range(3)]
            await asyncio.gather(
                *(world.all_reduce_async(each) for world, each in zip(joined, arrays, strict=True))
            )
            assert all((each == 3).all() for each in arrays)
            sent = np.arange(size)
            _, got = await asyncio.gather(
                joined[0].send_async(sent, dst=2), joined[2].recv_async(src=0)
            )
            assert (got == sent).all()
        await asyncio.gather(*(world.leave_async() for world in joined))


@in_a_loop
async def test_watches_between_machines_go_by_tls_and_end_worlds(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    certify(monkeypatch, authority)
    numbers = itertools.count()
    monkeypatch.setattr(place, "machine_id", lambda: f"machine {next(numbers)}")
    async with managers(2) as members:
        left, right = await met(members, rendezvous=Table())
        assert (left.transports, right.transports) == ({1: "tls"}, {0: "tls"})
        members[0].close()
        with pytest.raises(worlds.WorldBrokenError):
            await right.recv_async(src=0)


@in_a_loop
async def test_members_of_one_machine_share_memory_with_data_tls_as_well(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    certify(monkeypatch, authority)
    async with managers(2) as members:
        left, right = await met(members, rendezvous=Table())
        assert (left.transports, right.transports) == ({1: "shared_memory"}, {0: "shared_memory"})


class Tapped(Table):
    """Its members reach rank 0 by a stranger, who writes down what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = bytearray()
        self.is_over = asyncio.Event()
        self._listening: asyncio.Server | None = None

    async def set(self, key: str, value: bytes) -> None:
        record = Record.parse(value)
        [(self._name, self._port)] = record.leader.addresses
        self._listening = await asyncio.start_server(self._pass, self._name, 0)
        here = self._listening.sockets[0].getsockname()
        told = value.replace(str(self._port).encode(), str(here[1]).encode())
        await super().set(key, told)

    async def _pass(self, *dialler: Any) -> None:
        listener = await asyncio.open_connection(self._name, self._port)
        await asyncio.gather(
            self._copy(dialler[0], listener[1]), self._copy(listener[0], dialler[1])
        )

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while part := await source.read(1 << 16):
                    self.heard += part
                    sink.write(part)
                    await sink.drain()
                sink.write_eof()
                await self.is_over.wait()
        finally:
            sink.close()

    def close(self) -> None:
        self.is_over.set()
        if self._listening is not None:
            self._listening.close()


@pytest.mark.parametrize("is_on", [False, True], ids=["off", "on"])
@in_a_loop
async def test_no_byte_of_an_array_or_of_an_introduction_is_on_the_wire(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, is_on: bool
) -> None:
    if is_on:
        certify(monkeypatch, authority)
    table = Tapped()
    async with managers(2) as members:
        left, right = await met(members, rendezvous=table, transport="tcp")
        array = np.frombuffer(SECRET * 100, np.uint8)
        for size in (len(SECRET), array.nbytes):
            _, got = await asyncio.gather(
                left.send_async(array[:size], dst=1), right.recv_async(src=0)
            )
            assert got.tobytes() == array[:size].tobytes()
        await asyncio.gather(left.leave_async(), right.leave_async())
    table.close()
    assert len(table.heard) > array.nbytes
    for said in (SECRET, left.name.encode().join([b'"world": "', b'"']), b'"addresses"'):
        assert (said in table.heard) is not is_on


@pytest.mark.parametrize("stranger", [0, 1], ids=["the listener", "the dialler"])
@in_a_loop
async def test_a_certificate_of_another_authority_opens_no_edge_and_both_ends_say_so(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path, stranger: int
) -> None:
    theirs = Authority(tmp_path / "theirs")
    table = Table()
    async with managers(2) as members:
        how = {"size": 2, "rendezvous": table, "transport": "tcp", "timeout_s": JOIN_S}
        certify(monkeypatch, theirs if stranger == 0 else authority)
        async with leading(members[0], **how) as met_at:
            certify(monkeypatch, theirs if stranger == 1 else authority)
            with pytest.raises(worlds.WorldError, match=r"no TLS with rank 0 at .*RAY_TLS_CA_CERT"):
                await members[1].join_async("w", rank=1, **how)
            await until(lambda: met_at.trouble)  # the dialler is told of it, or finds it out, first
            assert "a connection from " in met_at.trouble
            assert "RAY_TLS_CA_CERT must have signed it" in met_at.trouble


@pytest.mark.parametrize("has_it", [0, 1], ids=["the listener", "the dialler"])
@pytest.mark.parametrize("meets", ["at an edge", "at the rendezvous"])
@in_a_loop
async def test_a_member_with_data_tls_and_one_without_do_not_meet_and_are_told(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, has_it: int, meets: str
) -> None:
    table = Table()
    async with managers(2) as members:
        rendezvous = table if meets == "at an edge" else free_address()
        how = {"size": 2, "rendezvous": rendezvous, "transport": "tcp", "timeout_s": JOIN_S}
        if has_it == 0:
            certify(monkeypatch, authority)
        async with leading(members[0], **how):
            if has_it == 1:
                certify(monkeypatch, authority)
            else:
                monkeypatch.setenv(VARIABLE, "off")
            said = ("speaks TLS, and data_tls is off", "speaks no TLS, and data_tls is on")[has_it]
            with pytest.raises(worlds.WorldError, match=f"{said} here; give all"):
                await members[1].join_async("w", rank=1, **how)


@in_a_loop
async def test_rank_0_says_at_its_limit_whose_certificate_it_has_refused(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    table = Table()
    async with managers(1) as (leader,):
        certify(monkeypatch, authority)
        how = {"size": 2, "rendezvous": table, "transport": "tcp", "timeout_s": 4.0}
        leads = asyncio.create_task(leader.join_async("w", rank=0, **how))
        door = (await table.next_record()).leader.addresses[0]
        certify(monkeypatch, Authority(tmp_path / "theirs"))
        with pytest.raises(RefusedError), await connected(*door, Secrecy().context()) as sock:
            await say(sock, kind="edge")
            await hear(sock)
        with pytest.raises(worlds.WorldTimeoutError, match=r"rank 1 has not come \(a connection "):
            await leads


@in_a_loop
async def test_a_rendezvous_hands_no_token_to_a_stranger_without_a_certificate(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    certify(monkeypatch, authority)
    address = free_address()
    name, port = address.removeprefix("tcp://").split(":")
    async with managers(2) as members:
        how = {"size": 2, "rendezvous": address, "timeout_s": JOIN_S}
        leads = asyncio.create_task(members[0].join_async("w", rank=0, **how))
        await listening(members[0])
        with await connected(name, int(port), None) as sock:
            await say(sock, get="w")
            with pytest.raises(RefusedError, match="speaks TLS"):
                await hear(sock)
        await asyncio.gather(leads, members[1].join_async("w", rank=1, **how))


@in_a_loop
async def test_a_greeting_that_never_ends_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    certify(monkeypatch, authority)
    table = Table()
    async with managers(2) as members:
        how = {"size": 2, "rendezvous": table, "timeout_s": JOIN_S}
        leads = asyncio.create_task(members[0].join_async("w", rank=0, **how))
        door = (await table.next_record()).leader.addresses[0]
        with await connected(*door, None) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, b"\x16\x03\x01\x02\x00\x01\x00")  # and no more of it
            assert await loop.sock_recv(sock, 100) == b""
        await asyncio.gather(leads, members[1].join_async("w", rank=1, **how))


@in_a_loop
async def test_a_proof_that_is_passed_on_into_another_session_opens_no_edge(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    """A stranger between two members has a certificate, and not the world's token."""
    certify(monkeypatch, authority)
    tls = Secrecy().context()
    assert tls is not None
    table = Table()
    async with managers(1) as (leader,):
        how = {"size": 2, "rendezvous": table, "timeout_s": JOIN_S}
        leads = asyncio.create_task(leader.join_async("w", rank=0, **how))
        record = await table.next_record()
        here, there = socket.socketpair()
        door = record.leader.addresses[0]

        async def passes_on() -> None:
            with (
                TlsSocket(there, tls.begin(dials=False)) as dialler,
                await connected(*door, tls) as listener,
            ):
                await say(listener, **await hear(dialler))
                await say(dialler, **await hear(listener))
                with contextlib.suppress(ConnectionError):
                    await hear(dialler)

        passing = asyncio.create_task(passes_on())
        with TlsSocket(here, tls.begin(dials=True)) as sock, pytest.raises(RefusedError) as refused:
            hello = {
                "kind": "edge",
                "world": "w",
                "rank": 1,
                "uuid": "me",
                "life": record.incarnation,
            }
            await introduce(sock, record.token, **hello, to=record.leader.uuid)
        assert refused.value.reason == "proof"
        await passing
        leads.cancel()
        await asyncio.gather(leads, return_exceptions=True)


@in_a_loop
async def test_without_ray_s_tls_settings_a_join_with_data_tls_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "on")
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    async with managers(1) as (alone,):
        with pytest.raises(ControlError, match="data_tls is on and RAY_USE_TLS is not; set RAY_"):
            await alone.join_async("w", rank=0, size=1, rendezvous=Table())


async def join_by_tcp(here: Here, rank: int, address: str) -> None:
    """A play: join a world of three."""
    await here.join_async("w", rank=rank, size=3, rendezvous=address, transport="tcp")


async def work(here: Here) -> tuple[str, int | None]:
    """A play: collectives until the world is broken; returns why, and by whom."""
    world = here.worlds["w"]
    array = np.zeros(50_000)
    try:
        while True:
            await world.all_reduce_async(array)
    except worlds.WorldBrokenError as error:
        return error.cause, error.rank


@pytest.fixture
def certified(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> Iterator[list[Member]]:
    """Processes that have data_tls on, and certificates."""
    certify(monkeypatch, authority)
    members = [Member() for _ in range(3)]
    yield members
    for member in members:
        member.kill()


def test_a_kill_is_known_to_all_others_over_tls(certified: list[Member]) -> None:
    address = free_address()
    for rank, member in enumerate(certified):
        member.tell(join_by_tcp, rank, address)
    for member in certified:
        member.answer()
    for member in certified:
        member.tell(work)
    certified[1].kill()
    assert [certified[rank].answer() for rank in (0, 2)] == [("PEER_DIED", 1)] * 2
