"""The slabs of this process: memory that processes of this machine may map and read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import mmap
import os
import socket
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hoplite_ray.errors import InvalidArgumentError, WorldError, WrongTypeError
from hoplite_ray.worlds.core.checks import check_whole
from hoplite_ray.worlds.core.waiting import Turn
from hoplite_ray.worlds.handshake import frames
from hoplite_ray.worlds.handshake.frames import hear, say
from hoplite_ray.worlds.lending.memory import sealed_memory
from hoplite_ray.worlds.lending.notice import NOTICE

Array = np.ndarray[Any, Any]

LENT_BYTES_MIN = 64 << 10  # below it two copies cost less than a notice and its answer
_SLAB_BYTES_MIN = 64 << 10
_FREE_BYTES_MAX = 1 << 30  # of slabs that are kept for arrays to come


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Slab:
    number: int
    fd: int
    memory: mmap.mmap
    loans: set[int] = field(default_factory=set)
    is_used: bool = False  # True if an array of this process is on it
    is_spoilt: bool = False  # True if a process may read it for ever

    @property
    def size(self) -> int:
        return len(self.memory)


class Gift(Turn):
    """A slab on its way to a process, for a world. `trouble` says why it has not arrived."""

    trouble = ""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.world = world


Dial = Callable[[], Awaitable[socket.socket]]


@dataclass(eq=False)
class _Link:
    """The connection to one process, as its lender: what is to be sent by it."""

    gifts: deque[tuple[_Slab, Gift]] = field(default_factory=deque)
    given: deque[tuple[_Slab, Gift]] = field(default_factory=deque)  # sent, and not confirmed
    gone: deque[tuple[int, str]] = field(default_factory=deque)
    has_work: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Lender:
    """The slabs of one process. For any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()  # of all below but the deque
        self._numbers = itertools.count(1)
        self._slabs: dict[int, _Slab] = {}
        self._free: defaultdict[int, list[_Slab]] = defaultdict(list)
        self._free_bytes = 0
        self._roots: dict[int, tuple[weakref.ref[Array], _Slab]] = {}
        self._loans: dict[int, tuple[_Slab, int, str]] = {}  # the slab, the world, and the borrower
        self._links: dict[str, _Link] = {}  # by the other process; of the loop
        self._given: set[tuple[str, int]] = set()  # the processes and the slabs that they have
        self._gifts: set[Gift] = set()  # that a send waits for
        self._dropped: deque[tuple[int, _Slab]] = deque()  # by the finalizers of arrays

    def alloc(self, shape: Sequence[int] | int, dtype: Any) -> Array:
        """Return an array whose elements are undefined, like `numpy.empty`.

        Raises:  WrongTypeError for objects; WorldError if there is no memory.
        """
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise WrongTypeError(f"dtype={dtype!r:.60} is none ({error}); give numpy's") from error
        if kind.hasobject:
            raise WrongTypeError(
                f"{kind} has Python objects, which no other process can read; give one without"
            )
        shape = _check_shape(shape)
        size = kind.itemsize * math.prod(shape)
        if min(shape, default=0) < 0:
            raise InvalidArgumentError(
                f"shape={shape} has a negative dimension; give sizes from 0 on"
            )
        with self._lock:
            self._collect()
            slab = self._take(max(_SLAB_BYTES_MIN, 1 << (size - 1).bit_length() if size else 0))
            root = np.frombuffer(slab.memory, np.uint8)
            self._roots[id(root)] = (weakref.ref(root), slab)
        # The finalizer may run in any thread, between any two statements: it takes no lock.
        weakref.finalize(root, self._dropped.append, (id(root), slab)).atexit = False
        array: Array = root[:size].view(kind).reshape(shape)
        return array

    def is_ours(self, array: object) -> bool:
        """Return True if an array is on one of the slabs."""
        return bool(self._roots) and isinstance(array, np.ndarray) and self._root(array) is not None

    def lend(self, array: Array, world: int, peer: str) -> bytes:
        """Lend an array to one process in a world; returns the notice.

        REQUIRES: `is_ours(array)`, and the array is contiguous.
        """
        found = self._root(array)
        assert found is not None
        root, slab = found
        begin = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        with self._lock:
            loan = next(self._numbers)
            slab.loans.add(loan)
            self._loans[loan] = (slab, world, peer)
        return NOTICE.pack(slab.number, begin, array.nbytes, loan)

    def take_back(self, notice: bytes) -> None:
        """End the loan of a notice that was never sent."""
        with self._lock:
            if (loan := NOTICE.unpack(notice)[-1]) in self._loans:
                self._end(loan, is_known=True)

    def give(self, array: Array, world: int, peer: str, dial: Dial) -> Gift | None:
        """Give an array's slab to a process, over a connection that `dial` makes if there is none.

        REQUIRES: `is_ours(array)`.

        Returns: None if that process has the slab.
        """
        found = self._root(array)
        assert found is not None
        slab = found[1]
        if (peer, slab.number) in self._given:
            return None
        gift = Gift(world)
        with self._lock:
            self._gifts.add(gift)
        try:
            self._loop.call_soon_threadsafe(self._begin_to_give, slab, peer, dial, gift)
        except RuntimeError:
            self._end_gift(gift, "the manager of worlds was closed")
        return gift

    def seal(self, array: Array) -> None:
        """Make the array read-only, and all new views of its memory."""
        found = self._root(array)
        if found is not None:
            found[0].flags.writeable = False
        array.flags.writeable = False

    def forget(self, world: int) -> None:
        """End a world's loans and gifts. Its loans that were not reported may be read for ever."""
        with self._lock:
            for loan in [each for each, (_, of, _) in self._loans.items() if of == world]:
                self._end(loan, is_known=False)
            gifts = [gift for gift in self._gifts if gift.world == world]
        for gift in gifts:
            self._end_gift(gift, "its world has ended")

    def counts(self) -> tuple[int, int, int]:
        """Return how many slabs there are, how many of them are free, and how many loans."""
        with self._lock:
            self._collect()
            return len(self._slabs), sum(map(len, self._free.values())), len(self._loans)

    def close(self) -> None:
        """Give back the memory of all slabs that no array is on."""
        with self._lock:
            for loan in list(self._loans):
                self._end(loan, is_known=False)
            self._collect()
            for slab in [each for slabs in self._free.values() for each in slabs]:
                self._give_back(slab)
            self._free.clear()

    # ---- of the loop

    def _begin_to_give(self, slab: _Slab, peer: str, dial: Dial, gift: Gift) -> None:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
            link.task = self._loop.create_task(self._live(peer, link, dial))
        link.gifts.append((slab, gift))
        link.has_work.set()

    async def _live(self, peer: str, link: _Link, dial: Dial) -> None:
        trouble = "its process has gone"
        hearing: asyncio.Future[None] | None = None
        try:
            with await dial() as sock:
                hearing = asyncio.ensure_future(self._hear_all(sock, peer, link))
                while True:
                    working = asyncio.ensure_future(link.has_work.wait())
                    both = (working, hearing)
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    working.cancel()
                    if hearing.done():
                        hearing.result()
                    link.has_work.clear()
                    while link.gone:
                        number, word = link.gone.popleft()
                        await say(sock, **{word: number})
                    while link.gifts:
                        slab, gift = link.gifts.popleft()
                        link.given.append((slab, gift))
                        await self._give(sock, slab)
        except (OSError, WorldError) as error:
            trouble = str(error) or type(error).__name__
        finally:
            if hearing is not None:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
            del self._links[peer]
            self._given = {each for each in self._given if each[0] != peer}
            for _, gift in (*link.given, *link.gifts):
                self._end_gift(gift, trouble)

    async def _give(self, sock: socket.socket, slab: _Slab) -> None:
        await say(sock, slab=slab.number)
        fd = os.open(
            f"/proc/self/fd/{slab.fd}", os.O_RDONLY
        )  # read-only: no other process may write to it
        try:
            socket.send_fds(sock, [b"m"], [fd])
        finally:
            os.close(fd)

    async def _hear_all(self, sock: socket.socket, peer: str, link: _Link) -> None:
        while True:
            frame = await hear(sock)
            with self._lock:
                for loan in frames.field(frame, "ended", list):
                    if isinstance(loan, int) and self._loans.get(loan, ("",))[-1] == peer:
                        self._end(loan, is_known=True)
            for _ in range(min(frames.field(frame, "has", int), len(link.given))):
                slab, gift = link.given.popleft()
                self._given.add((peer, slab.number))
                self._end_gift(gift)

    def _end_gift(self, gift: Gift, trouble: str = "") -> None:
        with self._lock:
            self._gifts.discard(gift)
        gift.trouble = trouble
        gift.end()

    def _say_gone(self, slab: _Slab) -> None:
        for peer, link in self._links.items():
            if (peer, slab.number) in self._given:
                self._given.discard((peer, slab.number))
                link.gone.append((slab.number, "spoilt" if slab.is_spoilt else "gone"))
                link.has_work.set()

    # ---- with the lock

    def _root(self, array: Array) -> tuple[Array, _Slab] | None:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        found = self._roots.get(id(root))
        if found is None or found[0]() is not root:
            return None
        return root, found[1]

    def _take(self, size: int) -> _Slab:
        if self._free[size]:
            slab = self._free[size].pop()
            self._free_bytes -= size
        else:
            try:
                fd = sealed_memory(size)
                memory = mmap.mmap(fd, size)
            except (OSError, OverflowError) as error:
                raise WorldError(
                    f"there are no {size} B of memory to share: {error}; let go of arrays"
                ) from error
            slab = _Slab(next(self._numbers), fd, memory)
            weakref.finalize(slab, os.close, fd)
            self._slabs[slab.number] = slab
        slab.is_used = True
        return slab

    def _collect(self) -> None:
        while self._dropped:
            root, slab = self._dropped.popleft()
            if root in self._roots and self._roots[root][1] is slab:
                del self._roots[root]
            slab.is_used = False
            self._settle(slab)

    def _end(self, loan: int, *, is_known: bool) -> None:
        slab = self._loans.pop(loan)[0]
        slab.loans.discard(loan)
        slab.is_spoilt |= not is_known
        self._settle(slab)

    def _settle(self, slab: _Slab) -> None:
        if slab.is_used or slab.loans or slab.number not in self._slabs:
            return
        if slab.is_spoilt or self._free_bytes + slab.size > _FREE_BYTES_MAX:
            self._give_back(slab)
            return
        self._free[slab.size].append(slab)
        self._free_bytes += slab.size

    def _give_back(self, slab: _Slab) -> None:
        del self._slabs[slab.number]
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all links
            self._loop.call_soon_threadsafe(self._say_gone, slab)


def _check_shape(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = (shape,)
    return tuple(check_whole("shape", each) for each in sizes)
