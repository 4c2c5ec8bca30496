"""What strangers say at a replica's door, and what the log has of it."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray.serve.edge import door as doors
from hoplite_ray.serve.edge import managers
from hoplite_ray.serve.edge.door import Door
from hoplite_ray.serve.errors import OtherVersionError
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.meeting.secrecy import Secrecy
from tests.certificates import Authority

LISTENS = "0A"  # as /proc/net/tcp has it


async def no_handler(request: Any, notify_running: Any) -> None:
    raise AssertionError("nobody calls")


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def knock(
    said: Callable[[str], bytes], *, is_parked: bool = False
) -> tuple[bytes, list[dict[str, Any]]]:
    """Say bytes at a door, of its token; returns what it answers, and what the loop was told of."""
    told: list[dict[str, Any]] = []

    async def run() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        door = Door(no_handler, "an answer", is_parked=is_parked)
        where = await door.open()
        reader, writer = await asyncio.open_connection(where["address"], where["port"])
        writer.write(said(where["token"]))
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await door.close()
        return answer

    return asyncio.run(run()), told


def refusal(answer: bytes) -> tuple[str, str]:
    """Return what one frame and the end of the connection say: its reason, and its text."""
    (size,) = struct.unpack_from("<I", answer)
    frame = json.loads(answer[4:])
    assert len(answer) == 4 + size
    return frame["refused"], frame["text"]


def hello(token: str, version: int | None = doors.VERSION) -> bytes:
    return framed(json.dumps({"token": token, "world": "a>b", "version": version}).encode())


@pytest.mark.parametrize(
    ("said", "reason", "text"),
    [
        (framed(b"[" * 16_000), "nonsense", "a frame that is no JSON"),
        (b"{" * 20_000, "nonsense", "a frame of 2071690107 B"),
        (framed(b"\xff"), "nonsense", "a frame that is no JSON"),
        (framed(b"7"), "nonsense", "a frame that is no object"),
        (framed(b"[]"), "nonsense", "a frame that is no object"),
        (framed(b"{}"), "token", "it is no token of this door"),
        (framed('{"token": "é"}'.encode()), "token", "it is no token of this door"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "tls", "it speaks TLS, and data_tls is off here"),
    ],
    ids=["deep", "long", "no text", "number", "list", "no token", "another token", "TLS"],
)
def test_a_stranger_is_told_why_it_is_refused_and_no_traceback_is_printed(
    said: bytes, reason: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case review_17."""
    with caplog.at_level("INFO"):
        answer, told = knock(lambda _: said)
    assert refusal(answer)[0] == reason and refusal(answer)[1].startswith(text)
    assert not told and not caplog.records


def test_with_data_tls_a_stranger_without_a_certificate_is_not_listened_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certified = Authority(tmp_path / "ours").certify("replica")
    for name, value in {**certified, "HOPLITE_RAY_DATA_TLS": "on"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doors, "secrecy", Secrecy())
    monkeypatch.setattr(doors, "hear", None)
    answer, told = knock(hello)
    assert answer.startswith(b"\x15\x03") and not told  # an alert: it speaks TLS


REFUSALS = {
    "another token": (None, None, "it is no token of this door"),
    "an upstream without data_tls": (None, "ours", "it speaks TLS, and data_tls is off here"),
    "a door without data_tls": ("ours", None, "it speaks no TLS, and data_tls is on here"),
    "an upstream of another authority": ("theirs", "ours", "its certificate is refused"),
}


@pytest.mark.parametrize(("upstream", "door", "why"), REFUSALS.values(), ids=REFUSALS.keys())
def test_an_upstream_is_told_at_once_why_a_door_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    upstream: str | None,
    door: str | None,
    why: str,
) -> None:
    def certify(authority: str | None) -> None:
        settings = Authority(tmp_path / authority).certify("replica") if authority else {}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOPLITE_RAY_DATA_TLS", "on" if authority else "off")
        monkeypatch.setattr(doors, "secrecy", Secrecy())

    async def run() -> None:
        certify(door)
        opened = Door(no_handler, "an answer")
        where = {**await opened.open(), "token": "another"}
        certify(upstream)
        with pytest.raises(RefusedError, match=why):
            await doors.open_edge(where, "a>b", no_handler, "the query")
        await opened.close()

    monkeypatch.setattr(doors, "manager", None)  # no world is joined
    asyncio.run(run())


def test_an_unexpected_failure_behind_the_door_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_manager() -> Any:
        raise AssertionError("it is broken")

    monkeypatch.setattr(doors, "manager", no_manager)
    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        answer, told = knock(hello)
    assert answer == framed(b'{"welcome": "a>b", "parked": false}') and not told
    assert caplog.messages == ["an edge by the door has failed: AssertionError: it is broken"]


@pytest.mark.parametrize("version", [None, doors.VERSION + 1])
def test_replicas_of_two_versions_say_so_and_open_no_edge(
    version: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    why = f"has version {version} of edges, and this process {doors.VERSION}: an update"
    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        answer, _ = knock(lambda token: hello(token, version))
    (logged,) = caplog.messages
    assert f"a caller {why}" in logged
    assert refusal(answer)[0] == "version" and f"a caller {why}" in refusal(answer)[1]
    door = {"address": "127.0.0.1", "port": 1, "token": "", "version": version}
    with pytest.raises(OtherVersionError, match=f"the replica {why}"):
        asyncio.run(doors.open_edge(door, "a>b", no_handler, "the query"))


def test_edges_listen_at_the_address_of_their_node_and_at_no_other() -> None:
    class Board(dict[str, bytes]):
        async def set(self, key: str, value: bytes) -> None:
            self[key] = value

        async def get(self, key: str) -> bytes | None:  # type: ignore[override]
            return dict.get(self, key)

    async def run() -> None:
        world = await managers.manager().join_async("alone", rank=0, size=1, rendezvous=Board())
        await world.leave_async()

    asyncio.run(run())
    mine = {os.readlink(each) for each in _descriptors()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/self/net/tcp6").read_text().splitlines()[1:]]
    heard = {row[1] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in mine}
    assert heard, "it listens"
    any_address = {each for each in heard if not each.partition(":")[0].strip("0")}
    assert not any_address


def _descriptors() -> list[Path]:
    return [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
