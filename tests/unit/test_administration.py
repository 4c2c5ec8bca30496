"""What a node says of itself: its memory; a drain, by counters of some milliseconds ago."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient
from hoplite_ray.control.service.administration import Administration

SOME = 64 << 20  # bytes: far more than anything else here takes
Counted = tuple[int, int, int]  # turns, whether it drains, what it alone holds


class Native:
    """Publishes what it is told to, one look after the other, and begins to when it is woken."""

    def __init__(self, *published: Counted) -> None:
        self.left = list(published)
        self._is_awake = False

    def stats(self) -> dict[str, int]:
        counted = self.left.pop(0) if self._is_awake and len(self.left) > 1 else self.left[0]
        return dict(zip(("turns", "draining", "sole_copies"), counted, strict=True))

    def drain(self) -> None:
        self._is_awake = True

    def objects(self, limit: int = 1000, object_ids: Sequence[bytes] = ()) -> list[dict[str, Any]]:
        return [{"object_id": b"late", "size_bytes": 1, "sole": True}]

    def transfers(self, limit: int = 1000) -> list[dict[str, Any]]:
        raise AssertionError

    def moments(self, object_id: bytes, digits: int) -> dict[str, Any]:
        raise AssertionError


def administration(native: Native) -> Administration:
    return Administration(
        native,
        directory=Path("/nowhere"),
        arena_bytes=1,
        options={},
        calls=ControlClient(b"s" * 16),
    )


def drained(native: Native, timeout_s: float) -> pb.DrainReply:
    async def drain() -> pb.DrainReply:
        return await administration(native).drain(timeout_s)

    return asyncio.run(drain())


def test_a_nodes_memory_is_its_heap_and_not_its_arena() -> None:
    async def counters() -> dict[str, int]:
        return administration(Native((7, 1, 0))).counters()

    before = asyncio.run(counters())
    assert before["turns"] == 7
    shared = mmap.mmap(-1, SOME)  # as an arena is
    shared.write(b"x" * SOME)
    with_arena = asyncio.run(counters())["memory_bytes"]
    heap = b"y" * SOME
    with_heap = asyncio.run(counters())["memory_bytes"]
    assert with_arena - before["memory_bytes"] < SOME / 2 < with_heap - with_arena
    assert len(heap) == len(shared)


def test_a_drain_ends_by_what_was_counted_after_it_was_asked_for() -> None:
    native = Native((7, 1, 0), (7, 1, 0), (8, 1, 1), (9, 1, 0))
    assert drained(native, 10.0).drained
    assert native.left == [(9, 1, 0)]


def test_what_was_put_just_before_is_told_though_there_is_no_time() -> None:
    reply = drained(Native((7, 1, 0), (7, 1, 0), (8, 1, 1)), 0.0)
    assert (reply.drained, reply.sole_copies) == (False, 1)
    assert [each.object_id for each in reply.left] == [b"late"]
