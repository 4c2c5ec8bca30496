"""A member of a world of two, for world_death.py: in a process of its own, or in the benchmark's.

All of them use one monotonic clock, so that a time is the same moment for all.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from ranks import serve

from hoplite_ray import worlds

JOIN_S = 30.0
_NO_HUGE_PAGES, _TOUCH_ALL = 15, 23  # MADV_NOHUGEPAGE, MADV_POPULATE_WRITE


@dataclass(frozen=True, slots=True)
class Heard:
    """The cause of the other member's end, and the time when this member was told."""

    at_s: float
    cause: str


class Member:
    """One end of a world. Every method can be told to another process (ranks.py)."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self._manager: worlds.WorldManager | None = None
        self._world: worlds.World | None = None
        self._memory: mmap.mmap | None = None
        self._plain: socket.socket | None = None

    @property
    def world(self) -> worlds.World:
        assert self._world is not None, "it has not joined"
        return self._world

    def join(
        self, *, rank: int, meet_at: str, transport: str = "auto", dead_after_s: float | None = 3.0
    ) -> str:
        """Join the world; returns what carries its bytes."""
        self._manager = worlds.WorldManager(dead_after_s=dead_after_s)
        self._world = self.runner.run(
            self._manager.join_async(
                "deaths",
                rank=rank,
                size=2,
                rendezvous=meet_at,
                transport=transport,
                timeout_s=JOIN_S,
            )
        )
        return self._world.transports[self.other]

    @property
    def other(self) -> int:
        return 1 - self.world.rank

    def close(self) -> None:
        """Close all worlds; another one can be joined afterwards."""
        if self._manager is not None:
            self._manager.close()
        self._manager = self._world = None

    def grow(self, *, size_bytes: int) -> None:
        """Allocate `size_bytes` of memory, in pages of 4 KiB that are all touched."""
        self._memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(_NO_HUGE_PAGES)
        self._memory.madvise(_TOUCH_ALL)

    def fork(self) -> int:
        """Make a child that holds all descriptors and does nothing; returns its id."""
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        return pid

    def connect(self, *, port: int) -> None:
        """Have an ordinary connection as well, as any other program would."""
        self._plain = socket.create_connection(("127.0.0.1", port))

    async def end(self, *, pending: bool) -> Heard:
        """Wait for the world's end: in an operation, or for the event alone."""
        try:
            if pending:
                await self.world.recv_async(src=self.other)
                raise RuntimeError("a message came that nobody has sent")
            async for event in self.world.events():
                if event.kind is worlds.EventKind.BROKEN:
                    return Heard(time.monotonic(), str(event.cause))
        except worlds.WorldBrokenError as error:
            return Heard(time.monotonic(), str(error.cause))
        raise RuntimeError("the world's events ended without its end")

    def hear(self, *, pending: bool) -> dict[str, Any]:
        """Like `end`, for a call from another process."""
        return asdict(self.runner.run(self.end(pending=pending)))

    def kinds_within(self, *, seconds: float) -> list[tuple[str, float]]:
        """All events of so many seconds, with their times."""
        return self.runner.run(self._kinds_within(seconds))

    async def _kinds_within(self, seconds: float) -> list[tuple[str, float]]:
        kinds: list[tuple[str, float]] = []

        async def note() -> None:
            async for event in self.world.events():
                kinds.append((event.kind.name, time.monotonic()))  # noqa: PERF401

        with suppress(TimeoutError):
            await asyncio.wait_for(note(), seconds)
        return kinds

    def give(self, *, count: int, size_bytes: int) -> None:
        """Send `count` messages, each filled with its number."""
        for number in range(count):
            array = np.full(size_bytes, number % 251, np.uint8)
            self.world.send(array, dst=self.other)

    def take(self, *, count: int, size_bytes: int, after_s: float = 0.0) -> None:
        """Wait `after_s`, then receive all messages and check every byte."""
        time.sleep(after_s)
        into = np.empty(size_bytes, np.uint8)
        for number in range(count):
            self.world.recv(into, src=self.other)
            if not (into == number % 251).all():
                raise RuntimeError(f"message {number} of {count} is not what was sent")

    def hold_gil(self, *, seconds: float) -> None:
        """Hold the GIL, so that no Python runs in this process for `seconds`."""
        ctypes.PyDLL(None).usleep(ctypes.c_uint(round(seconds * 1e6)))


def play() -> None:
    """Be a member in a process of its own."""
    serve(Member())
