"""The slabs that other processes have lent to this one, mapped read-only."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.worlds.core.arrays import view_message
from hoplite_ray.worlds.handshake import frames
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import hear, say
from hoplite_ray.worlds.lending.memory import is_sealed, take_memory
from hoplite_ray.worlds.lending.notice import Notice

Array = np.ndarray[Any, Any]

_ENDED_MAX = 2000  # loans that have ended, in one frame; the rest waits for the next


@dataclass(eq=False)
class _Lent:
    """The slabs that one process has lent to this one, mapped by number."""

    mapped: dict[int, mmap.mmap] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)  # loans that are to be reported
    # Slabs that the lender has given up; unread notices may still be of them.
    spoilt: list[int] = field(default_factory=list)
    came: int = 0  # slabs that have come and were not confirmed
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


class Borrower:
    """All that other processes have lent to this one. `array` is for any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lent: dict[str, _Lent] = {}  # by the lender

    def array(self, notice: Notice) -> Array:
        """Return the array of a notice, read-only; from any thread.

        The loan ends when no array of this process is on it any more.

        Raises:  InvalidArgumentError if its memory was not lent.
        """
        lent = self._lent.get(notice.lender)
        memory = None if lent is None else lent.mapped.get(notice.slab)
        if memory is None or notice.begin + notice.size_bytes > len(memory):
            raise InvalidArgumentError(
                f"{notice.size_bytes} B of memory that was not lent; the sender is at fault"
            )
        root = np.frombuffer(memory, np.uint8, notice.size_bytes, notice.begin)
        # The finalizer may run in any thread, between any two statements.
        weakref.finalize(root, self._give_back, notice.lender, notice.loan).atexit = False
        return view_message(root, notice.dtype, notice.shape)

    def _give_back(self, lender: str, loan: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._note_ended, lender, loan)

    # ---- of the loop

    async def serve(self, sock: socket.socket, lender: str) -> None:
        """Take the slabs that a process lends, until it has gone or this manager ends."""
        before = self._lent.get(lender)  # an earlier connection may have notices that are unread
        lent = _Lent({}) if before is None else _Lent(before.mapped, before.ended, before.spoilt)
        self._lent[lender] = lent
        hearing = asyncio.ensure_future(self._hear_all(sock, lent))
        try:
            while True:
                news = asyncio.ensure_future(lent.has_news.wait())
                await asyncio.wait((news, hearing), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if hearing.done():
                    hearing.result()
                lent.has_news.clear()
                ended = lent.ended[:_ENDED_MAX]
                came, lent.came = lent.came, 0
                await say(sock, ended=ended, has=came)
                del lent.ended[
                    : len(ended)
                ]  # what was not sent yet goes with the next frame, or by the next connection
                if lent.ended:
                    lent.has_news.set()
        finally:
            lent.is_over = True
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def forget(self, peers: set[str]) -> None:
        """Drop the slabs of processes that share no world with this one: all but `peers`."""
        for lender, lent in list(self._lent.items()):
            if lender in peers:
                continue
            for slab in lent.spoilt:
                lent.mapped.pop(slab, None)
            lent.spoilt.clear()
            if lent.is_over:
                del self._lent[lender]

    async def _hear_all(self, sock: socket.socket, lent: _Lent) -> None:
        while True:
            frame = await hear(sock)
            if "gone" in frame:
                lent.mapped.pop(frames.field(frame, "gone", int), None)
                continue
            if "spoilt" in frame:
                lent.spoilt.append(frames.field(frame, "spoilt", int))
                continue
            number = frames.field(frame, "slab", int)
            fd = await take_memory(sock)
            try:
                lent.mapped[number] = _map(fd)
            finally:
                os.close(fd)
            lent.came += 1
            lent.has_news.set()

    def _note_ended(self, lender: str, loan: int) -> None:
        lent = self._lent.get(lender)
        if lent is not None:
            lent.ended.append(loan)
            lent.has_news.set()


def _map(fd: int) -> mmap.mmap:
    if not is_sealed(fd):
        raise RefusedError("nonsense", "memory that could shrink")
    return mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
