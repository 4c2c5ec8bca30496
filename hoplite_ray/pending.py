"""Operations in flight. A thread waits for one or a task awaits it; both use one completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hoplite_ray import _native, process_end  # noqa: F401 - releases native objects at the end
from hoplite_ray.errors import GetTimeoutError, InvalidArgumentError
from hoplite_ray.listener import Listener
from hoplite_ray.progress import SHOWN_AFTER_S, DelayedLine, ProgressLine
from hoplite_ray.values.deadlines import checked_timeout, deadline_in, left_s
from hoplite_ray.values.layout import checked_id, short_name

T = TypeVar("T")

_STEP_S = 0.1  # of one wait: Python handles signals between two waits, so Ctrl-C takes this long
# A client can't tell a node that does not answer from one that has no answer yet.
SILENT_HINT = "its node does not answer (hoplite-ray doctor looks at it)"
FULL_HINT = (
    f"there is no room yet, or {SILENT_HINT}; delete objects, drop received arrays, or raise "
    "arena_bytes or timeout_s"
)
SEAL_HINT = f"{SILENT_HINT}; raise timeout_s"


class Pending(Generic[T]):
    """One operation in flight. A caller that stops waiting for the result cancels the operation."""

    def __init__(
        self,
        listener: Listener,
        request: _native.Request,
        *,
        what: str,
        hint: str,
        decode: Callable[[Any], T],
        object_id: bytes | None = None,
    ) -> None:
        """`object_id` is the object that a get fetches, for the line that shows its progress."""
        self._listener = listener
        self._request = request
        self._what = what  # for error texts: "get of object 7f3a09c1..01000000"
        self._hint = hint  # why it may take so long, and what to do
        self._decode = decode
        self._object_id = object_id
        self._began_s = time.monotonic()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the operation has succeeded or failed; return False after `timeout_s`.

        With 0 it looks whether the node's answer has come, and asks the node for nothing.
        """
        deadline = deadline_in(timeout_s)
        line = DelayedLine(self._line, self._began_s + SHOWN_AFTER_S)
        try:
            while True:
                left = left_s(deadline)
                if self._request.wait(_STEP_S if left is None else min(_STEP_S, left)):
                    return True
                if left == 0:
                    return False
                line.poll()
        finally:
            line.stop()

    @property
    def has_failed(self) -> bool:
        """True if the operation has failed."""
        return self.wait_all([self], 0.0) == 0

    def is_of_same_store(self, other: Pending[Any]) -> bool:
        """Return True if both operations are of one store."""
        return self._listener is other._listener

    def wait_all(self, all_of: Sequence[Pending[Any]], timeout_s: float) -> int | None:
        """Wait until all of these operations of one store have ended.

        Returns: the number of operations when all have succeeded; the place of the first failed one
                 as soon as one fails; None after `timeout_s`.
        """
        return self._listener.wait_all([each._request for each in all_of], timeout_s)

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the operation, and return its result. REQUIRES: not called before.

        Raises:  GetTimeoutError after `timeout_s`, or what the operation failed with. A timeout and
                 Ctrl-C cancel the operation. With 0 the node is asked what it has by now.
        """
        try:
            finished = self.wait(timeout_s)
            if not finished and timeout_s == 0:
                self._listener.await_echo()
                finished = self.wait(0)
        except BaseException:
            self._request.cancel()
            raise
        if not finished:
            raise self.time_out()
        return self._decode(self._request.result())

    async def result_async(self, timeout_s: float | None = None) -> T:
        """Like `result`, but awaitable in any event loop; cancelling it cancels the operation."""
        if self._object_id is None:
            return await self.result_without_line(timeout_s)
        async with _ShownLine(self._line, self._began_s + SHOWN_AFTER_S):
            return await self.result_without_line(timeout_s)

    async def result_without_line(self, timeout_s: float | None) -> T:
        """Like `result_async`, but without a line that shows the progress."""
        try:
            limit_s = checked_timeout(timeout_s)
            if limit_s == 0:  # a timeout of asyncio would end before the answer comes
                return await asyncio.to_thread(Pending.result, self, limit_s)
            async with asyncio.timeout(limit_s):
                await self._wait_ended()
        except GetTimeoutError:
            raise
        except TimeoutError:
            raise self.time_out() from None
        except BaseException:
            self._request.cancel()
            raise
        return self._decode(self._request.result())

    def add_end_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the operation has ended, on a thread of the store."""
        self._listener.add_end_callback(self._request, callback)

    def cancel(self) -> None:
        """Cancel the operation; a waiting `result` raises RequestCancelledError."""
        self._request.cancel()

    async def _wait_ended(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def announce() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(ended.set)

        self._listener.add_end_callback(self._request, announce)
        await ended.wait()

    def _line(self) -> ProgressLine | None:
        if self._object_id is None:
            return None
        return self._listener.show_progress(self._what, [self._object_id])

    def time_out(self) -> GetTimeoutError:
        """Cancel the operation; return the error to raise, which tells how long it has waited."""
        self._request.cancel()
        waited_s = round(time.monotonic() - self._began_s, 2)
        shortage = self._listener.shortage()
        hint = f"its node is cut off, {shortage}" if shortage else self._hint
        return GetTimeoutError(f"{self._what} has not ended after {waited_s} s: {hint}")


@dataclass(frozen=True, slots=True)
class ReceivedObject:
    """A received object: its value, the incarnation of its bytes, and the bytes of its layout."""

    value: Any
    incarnation: int
    layout: bytes


class PendingPut(Pending[None]):
    """A put in flight. A large one gets its range first, is then written, and then sealed."""

    def __init__(
        self,
        listener: Listener,
        client: _native.Client,
        request: _native.Request,
        *,
        what: str,
        size_bytes: int,
        data: Sequence[memoryview],
    ) -> None:
        super().__init__(
            listener,
            request,
            what=what,
            hint=FULL_HINT,
            decode=lambda nothing: None,
        )
        self._client = client
        self._is_large = size_bytes > _native.INLINE_BYTES_MAX
        self._data = data

    def result(self, timeout_s: float | None = None) -> None:
        """Wait for memory, write the bytes, and wait for the seal; each wait takes `timeout_s`."""
        super().result(timeout_s)
        if self._is_large:
            self._client.write(self._request, self._data)  # Ctrl-C cancels the put
            self._hint = SEAL_HINT
            super().result(timeout_s)

    async def result_async(self, timeout_s: float | None = None) -> None:
        """Like `result`, but awaitable; another thread writes the bytes."""
        await super().result_async(timeout_s)
        if not self._is_large:
            return
        write = asyncio.to_thread(self._client.write, self._request, self._data)
        written = asyncio.ensure_future(write)
        try:
            await asyncio.shield(written)
        except asyncio.CancelledError:
            self._request.cancel()  # the thread stops at its next part, and releases the range
            written.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise
        self._hint = SEAL_HINT
        await super().result_async(timeout_s)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A committed reduce: the id of its result, and the places of its sources by arrival."""

    target: bytes
    members: tuple[int, ...]


class PendingReduce(Pending[Reduction]):
    """A reduce in flight, which takes its sources in the order of their confirmation."""

    def __init__(
        self, listener: Listener, client: _native.Client, target: bytes, request: _native.Request
    ) -> None:
        super().__init__(
            listener,
            request,
            what=f"reduce into object {short_name(target)}",
            hint=(
                f"too few of its sources are there yet, or {SILENT_HINT}; "
                "raise timeout_s or lower count"
            ),
            decode=lambda members: Reduction(target, tuple(members)),
        )
        self._client = client
        self._target = target

    def confirm(self, index: int, object_id: bytes, *, incarnation: int = 0) -> None:
        """Tell that source `index` is `object_id` and exists. Sources go in in this order."""
        self._client.reduce_source(self._target, index, checked_id(object_id), incarnation)

    def await_source(self, index: int, object_id: bytes) -> None:
        """Tell that source `index` is `object_id`. It goes in when a node has it."""
        self._client.reduce_source(self._target, index, checked_id(object_id), confirmed=False)

    def fail(self, index: int) -> None:
        """Tell that source `index` will never come. The other sources go in without it."""
        self._client.reduce_source_failed(self._target, index)


def results(pending: Sequence[Pending[T]], timeout_s: float | None = None) -> list[T]:
    """Wait for several operations of one store, and return their results in this order.

    Raises:  as `Pending.result`, of the first that fails; InvalidArgumentError if the operations
             are of several stores. The other operations are then cancelled.
    """
    try:
        failed = wait_for_failure(pending, timeout_s)
        if failed is not None:
            pending[failed].result()
        return [each.result() for each in pending]
    except BaseException:
        for each in pending:
            each.cancel()
        raise


def wait_for_failure(pending: Sequence[Pending[Any]], timeout_s: float | None) -> int | None:
    """Wait for several operations of one store, until one fails or all have ended.

    Returns: the place of the failed operation; None if all have succeeded.
    Raises:  GetTimeoutError after `timeout_s`; InvalidArgumentError if the operations are of
             several stores.
    """
    if any(each._listener is not pending[0]._listener for each in pending):
        raise InvalidArgumentError(
            "these requests are of several stores; wait for those of one store at a time"
        )
    deadline = deadline_in(timeout_s)
    if timeout_s == 0 and pending:
        pending[0]._listener.await_echo()
    line = DelayedLine(lambda: _line_of(pending), time.monotonic() + SHOWN_AFTER_S)
    try:
        while pending:
            left = left_s(deadline)
            ended = pending[0].wait_all(pending, _STEP_S if left is None else min(_STEP_S, left))
            if ended is not None:
                return ended if ended < len(pending) else None
            if left == 0:
                late = next((each for each in pending if not each.wait(0)), None)
                if late is not None:
                    raise late.time_out()
            line.poll()
        return None
    finally:
        line.stop()


async def results_async(pending: Sequence[Pending[T]], timeout_s: float | None = None) -> list[T]:
    """Like `results`, but awaitable; cancelling it cancels all operations."""
    if timeout_s == 0:
        try:
            return await asyncio.to_thread(results, pending, timeout_s)
        except asyncio.CancelledError:
            for each in pending:
                each.cancel()
            raise
    tasks = [asyncio.ensure_future(each.result_without_line(timeout_s)) for each in pending]
    try:
        async with show_progress(pending):
            return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def show_progress(pending: Sequence[Pending[Any]]) -> AbstractAsyncContextManager[None]:
    """Show one progress line in the body of an `async with` that awaits these operations."""
    return _ShownLine(lambda: _line_of(pending), time.monotonic() + SHOWN_AFTER_S)


def _line_of(pending: Sequence[Pending[Any]]) -> ProgressLine | None:
    """Return one progress line for several gets; None if there are none."""
    if not pending:
        return None
    object_ids = [each._object_id for each in pending if each._object_id is not None]
    what = f"get of {len(pending)} objects"
    return pending[0]._listener.show_progress(
        what, object_ids, lambda: sum(each.wait(0) for each in pending)
    )


class _ShownLine:
    """A progress line in the body of an `async with`, like that of `Pending.wait`."""

    def __init__(self, begin: Callable[[], ProgressLine | None], at_s: float) -> None:
        self._begin = begin
        self._at_s = at_s
        self._line: ProgressLine | None = None

    async def __aenter__(self) -> None:
        until_s = max(0.0, self._at_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(until_s, self._show)

    async def __aexit__(self, *how: object) -> None:
        self._timer.cancel()
        if self._line is not None:
            await asyncio.to_thread(self._line.stop)  # the line's thread may wait for its node

    def _show(self) -> None:
        self._line = self._begin()
