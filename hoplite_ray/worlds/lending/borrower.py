"""What other processes have lent to this one: their slabs, mapped to be read."""

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
from hoplite_ray.worlds.core.arrays import fresh
from hoplite_ray.worlds.handshake import frames
from hoplite_ray.worlds.handshake.errors import RefusedError
from hoplite_ray.worlds.handshake.frames import hear, say
from hoplite_ray.worlds.lending.memory import is_sealed, take_memory
from hoplite_ray.worlds.lending.notice import Notice

Array = np.ndarray[Any, Any]

_ENDED_MAX = 2000  # loans in one frame


@dataclass(eq=False)
class _Lent:
    """What one process has lent to this one."""

    mapped: dict[int, mmap.mmap] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)  # loans; to be told
    spoilt: list[int] = field(default_factory=list)  # unread notices may still be of them
    came: int = 0  # slabs that are to be confirmed
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


class Borrower:
    """What others have lent to one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lent: dict[str, _Lent] = {}  # by the lender

    def array(self, notice: Notice) -> Array:
        """Return what a notice is of, read-only; from any thread.

        It is given back when no array is on it any more.
        Raises:  InvalidArgumentError if it was not lent.
        """
        lent = self._lent.get(notice.lender)
        memory = None if lent is None else lent.mapped.get(notice.slab)
        if memory is None or notice.begin + notice.size_bytes > len(memory):
            raise InvalidArgumentError(
                f"{notice.size_bytes} B of memory that was not lent; the sender is at fault"
            )
        root = np.frombuffer(memory, np.uint8, notice.size_bytes, notice.begin)
        # It may run in any thread, amid anything.
        weakref.finalize(root, self._give_back, notice.lender, notice.loan).atexit = False
        return fresh(root, notice.dtype, notice.shape)

    def _give_back(self, lender: str, loan: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._note_ended, lender, loan)

    # ---- of the loop

    async def serve(self, sock: socket.socket, lender: str) -> None:
        """Take what a process lends, until that has gone or this manager ends."""
        before = self._lent.get(lender)  # of another connection, with notices of it unread
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
                del lent.ended[: len(ended)]  # only what is said: the rest is for what comes after
                if lent.ended:
                    lent.has_news.set()
        finally:
            lent.is_over = True
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def forget(self, peers: set[str]) -> None:
        """A world is over; with all but these processes it was the last one."""
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
                lent.mapped[number] = _mapped(fd)
            finally:
                os.close(fd)
            lent.came += 1
            lent.has_news.set()

    def _note_ended(self, lender: str, loan: int) -> None:
        lent = self._lent.get(lender)
        if lent is not None:
            lent.ended.append(loan)
            lent.has_news.set()


def _mapped(fd: int) -> mmap.mmap:
    if not is_sealed(fd):
        raise RefusedError("nonsense", "memory that could shrink")
    return mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
