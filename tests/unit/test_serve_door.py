"""What strangers say at a replica's door, and what the log has of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hoplite_ray.serve import edges
from hoplite_ray.serve.edges import Door


async def no_handler(request: Any, begun: Any) -> None:
    raise AssertionError("nobody calls")


def knock(line: bytes) -> tuple[bytes, list[dict[str, Any]]]:
    """Say a line at a door, `TOKEN` in it being the door's; returns what it answers, and what the
    loop was told of.
    """
    told: list[dict[str, Any]] = []

    async def run() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        door = Door(no_handler, "an answer")
        where = await door.open()
        reader, writer = await asyncio.open_connection(where["address"], where["port"])
        writer.write(line.replace(b"TOKEN", where["token"].encode()) + b"\n")
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        while door._tasks:
            await asyncio.wait(door._tasks)
        await door.close()
        return answer

    return asyncio.run(run()), told


@pytest.mark.parametrize(
    "line",
    [b"[" * 16_000, b"{" * 20_000, b"\xff", b"", b"7", b"[]", b"{}", b'{"token": "\xc3\xa9"}'],
    ids=["deep", "long", "no text", "nothing", "number", "list", "no token", "another token"],
)
def test_a_stranger_hears_nothing_and_has_no_traceback_printed(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Case review_17."""
    with caplog.at_level("INFO"):
        assert knock(line) == (b"", [])
    assert not caplog.records


def test_an_unexpected_failure_behind_the_door_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_manager() -> Any:
        raise AssertionError("it is broken")

    monkeypatch.setattr(edges, "manager", no_manager)
    hello = json.dumps({"token": "TOKEN", "world": "a>b"}).encode()
    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        assert knock(hello) == (b"", [])
    assert caplog.messages == ["an edge by the door has failed: AssertionError: it is broken"]
