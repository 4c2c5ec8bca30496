"""Streams: the leaves of a value, each as soon as its bytes are on this node (decision 49)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import GetTimeoutError, NodeLostError, ObjectLostError
from hoplite_ray.pending import Pending
from hoplite_ray.streams.cursor import LeafCursor, Path
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.layout import Layout, short_name

_TRIES = 3  # of a stream whose node dies before the first leaf was given
_STALE_S = 0.02  # between looks for the bytes of a later attempt


@dataclass(frozen=True, slots=True)
class Source:
    """An object to stream, and this process's client of its node."""

    client: StoreClient
    object_id: bytes
    exists: bool = False  # True if it was put
    incarnation: int = 0  # of the oldest attempt that the caller takes


Found: TypeAlias = Source | Encoded  # Encoded: a small value, of which the handle has the bytes


class Finder(Protocol):
    """Finds the object of a stream, at first and after the death of its node."""

    def find(self, deadline: float | None) -> Found:
        """Return the object, by `deadline`."""

    def find_async(self, deadline: float | None) -> Coroutine[Any, Any, Found]:
        """Like `find`, but awaitable."""

    def explain(self, error: ObjectLostError) -> ObjectLostError:
        """Return the error to raise in place of this one."""


@dataclass(slots=True)
class _Reading:
    """One object on its way: the get that keeps it coming, and the get of its next leaf."""

    source: Source
    whole: Pending[Any]
    next: Pending[Any] | None
    held: Any = None  # the Fetched whose memory the leaves have
    memory: memoryview = field(default_factory=lambda: memoryview(b""))
    cursor: LeafCursor | None = None

    @classmethod
    def begin(cls, source: Source) -> Self:
        whole = source.client.begin_get(source.object_id, exists=source.exists)
        first = source.client.begin_get_early(source.object_id, 0, exists=source.exists)
        return cls(source, whole, first)

    def ask(self) -> None:
        """Ask for the next leaf, which the node knows to have been put; or end, after the last."""
        upto_bytes = 0 if self.cursor is None else self.cursor.upto_bytes
        if upto_bytes is None:
            return self.end()
        exists = self.source.exists or self.cursor is not None
        self.next = self.source.client.begin_get_early(
            self.source.object_id, upto_bytes, exists=exists
        )

    def end(self) -> None:
        """Take both gets back."""
        self.whole.cancel()
        if self.next is not None:
            self.next.cancel()
        self.next = None

    def take(self, fetched: Any) -> list[tuple[Path, Any]]:
        """Return the leaves that have come. The caller asks for the next one.

        Raises:  ObjectLostError if the bytes are in another place than those of leaves before.
        """
        held = self.held
        is_same = held is not None and (held.place, held.incarnation) == (
            *(fetched.place, fetched.incarnation),
        )
        if not is_same:
            if self.cursor is not None and self.cursor.taken_count:
                raise ObjectLostError(
                    f"object {short_name(self.source.object_id)} was dropped and has come again "
                    f"after {self.cursor.taken_count} of {self.cursor.leaf_count} leaves were "
                    "read; those stay valid, stream it again for the others"
                )
            self.held, self.memory = fetched, memoryview(fetched)
            self.cursor = LeafCursor(Layout.from_bytes(fetched.layout))
        assert self.cursor is not None
        return self.cursor.take(self.memory, fetched.ready_bytes)


class LeafStream:
    """The leaves of one value in the order of their bytes: `for path, leaf in stream`.

    It is an async iterator, too: `async for path, leaf in stream`. One caller uses it at a time.
    Leaving it early stops the transfer, unless another reader waits for it; `close` does so at
    once. Leaves that were given stay valid.
    """

    def __init__(self, finder: Finder, timeout_s: float | None) -> None:
        """Begin at the first leaf; programs call `stream`."""
        deadline_in(timeout_s)  # refuses what is no limit
        self._finder = finder
        self._timeout_s = timeout_s
        self._leaves: deque[tuple[Path, Any]] = deque()
        self._reading: _Reading | None = None
        self._is_over = False
        self._tries_left = _TRIES
        self._pause_s = 0.0

    def close(self) -> None:
        """Stop the transfer, and give no leaf any more. Idempotent."""
        self._is_over = True
        self._leaves.clear()
        self._drop_reading()

    def __iter__(self) -> LeafStream:
        return self

    def __next__(self) -> tuple[Path, Any]:
        deadline = deadline_in(self._timeout_s)
        while not self._leaves and not self._is_over:
            try:
                reading = self._reading
                if self._pause_s:
                    time.sleep(self._pause_s)
                    self._pause_s = 0.0
                elif reading is None:
                    self._begin(self._finder.find(deadline))
                else:
                    assert reading.next is not None
                    self._take(reading.next.result(left_s(deadline)))
            except BaseException as error:
                self._handle_failure(error)
        if not self._leaves:
            raise StopIteration
        return self._leaves.popleft()

    def __aiter__(self) -> LeafStream:
        return self

    async def __anext__(self) -> tuple[Path, Any]:
        deadline = deadline_in(self._timeout_s)
        while not self._leaves and not self._is_over:
            try:
                reading = self._reading
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = 0.0
                elif reading is None:
                    self._begin(await self._finder.find_async(deadline))
                else:
                    assert reading.next is not None
                    self._take(await reading.next.result_async(left_s(deadline)))
            except BaseException as error:
                self._handle_failure(error)
        if not self._leaves:
            raise StopAsyncIteration
        return self._leaves.popleft()

    def __enter__(self) -> LeafStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _begin(self, found: Found) -> None:
        if isinstance(found, Source):
            self._reading = _Reading.begin(found)
            return
        memory = memoryview(bytearray().join(found.data))  # the caller's own
        self._leaves.extend(LeafCursor(found.layout).take(memory, memory.nbytes))
        self._is_over = True

    def _take(self, fetched: Any) -> None:
        reading = self._reading
        assert reading is not None
        if fetched.incarnation < reading.source.incarnation:  # another node has not heard yet
            self._drop_reading()
            self._pause_s = _STALE_S
            return
        self._leaves.extend(reading.take(fetched))
        reading.ask()
        if reading.next is None:
            self._is_over = True
            self._reading = None

    def _handle_failure(self, error: BaseException) -> None:
        """Return if the stream goes on by itself.

        Raises:  `error`. After a timeout and after a cancelled wait the caller may go on.
        """
        reading = self._reading
        has_given = (
            reading is not None and reading.cursor is not None and reading.cursor.taken_count > 0
        )
        if isinstance(error, NodeLostError) and not has_given:
            self._tries_left -= 1
            self._drop_reading()
            if self._tries_left:
                return
        is_wait_over = isinstance(error, GetTimeoutError) or not isinstance(error, Exception)
        if not is_wait_over:
            self.close()
            if isinstance(error, ObjectLostError):
                raise self._finder.explain(error) from None
        elif reading is not None and reading.next is not None:
            reading.ask()
        raise error

    def _drop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.end()


class StoreFinder:
    """The object of an id, for a stream of `Store`."""

    def __init__(self, client: StoreClient, object_id: bytes) -> None:
        self._source = Source(client, object_id)

    def find(self, deadline: float | None) -> Found:
        return self._source

    async def find_async(self, deadline: float | None) -> Found:
        return self._source

    def explain(self, error: ObjectLostError) -> ObjectLostError:
        return error
