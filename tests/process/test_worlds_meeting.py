"""Joins of worlds: which members are accepted, refused (and why), and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.base.interfaces import own_addresses
from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import hear, say
from hoplite_ray.worlds.handshake.introductions import introduce
from hoplite_ray.worlds.meeting.doors import dial_near
from hoplite_ray.worlds.meeting.members import Member, Record, machine_id
from hoplite_ray.worlds.meeting.rendezvous import own_address, parse_address
from tests.process.world_crew import JOIN_S, free_address, in_a_loop

NO_GPU = Ability(0, "this process uses no GPU", is_needed=False)

Managers = list[worlds.WorldManager]


class Table:
    """A rendezvous of a user's own."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked = asyncio.Event()
        self._is_set = asyncio.Event()

    async def set(self, key: str, value: bytes) -> None:
        self.values[key] = value
        self._is_set.set()

    async def get(self, key: str) -> bytes | None:
        self.asked.set()
        return self.values.get(key)

    async def next_record(self) -> Record:
        """Wait until rank 0 of world w has set another one."""
        self._is_set.clear()
        await self._is_set.wait()
        return Record.parse(self.values["w"])


@contextlib.asynccontextmanager
async def managers(count: int, **how: Any) -> AsyncIterator[Managers]:
    """Members that are of one process, which is no matter here."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(worlds.WorldManager(**how)) for _ in range(count)]


async def met(members: Managers, name: str = "w", **how: Any) -> list[worlds.World]:
    joins = (
        member.join_async(name, rank=rank, size=len(members), **{"timeout_s": JOIN_S, **how})
        for rank, member in enumerate(members)
    )
    return await asyncio.gather(*joins)


class Meeting:
    """Members that meet at a table, in world w."""

    def __init__(self, members: Managers) -> None:
        self.members = members
        self.table = Table()

    def join(self, index: int, **how: Any) -> asyncio.Task[worlds.World]:
        """Have this member begin to join: with its index as rank, in a world of them all."""
        how = {"rank": index, "size": len(self.members), "timeout_s": JOIN_S, **how}
        return asyncio.create_task(
            self.members[index].join_async("w", rendezvous=self.table, **how)
        )


@contextlib.asynccontextmanager
async def meeting(count: int) -> AsyncIterator[Meeting]:
    async with managers(count) as members:
        yield Meeting(members)


async def seated(leader: worlds.WorldManager, rank: int) -> None:
    """Return when this rank has come to rank 0, which waits for others."""
    place = leader._meet.place  # type: ignore[union-attr]
    async with asyncio.timeout(JOIN_S):
        while True:
            gatherings = [each.gathering for each in list(place.incarnations.values())]
            if any(each is not None and rank in each.members for each in gatherings):
                return
            await asyncio.sleep(0.005)


@in_a_loop
async def test_any_object_with_set_and_get_is_a_rendezvous() -> None:
    table = Table()
    async with managers(3) as members:
        joined = await met(members, rendezvous=table)
        assert [world.epoch for world in joined] == [1, 1, 1]
        assert list(table.values) == ["w"]
        arrays = [np.full(3, rank) for rank in range(3)]
        await asyncio.gather(
            *(world.all_reduce_async(array) for world, array in zip(joined, arrays, strict=True))
        )
        assert all((array == 3).all() for array in arrays)


@in_a_loop
async def test_a_member_may_come_late_or_first() -> None:
    address = free_address()
    async with managers(3) as members:
        how = {"size": 3, "rendezvous": address, "timeout_s": JOIN_S}
        early = asyncio.create_task(members[2].join_async("w", rank=2, **how))
        await asyncio.sleep(0)
        leader = asyncio.create_task(members[0].join_async("w", rank=0, **how))
        late = await members[1].join_async("w", rank=1, **how)
        assert (await early).epoch == (await leader).epoch == late.epoch == 1


@in_a_loop
async def test_who_has_not_come_is_named_at_the_limit() -> None:
    async with managers(2) as (first, third):
        # Rank 0 checks every half second which ranks are there.
        how = {"size": 4, "rendezvous": free_address(), "timeout_s": 2.5}
        both = await asyncio.gather(
            first.join_async("w", rank=0, **how),
            third.join_async("w", rank=2, **how),
            return_exceptions=True,
        )
        assert [type(error) for error in both] == [worlds.WorldTimeoutError] * 2
        assert "rank 1, 3 has not come" in str(both[0])
        assert isinstance(both[0], TimeoutError)
    async with managers(1) as (alone,):
        with pytest.raises(worlds.WorldTimeoutError, match="rank 0 has not come"):
            await alone.join_async("w", rank=1, size=2, rendezvous=free_address(), timeout_s=1.0)


@in_a_loop
async def test_two_of_one_rank_and_another_size_are_refused_and_named() -> None:
    async with meeting(4) as at:
        leads, first = at.join(0, size=3), at.join(1, size=3)
        with pytest.raises(worlds.WorldError, match=r"of 3 members, and rank 2 says 5"):
            await at.join(2, size=5)
        await seated(at.members[0], 1)
        with pytest.raises(worlds.WorldError, match="rank 1 is taken"):
            await at.join(3, rank=1, size=3)
        third = await at.join(2, size=3)
        assert {(await leads).state, (await first).state, third.state} == {worlds.State.READY}


@in_a_loop
async def test_a_rank_0_that_comes_after_another_one_ends_its_join() -> None:
    async with meeting(3) as at:
        before = at.join(0, size=2)
        await at.table.next_record()
        after = at.join(1, rank=0, size=2)
        with pytest.raises(worlds.StaleEpochError, match="another rank 0"):
            await before
        assert (await at.join(2, rank=1, size=2)).epoch == (await after).epoch == 2


@in_a_loop
async def test_a_table_that_has_forgotten_is_told_again() -> None:
    async with meeting(2) as at:
        leads = at.join(0)
        await at.table.next_record()
        at.table.values.clear()
        await at.join(1)
        await leads


@in_a_loop
async def test_a_left_or_broken_name_is_joined_again_as_its_next_epoch() -> None:
    address = free_address()
    async with managers(2) as members:
        for epoch in range(1, 6):
            joined = await met(members, rendezvous=address)
            assert [world.epoch for world in joined] == [epoch] * 2
            if epoch % 2:
                await asyncio.gather(*(world.leave_async() for world in joined))
            else:
                joined[0].abort("a new life")
                with pytest.raises(worlds.WorldBrokenError):
                    await joined[1].recv_async(src=0)


@in_a_loop
async def test_events_of_a_world_begin_with_who_has_left() -> None:
    async with managers(3) as members:
        joined = await met(members, rendezvous=Table())
        before = joined[1].events()
        await joined[0].leave_async()
        event = await anext(before)
        assert (event.kind, event.rank) == (worlds.EventKind.PEER_LEFT, 0)
        assert await anext(joined[1].events()) == event
        joined[2].abort("enough")
        with pytest.raises(worlds.WorldBrokenError):
            await joined[1].recv_async(src=2)
        kinds = [(each.kind.name, each.rank) async for each in joined[1].events()]
        assert kinds == [("PEER_LEFT", 0), ("BROKEN", 2)]


@in_a_loop
async def test_another_rank_0_takes_the_place_of_one_that_is_frozen() -> None:
    with contextlib.ExitStack() as silent:  # only the kernel answers
        frozen = [silent.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
        addresses = tuple(each.getsockname() for each in frozen)
        leader = Member(0, "frozen", addresses, "another machine", NO_GPU)
        elsewhere = Member(0, "frozen", addresses, machine_id(), NO_GPU)
        for each in (leader, elsewhere):
            async with meeting(2) as at:
                at.table.values["w"] = Record("w", 1, "life", b"token", each).encode()
                follows = at.join(1)
                await asyncio.sleep(0.1)
                await asyncio.gather(follows, at.join(0))


@in_a_loop
async def test_epochs_go_on_although_rank_0_is_another_process() -> None:
    address = free_address()
    async with managers(2) as members:
        for _ in range(3):
            joined = await met(members, rendezvous=address)
            await asyncio.gather(*(world.leave_async() for world in joined))
        members[0].close()
        async with worlds.WorldManager() as new:
            joined = await met([new, members[1]], rendezvous=address)
            assert [world.epoch for world in joined] == [4, 4]


async def dial(record: Record, sock: socket.socket, **hello: Any) -> dict[str, Any]:
    """Say hello as a program of one's own."""
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, record.leader.addresses[0])
    hello = {"kind": "edge", "world": "w", "rank": 1, "uuid": "me", **hello}
    hello = {"watch": "mine", "fresh": False, "memory": False, **hello}
    hello = {"life": record.incarnation, "to": record.leader.uuid, **hello}
    return await introduce(sock, record.token, **hello)


@in_a_loop
async def test_members_of_an_old_life_and_strangers_are_refused() -> None:
    async with meeting(2) as at:
        joined = await asyncio.gather(at.join(0), at.join(1))
        old = Record.parse(at.table.values["w"])
        await asyncio.gather(*(world.leave_async() for world in joined))
        leads = at.join(0)
        new = await at.table.next_record()
        zombie = Record("w", old.epoch, old.incarnation, old.token, new.leader)
        stranger = Record("w", new.epoch, new.incarnation, b"guessed", new.leader)
        for record, hello, reason in (
            (zombie, {}, "stale"),
            (stranger, {}, "proof"),
            (new, {"to": "another"}, "stale"),
            (new, {"kind": "rumour"}, "nonsense"),
            (new, {"kind": "join", "size": 2, "who": {}}, "nonsense"),
            (new, {"rank": "one"}, "nonsense"),
        ):
            with socket.socket() as sock, pytest.raises(RefusedError) as refused:
                await dial(record, sock, **hello)
            assert refused.value.reason == reason
        await at.join(1)
        await leads


async def guess(record: Record, kind: str) -> str:
    """Say hello nearby without the token; returns why that is refused. No descriptor comes."""
    hello = {
        "life": record.incarnation,
        "to": record.leader.uuid,
        "world": "w",
        "rank": 1,
        "uuid": "me",
    }
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    with await dial_near(record.leader) as sock:
        await say(sock, kind=kind, nonce="00", watch="mine", fresh=True, memory=True, **hello)
        await hear(sock)  # it proves itself first
        await say(sock, proof="00")
        loop.add_reader(sock, readable.set)
        await readable.wait()
        loop.remove_reader(sock)
        frame, descriptors, _, _ = socket.recv_fds(sock, 4096, 8)
        assert not descriptors
        return str(json.loads(frame[4:])["refused"])


@in_a_loop
async def test_a_stranger_at_the_socket_nearby_is_refused_and_gets_no_memory() -> None:
    """Every user of the machine reaches it: its name has no owner."""
    async with meeting(2) as at:
        leads = at.join(0)
        record = await at.table.next_record()
        assert [await guess(record, kind) for kind in ("join", "edge", "watch")] == ["proof"] * 3
        await asyncio.gather(leads, at.join(1))
        assert await guess(record, "memory") == "proof"


@pytest.mark.parametrize("hears_the_table", [False, True])
@in_a_loop
async def test_a_member_that_dies_while_all_meet_ends_that_attempt_only(
    hears_the_table: bool,
) -> None:
    async with meeting(3) as at:
        leads = at.join(0)
        first = await at.table.next_record()
        follows = at.join(1)
        doomed = Member(2, "doomed", (("127.0.0.1", 1),), "another machine", NO_GPU)
        with socket.socket() as sock, socket.socket() as watch:
            await dial(first, watch, kind="watch", rank=2)
            await dial(first, sock, kind="join", rank=2, size=3, epoch=6, who=doomed.fields())
            if hears_the_table:
                assert (await hear(sock))["epoch"] == 7  # one more than it has seen
        joined = await asyncio.gather(leads, follows, at.join(2))
        assert {world.state for world in joined} == {worlds.State.READY}
        assert len({world.epoch for world in joined}) == 1


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x02\0\0\0[]", b"\x05\0\0\0{}\0\0"],
)
@in_a_loop
async def test_hostile_bytes_end_their_connection_and_nothing_else(said: bytes) -> None:
    async with meeting(2) as at:
        leads = at.join(0)
        door = (await at.table.next_record()).leader.addresses[0]
        for _ in range(20):
            with socket.create_connection(door) as sock:
                sock.sendall(said)
        await at.join(1)
        await leads


@in_a_loop
async def test_an_address_says_what_it_has_and_refuses_nonsense() -> None:
    address = free_address()
    at = parse_address(address)
    async with managers(2) as members:
        await met(members, rendezvous=address)
        loop = asyncio.get_running_loop()
        for frame, answer in (({"get": "w"}, str), ({"get": "other"}, type(None))):
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, at)
                await say(sock, **frame)
                assert type((await hear(sock))["value"]) is answer
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, at)
            await say(sock, get=7)
            with pytest.raises(RefusedError):
                await hear(sock)


@in_a_loop
async def test_a_transport_that_cannot_be_had_is_refused_with_its_reason() -> None:
    async with meeting(2) as at:
        with pytest.raises(InvalidArgumentError, match="transport='carrier pigeon'"):
            await at.join(0, transport="carrier pigeon")
        leads = at.join(0, transport="tcp")
        with pytest.raises(worlds.WorldError, match="takes tcp only"):
            await at.join(1, transport="shared_memory")
        await at.join(1, transport="tcp")
        await leads


@in_a_loop
async def test_the_environment_chooses_for_those_who_leave_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOPLITE_RAY_WORLD_TRANSPORT", "tcp")
    async with managers(2) as members:
        (left, right) = await met(members, rendezvous=Table())
        assert (left.transports, right.transports) == ({1: "tcp"}, {0: "tcp"})
        forced = await met(members, "forced", rendezvous=Table(), transport="shared_memory")
        assert forced[0].transports == {1: "shared_memory"}


@in_a_loop
async def test_a_manager_may_listen_at_one_address() -> None:
    table = Table()
    async with managers(2, listen="127.0.0.1:0") as members:
        await met(members, rendezvous=table, transport="tcp")
        addresses = Record.parse(table.values["w"]).leader.addresses
        assert [name for name, _ in addresses] == ["127.0.0.1"]
    async with managers(1, listen="192.0.2.1:0") as (nowhere,):
        with pytest.raises(worlds.WorldError, match=r"can't listen at 192\.0\.2\.1"):
            await nowhere.join_async("w", rank=0, size=1, rendezvous=table)


def is_open(name: str, port: int) -> bool:
    try:
        socket.create_connection((name, port)).close()
    except ConnectionRefusedError:
        return False
    return True


@in_a_loop
async def test_a_manager_listens_where_its_members_meet_and_nowhere_else() -> None:
    """Not at all addresses of the machine; 127.0.0.2 is another one on every machine."""
    async with managers(2) as members:
        await met(members, "at an address", rendezvous=free_address(), transport="tcp")
        place = members[0]._meet.place  # type: ignore[union-attr]
        [(name, port)] = place.own(0, NO_GPU).addresses
        assert name == "127.0.0.1"
        assert is_open(name, port)
        assert not is_open("127.0.0.2", port)
        table = Table()
        await met(members, "at a table", rendezvous=table, transport="tcp")
        await met(members, "at the table again", rendezvous=table, transport="tcp")
        added = dict(place.own(0, NO_GPU).addresses)
        assert list(added) == list(dict.fromkeys(["127.0.0.1", own_address(table)]))
        assert not any(is_open("127.0.0.2", port) for port in added.values())


@in_a_loop
async def test_a_manager_may_listen_at_all_addresses() -> None:
    table = Table()
    async with managers(2, listen="0.0.0.0:0") as members:
        await met(members, rendezvous=table, transport="tcp")
        addresses = Record.parse(table.values["w"]).leader.addresses
        assert len(addresses) == len([each for each in own_addresses() if ":" not in each])
        assert is_open("127.0.0.2", addresses[0][1])


@in_a_loop
async def test_a_rendezvous_to_which_there_is_no_way_is_named_at_the_limit() -> None:
    async with managers(1) as (alone,):
        with pytest.raises(
            worlds.WorldTimeoutError, match=r"no way to tcp://no\.such\.host\.invalid:1"
        ):
            await alone.join_async(
                "w", rank=1, size=2, rendezvous="tcp://no.such.host.invalid:1", timeout_s=1.0
            )


@in_a_loop
async def test_mistakes_are_named() -> None:
    async with managers(1) as (manager,):
        how = {"rendezvous": Table()}
        for arguments, words in (
            ({"name": "", "rank": 0, "size": 1, **how}, "name has 1 to"),
            ({"name": "w", "rank": 2, "size": 2, **how}, "rank=2 is not one of size=2"),
            ({"name": "w", "rank": 0, "size": 1, "rendezvous": "here"}, "no address"),
            ({"name": "\ud800", "rank": 0, "size": 1, **how}, "no such characters"),
            ({"name": "w", "rank": 0, "size": 1, "timeout_s": float("nan"), **how}, "no limit"),
            ({"name": "w", "rank": 0, "size": 1, "transport": "pigeon", **how}, "'pigeon' is unkn"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                await manager.join_async(**arguments)
        for arguments, words in (
            ({"rank": "0", "size": 1, **how}, "rank='0' is a str"),
            ({"rank": 0, "size": None, **how}, "size=None is a NoneType"),
            ({"rank": 0, "size": 1, "rendezvous": 4000}, "is no place to meet"),
            ({"rank": 0, "size": 1, "rendezvous": {}}, "is no place to meet"),
            ({"rank": 0, "size": 1, "timeout_s": "5", **how}, "timeout_s is a str"),
        ):
            with pytest.raises(WrongTypeError, match=words):
                await manager.join_async("w", **arguments)
        with pytest.raises(worlds.WorldError, match=r"call ray\.init\(\) first"):
            await manager.join_async("w", rank=0, size=1)
        with pytest.raises(worlds.WorldError, match=r"can't listen at tcp://192\.0\.2\.1"):
            await manager.join_async("w", rank=0, size=1, rendezvous="tcp://192.0.2.1:4000")
        await manager.join_async("w", rank=np.int64(0), size=np.int64(1), **how)
        with pytest.raises(InvalidArgumentError, match="leave it first"):
            await manager.join_async("w", rank=0, size=1, **how)
        with pytest.raises(InvalidArgumentError, match="in no world 'other'"):
            manager.abort("other", "why")
    with pytest.raises(InvalidArgumentError, match="limits are positive"):
        worlds.WorldManager(suspect_after_s=4.0)
    with pytest.raises(worlds.WorldError, match="was closed"):
        await manager.join_async("w", rank=0, size=1, rendezvous=Table())


@in_a_loop
async def test_a_join_that_is_given_up_leaves_nothing() -> None:
    table = Table()
    async with managers(2) as members:
        how = {"size": 2, "rendezvous": table}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(members[0].join_async("w", rank=0, **how), 0.05)
        joined = await met(members, rendezvous=table)
        await asyncio.gather(*(world.barrier_async() for world in joined))
        for turns in range(1, 40):  # cancelled at every point of a join, until one is too quick
            again = asyncio.gather(
                members[0].join_async(f"v{turns}", rank=0, timeout_s=0.5, **how),
                members[1].join_async(f"v{turns}", rank=1, timeout_s=0.5, **how),
                return_exceptions=True,
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            again.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await again
        await asyncio.gather(*(world.barrier_async() for world in joined))


@in_a_loop
async def test_closing_a_manager_ends_its_joins_and_streams() -> None:
    manager, table = worlds.WorldManager(), Table()
    waits = asyncio.create_task(manager.join_async("w", rank=0, size=2, rendezvous=table))
    stream = manager.events()
    await table.asked.wait()
    await asyncio.to_thread(manager.close)
    with pytest.raises(worlds.WorldError, match="was closed while 'w' was joined"):
        await waits
    assert [event async for event in stream] == []
    manager.close()


@in_a_loop
async def test_closing_a_manager_waits_for_no_look_up_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def stuck() -> None:
        is_asked.set()
        is_over.wait()

    monkeypatch.setattr("hoplite_ray.worlds.meeting.meet.find_ray_rendezvous", stuck)
    manager = worlds.WorldManager()
    waits = asyncio.create_task(manager.join_async("w", rank=0, size=2))
    try:
        assert await asyncio.to_thread(is_asked.wait, JOIN_S)
        await asyncio.wait_for(asyncio.to_thread(manager.close), JOIN_S)
        with pytest.raises(worlds.WorldError, match="was closed while 'w' was joined"):
            await waits
    finally:
        is_over.set()
