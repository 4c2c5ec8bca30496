"""What strangers say at a replica's door, and what the log has of it."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray.serve import edges, managers
from hoplite_ray.serve.edges import Door
from hoplite_ray.worlds.secrecy import Secrecy
from tests.certificates import Authority

LISTENS = "0A"  # as /proc/net/tcp has it


async def no_handler(request: Any, begun: Any) -> None:
    raise AssertionError("nobody calls")


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def knock(said: Callable[[str], bytes]) -> tuple[bytes, list[dict[str, Any]]]:
    """Say bytes at a door, of its token; returns what it answers, and what the loop was told of."""
    told: list[dict[str, Any]] = []

    async def run() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        door = Door(no_handler, "an answer")
        where = await door.open()
        reader, writer = await asyncio.open_connection(where["address"], where["port"])
        writer.write(said(where["token"]))
        writer.write_eof()
        answer = b""
        with suppress(ConnectionResetError):  # of bytes that were not read
            answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await door.close()
        return answer

    return asyncio.run(run()), told


def hello(token: str, version: int | None = edges.VERSION) -> bytes:
    return framed(json.dumps({"token": token, "world": "a>b", "version": version}).encode())


@pytest.mark.parametrize(
    "said",
    [
        framed(b"[" * 16_000),
        b"{" * 20_000,
        framed(b"\xff"),
        b"",
        framed(b"7"),
        framed(b"[]"),
        framed(b"{}"),
        framed('{"token": "é"}'.encode()),
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["deep", "long", "no text", "none", "number", "list", "no token", "another token", "TLS"],
)
def test_a_stranger_hears_nothing_and_has_no_traceback_printed(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Case review_17."""
    with caplog.at_level("INFO"):
        assert knock(lambda _: said) == (b"", [])
    assert not caplog.records


def test_with_data_tls_a_stranger_without_a_certificate_is_not_listened_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certified = Authority(tmp_path / "ours").certify("replica")
    for name, value in {**certified, "HOPLITE_RAY_DATA_TLS": "on"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(edges, "secrecy", Secrecy())
    monkeypatch.setattr(edges, "hear", None)
    answer, told = knock(hello)
    assert answer.startswith(b"\x15\x03") and not told  # an alert: it speaks TLS


def test_an_unexpected_failure_behind_the_door_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_manager() -> Any:
        raise AssertionError("it is broken")

    monkeypatch.setattr(edges, "manager", no_manager)
    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        assert knock(hello) == (b"", [])
    assert caplog.messages == ["an edge by the door has failed: AssertionError: it is broken"]


@pytest.mark.parametrize("version", [None, edges.VERSION + 1])
def test_replicas_of_two_versions_say_so_and_open_no_edge(
    version: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    why = f"has version {version} of edges, and this process {edges.VERSION}: an update"
    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        assert knock(lambda token: hello(token, version)) == (b"", [])
    (told,) = caplog.messages
    assert f"a caller {why}" in told
    door = {"address": "127.0.0.1", "port": 1, "token": "", "version": version}
    with pytest.raises(edges.OtherVersionError, match=f"the replica {why}"):
        asyncio.run(edges.open_edge(door, "a>b", no_handler, "the query"))


def test_edges_listen_at_the_address_of_their_node_and_at_no_other() -> None:
    class Board(dict[str, bytes]):
        async def set(self, key: str, value: bytes) -> None:
            self[key] = value

        async def get(self, key: str) -> bytes | None:  # type: ignore[override]
            return dict.get(self, key)

    async def run() -> None:
        world = await managers.manager().join("alone", rank=0, size=1, rendezvous=Board())
        await world.leave()

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
