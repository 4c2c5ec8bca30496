"""Watches: each new version of keys with a prefix, once and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Literal

from hoplite_ray.base.threads import run_in_thread
from hoplite_ray.errors import (
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    VersionDroppedError,
)
from hoplite_ray.plugin.tables.follower import Follower
from hoplite_ray.tables.state import Change
from hoplite_ray.tables.versions import INDEX_BITS
from hoplite_ray.values.deadlines import deadline_in, left_s

OnGap = Literal["raise", "latest"]

_CHANGES_MAX = 16_384  # that wait for one watcher, of some 300 bytes; more are a gap


class Watch:
    """New versions from the moment when the watch was made: `for` blocks, `async for` awaits.

    Each version comes once, and versions come in the order of the table. Any thread and any event
    loop may use it; each version goes to one of the callers that wait. The watch ends with `close`,
    with the error that it raises, or when no reference to it is left.

    Example:

        table = hop.Table("watched")
        with table.watch("weights/") as changes:
            table.put("weights/actor", np.ones(3))
            assert changes.next(timeout_s=60).key == "weights/actor"
    """

    def __init__(self, follower: Follower, prefix: str, since: int | None, on_gap: OnGap) -> None:
        """Begin to watch; programs call `Table.watch`."""
        if on_gap not in ("raise", "latest"):
            raise InvalidArgumentError(f"on_gap is {on_gap!r}; it takes 'raise' or 'latest'")
        self._follower = follower
        self._prefix = prefix
        self._on_gap = on_gap
        # All below is guarded by the follower's lock.
        self._last = since or 0  # the number of the last version that is not wanted any more
        self._first: int | None = None  # the slot after which versions are offered
        self._waiting: deque[Change] = deque()
        self._arrivals: set[Future[None]] = set()  # of callers that wait
        self._has_gap = False  # True if versions after `_last` were missed
        self._past: Future[None] | None = None  # the read of the versions up to `_first`
        self._has_past = since is None  # True if that read has ended
        self._error: HopliteError | None = None
        self._is_over = False
        self._ready = follower.subscribe(self)

    def next(self, *, timeout_s: float | None = None) -> Change | None:
        """Wait for the next version.

        Args:    timeout_s: seconds to wait; None waits without a limit.
        Returns: the version and its key; None after `close`.
        Raises:  GetTimeoutError; VersionDroppedError if versions were missed, except with
                 `on_gap="latest"`; ControlError.
        Example:

            table = hop.Table("next")
            with table.watch() as changes:
                table.remove("nothing")
                assert changes.next(timeout_s=60).version.is_removal
        """
        deadline = deadline_in(timeout_s)
        try:
            while isinstance(found := self._take(), Future):
                try:
                    found.result(left_s(deadline))
                finally:
                    self._leave(found)
        except TimeoutError as error:
            raise self._late_error(timeout_s) from error
        return found

    async def next_async(self, *, timeout_s: float | None = None) -> Change | None:
        """Like `next`, but awaitable; cancelling it loses no version."""
        deadline = deadline_in(timeout_s)
        try:
            async with asyncio.timeout(left_s(deadline)):
                while isinstance(found := self._take(), Future):
                    try:
                        await asyncio.wrap_future(found)
                    finally:
                        self._leave(found)
        except TimeoutError as error:
            raise self._late_error(timeout_s) from error
        return found

    def close(self) -> None:
        """End the watch; versions that were not taken are dropped. Idempotent.

        Returns: None; callers that wait get None.
        Raises:  nothing.
        Example:

            changes = hop.Table("closed").watch()
            changes.close()
            assert list(changes) == []
        """
        self._follower.unsubscribe(self)
        with self._follower.lock:
            self._is_over = True
            self._waiting.clear()
            self._wake()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        if (change := self.next()) is None:
            raise StopIteration
        return change

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        if (change := await self.next_async()) is None:
            raise StopAsyncIteration
        return change

    # ---- called by the follower, which holds its lock ----

    def begin(self, slot: int) -> None:
        """Take it that the log's end was `slot` when the watch began."""
        self._first = slot

    def offer(self, slot: int, changes: tuple[Change, ...]) -> None:
        """Take the versions of a record."""
        if self._first is None:  # records of before the watch
            return
        found = [each for each in changes if each.key.startswith(self._prefix)]
        if len(self._waiting) + len(found) > _CHANGES_MAX:
            self.skip()
            return
        self._waiting += found
        if found:
            self._wake()

    def skip(self) -> None:
        """Take it that records have gone before they were read."""
        if self._first is None:
            return
        self._waiting.clear()
        self._has_gap = True
        self._wake()

    def end(self, error: HopliteError) -> None:
        """Take it that no more records will come."""
        self._error = error
        self._wake()

    # ---- called by those that wait ----

    def _take(self) -> Change | Future[None] | None:
        """Return the next version; None at the end; a future to wait for, if there is none yet.

        Raises: the error that the watch, or the last read of its past, has ended with.
        """
        with self._follower.lock:
            if self._is_over:
                return None
            if not self._ready.done():
                return self._ready
            self._ready.result()
            if not self._has_past:
                return self._begin_past()
            if self._has_gap:
                self._fill_gap()
            while self._waiting:
                change = self._waiting.popleft()
                if change.version.number > self._last:
                    self._last = change.version.number
                    return change
            if self._error is not None:
                raise self._error
            arrival: Future[None] = Future()
            arrival.set_running_or_notify_cancel()  # a caller that leaves does not cancel it
            self._arrivals.add(arrival)
            return arrival

    def _leave(self, arrival: Future[None]) -> None:
        """Forget an arrival that its caller waits for no longer."""
        with self._follower.lock:
            self._arrivals.discard(arrival)

    def _fill_gap(self) -> None:
        """Go on with the newest version of each key, if the watch may leave versions out."""
        if self._on_gap == "raise":
            self.close()
            raise _gap_error(self._follower.table, self._last)
        newest = self._follower.look_up(lambda state: state.versions.newest(self._prefix))
        self._waiting = deque(Change(key, version) for key, version in newest)
        self._has_gap = False

    def _begin_past(self) -> Future[None]:
        """Begin to read the past, unless that is under way; the next caller tries it again.

        A thread reads, because a caller may leave earlier than Ray's store answers.
        """
        if self._past is None or self._past.done():
            name = f"hoplite-past-{self._follower.table}"
            self._past = run_in_thread(self._read_past, name)
        return self._past

    def _read_past(self) -> None:
        """Read the versions after `since` that the log had when the watch began. It blocks."""
        slot = max(0, (self._last >> INDEX_BITS) - 1)  # that of `since` may have more versions
        try:
            past = self._follower.read_since(slot)
        except VersionDroppedError:
            past = None
        with self._follower.lock:
            self._has_past = True
            first = self._first
            assert first is not None
            if past is None:
                self._has_gap = True
                return
            changes = (each for place, made in past if place <= first for each in made)
            found = [each for each in changes if each.key.startswith(self._prefix)]
            self._waiting.extendleft(reversed(found))

    def _late_error(self, timeout_s: float | None) -> GetTimeoutError:
        if not self._ready.done() or not self._has_past:
            return GetTimeoutError(
                f"the log of table {self._follower.table!r} has not been read within {timeout_s} "
                "s: Ray's GCS is slow or busy; raise timeout_s"
            )
        return GetTimeoutError(
            f"no version of a key {self._prefix!r}... has come within {timeout_s} s"
        )

    def _wake(self) -> None:
        arrivals, self._arrivals = self._arrivals, set()
        for each in arrivals:
            each.set_result(None)


def _gap_error(table: str, last: int) -> VersionDroppedError:
    return VersionDroppedError(
        f"a watch of table {table!r} has missed versions after {last}, because it was too slow or "
        "began too late, and the log was shortened: watch again, or with on_gap='latest'"
    )
