"""What members say to each other and users to them: records, frames, addresses, events."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import struct
from typing import Any

import pytest

from hoplite_ray.base.interfaces import own_addresses
from hoplite_ray.config import world_transport
from hoplite_ray.errors import InvalidArgumentError, WorldError
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.worlds import Cause, EventKind, EventStream, WorldEvent
from hoplite_ray.worlds.gpu.ability import Ability
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import FRAME_BYTES_MAX, field, hear, say
from hoplite_ray.worlds.handshake.introductions import introduce, welcome
from hoplite_ray.worlds.meeting import rendezvous
from hoplite_ray.worlds.meeting.doors import split_listen
from hoplite_ray.worlds.meeting.members import Member, Record
from hoplite_ray.worlds.meeting.rendezvous import own_address, parse_address

LEADER = Member(
    0, "abc", (("10.0.0.5", 4000), ("fd00::5", 4000)), "boot", Ability(23007, "", is_needed=True)
)
RECORD = Record("edge", 3, "life", b"\x01\xff", LEADER)


def test_a_record_travels() -> None:
    assert Record.parse(RECORD.encode()) == RECORD


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        RECORD.encode()[:-1],
        RECORD.encode().replace(b"01ff", b"zz"),
        RECORD.encode().replace(b"10.0.0.5", b"here"),
        RECORD.encode().replace(b'"epoch": 3', b'"epoch": "3"'),
        RECORD.encode().replace(b"23007", b'"2.30.7"'),
        json.dumps({**json.loads(RECORD.encode()), "leader": 7}).encode(),
    ],
)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(WorldError, match="use another key or another rendezvous"):
        Record.parse(value)


def told(*sent: bytes) -> dict[str, Any]:
    """What one hears of these bytes, after which the other side closes."""

    async def receive() -> dict[str, Any]:
        with here:
            return await hear(here)

    here, there = socket.socketpair()
    here.setblocking(False)
    with there:
        for each in sent:
            there.sendall(each)
    return asyncio.run(receive())


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def test_a_frame_is_heard_in_whatever_parts_it_comes() -> None:
    whole = framed(b'{"a": 1}')
    assert told(*(whole[at : at + 1] for at in range(len(whole)))) == {"a": 1}


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", FRAME_BYTES_MAX + 1),
        framed(b"[]"),
        framed(b"nonsense"),
        framed(b"\xff\xfe"),
        framed(b"[" * 60_000),
    ],
)
def test_what_is_no_frame_is_nonsense(sent: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        told(sent)
    assert refused.value.reason == "nonsense"


@pytest.mark.parametrize("sent", [b"", b"\x05", framed(b'{"a": 1}')[:-1]])
def test_an_end_within_a_frame_is_an_end(sent: bytes) -> None:
    with pytest.raises(ConnectionError):
        told(sent)


def test_a_refusal_is_raised_with_its_reason() -> None:
    with pytest.raises(RefusedError, match="rank 1 is taken") as refused:
        told(framed(b'{"refused": "taken", "text": "rank 1 is taken"}'))
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.reason, str(again)) == ("taken", "rank 1 is taken")


@pytest.mark.parametrize("value", [None, "1", 1.0, True])
def test_a_field_of_another_type_is_nonsense(value: object) -> None:
    with pytest.raises(RefusedError, match="'rank'"):
        field({} if value is None else {"rank": value}, "rank", int)


def introduced(ours: bytes, theirs: bytes) -> list[Any]:
    """What becomes of the two sides of an introduction that know these tokens."""

    async def listen(sock: socket.socket) -> str:
        with sock:
            try:
                await welcome(sock, theirs, await hear(sock))
            except RefusedError as error:
                await say(sock, refused=error.reason)
                raise
            await say(sock, ok=True)
            return "let in"

    async def both() -> list[Any]:
        for sock in (here, there):
            sock.setblocking(False)

        async def dial() -> dict[str, Any]:
            with here:
                return await introduce(here, ours, rank=1)

        return await asyncio.gather(dial(), listen(there), return_exceptions=True)

    here, there = socket.socketpair()
    return asyncio.run(both())


def test_each_side_of_an_introduction_proves_that_it_knows_the_token() -> None:
    assert introduced(b"token", b"token") == [{"ok": True}, "let in"]
    dialler, listener = introduced(b"token", b"another")
    assert isinstance(dialler, RefusedError) and dialler.reason == "proof"
    assert isinstance(listener, ConnectionError)  # the dialler goes before it proves anything


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.1.0.5:0", ("10.1.0.5", 0)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_where_to_listen(text: str, expected: object) -> None:
    assert split_listen(text) == expected


@pytest.mark.parametrize("text", ["", "here", "10.1.0.5", "10.1.0.5:", "name:1", "1.2.3.4:99999"])
def test_where_nobody_can_listen(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="write ADDRESS:PORT"):
        split_listen(text)


def test_a_rendezvous_of_an_address() -> None:
    assert parse_address("tcp://10.0.0.5:29500") == ("10.0.0.5", 29500)
    assert parse_address("tcp://[fd00::5]:1") == ("fd00::5", 1)
    assert parse_address("tcp://machine:1") == ("machine", 1)
    for text in ("10.0.0.5:29500", "tcp://10.0.0.5", "udp://a:1", "tcp://a:1/x", "tcp://a:99999"):
        with pytest.raises(InvalidArgumentError, match="write tcp://ADDRESS:PORT"):
            parse_address(text)


@pytest.mark.parametrize("ray_is", ["not here", "here", "at the other end of a client"])
def test_members_reach_this_process_by_the_way_to_where_they_meet(
    monkeypatch: pytest.MonkeyPatch, ray_is: str
) -> None:
    monkeypatch.setattr(rendezvous, "is_ray_running", lambda: ray_is != "not here")
    monkeypatch.setattr(seams, "is_client", lambda: ray_is == "at the other end of a client")
    monkeypatch.setattr(seams, "node_address", lambda: "10.1.0.5")
    assert own_address("tcp://127.0.0.1:1") == own_address("tcp://localhost:1") == "127.0.0.1"
    monkeypatch.setattr(rendezvous, "_ANYWHERE", ("not an address:", "127.0.0.3"))
    default = "10.1.0.5" if ray_is == "here" else "127.0.0.1"
    assert own_address(None) == own_address("tcp://0.0.0.0:1") == default
    monkeypatch.setattr(rendezvous, "_ANYWHERE", ())  # without a default route
    assert own_address(None) == ("10.1.0.5" if ray_is == "here" else own_addresses()[0])


def test_the_environment_names_a_transport() -> None:
    assert world_transport({}) == "auto"
    assert world_transport({"HOPLITE_RAY_WORLD_TRANSPORT": "tcp"}) == "tcp"
    with pytest.raises(ValueError, match="'pigeon' is wrong; it takes 'auto' or 'tcp' or"):
        world_transport({"HOPLITE_RAY_WORLD_TRANSPORT": "pigeon"})


def test_a_stream_ends_once_and_for_all() -> None:
    event = WorldEvent(EventKind.BROKEN, "edge", 1, 0, Cause.PEER_DIED.name, "", 7)

    async def iterate() -> list[WorldEvent]:
        stream = EventStream()
        stream.tell(event)
        stream.tell(None)
        found = [each async for each in stream]
        return found + [each async for each in stream]

    assert asyncio.run(iterate()) == [event]


def test_a_stream_whose_loop_has_ended_takes_no_harm() -> None:
    async def make() -> EventStream:
        return EventStream()

    asyncio.run(make()).tell(None)
