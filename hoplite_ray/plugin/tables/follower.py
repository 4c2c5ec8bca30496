"""One thread per table and process, which follows the table's log for all callers here."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from hoplite_ray.errors import ControlError, HopliteError
from hoplite_ray.plugin.tables.janitor import Janitor, Kind, compact
from hoplite_ray.plugin.tables.log_store import KeyValueStore, perform
from hoplite_ray.tables.calls import (
    Call,
    Changed,
    Event,
    NumbersGiven,
    PutDone,
    ReadDone,
    Skipped,
    StateDue,
    Sweep,
    TicketFailed,
)
from hoplite_ray.tables.log import Garbage, Options
from hoplite_ray.tables.replica import Replica
from hoplite_ray.tables.state import Change, State

T = TypeVar("T")

_logger = logging.getLogger("hoplite_ray.tables")

# Between two looks for records while there are watchers: doubles while none come.
_POLL_S = 0.005
_POLL_MAX_S = 0.05
# Between two turns while there is nothing to do: for a ray.shutdown, and for a look that is due.
_IDLE_S = 1.0
_PACE_MIN = 0.75  # of the time to the next look: the processes of a table don't look together
# Between two tries of a call that fails: doubles up to the maximum.
_RETRY_S = 0.05
_RETRY_MAX_S = 1.0
_POLL_TICKET = 0


class Subscriber(Protocol):
    """Hears of each record. Its methods hold the follower's lock and must not block."""

    def begin(self, slot: int) -> None:
        """Take it that the log ends with `slot` now."""

    def offer(self, slot: int, changes: tuple[Change, ...]) -> None:
        """Take the versions of a record."""

    def skip(self) -> None:
        """Take it that records have gone before they were read."""

    def end(self, error: HopliteError) -> None:
        """Take it that no more records will be offered."""


class UnknownOutcomeError(ControlError):
    """It is unknown whether a put has taken effect."""


class Follower:
    """This process's part of one table. Any thread may use it.

    `lock` guards the replica, the futures and the subscribers. The thread ends with `close`, by a
    fault, or when `is_over` says that this process has left the cluster. At its end it ends the
    janitor, and calls `leave`.
    """

    def __init__(
        self,
        table: str,
        name: str,
        options: Options,
        values: Callable[[], KeyValueStore],
        *,
        janitor: Janitor,
        delete: Callable[[Garbage], None],
        is_over: Callable[[], bool],
        leave: Callable[[Follower], None],
    ) -> None:
        """Start to follow. `name` is random; each thread takes a store of its own of `values`."""
        self.table = table
        self.lock = threading.RLock()
        self.janitor = janitor
        self._replica = Replica(table, name, options)
        self._options = options
        self._values = values
        self._delete = delete
        self._is_over = is_over
        self._leave = leave
        self._wakes = threading.Condition(self.lock)
        self._tickets = count(_POLL_TICKET + 1)
        self._futures: dict[int, Future[Any]] = {}
        self._subscribers: WeakSet[Subscriber] = WeakSet()  # a watch that is dropped has ended
        self._beginning: dict[Future[None], Subscriber] = {}
        self._ended: list[Callable[[], None]] = []  # results of futures, set without the lock
        self._poll_s = _POLL_S
        self._pace = random.uniform(_PACE_MIN, 1.0)
        self._closed: HopliteError | None = None
        self._thread = threading.Thread(target=self._run, name=f"hoplite-{table}", daemon=True)
        self._thread.start()

    # ---- what callers ask ----

    def read(self, at_us: int = 0) -> Future[None]:
        """Bring the state to the log's end, or to a record not earlier than `at_us`."""
        return self._ask(lambda replica, ticket: replica.handle_read(ticket, at_us))

    def numbers(self, how_many: int) -> Future[NumbersGiven]:
        """Return numbers for values that are to be stored."""
        return self._ask(lambda replica, ticket: replica.handle_numbers(ticket, how_many))

    def put(self, begin: Callable[[Replica, int], None]) -> Future[PutDone]:
        """Append versions; `begin` calls the replica's `handle_put` with the ticket."""
        return self._ask(begin)

    def release(self, writer: str, numbers: tuple[int, ...]) -> None:
        """Forget numbers whose objects are deleted."""
        with self.lock:
            self._replica.handle_release(writer, numbers)
            self._wakes.notify()

    def look_up(self, find: Callable[[State], T]) -> T:
        """Return `find(state)`. REQUIRES: a read has ended; `find` keeps nothing of the state."""
        with self.lock:
            assert self._replica.state is not None
            return find(self._replica.state)

    def has_read(self, slot: int) -> bool:
        """Return True if the state has the record of `slot`."""
        with self.lock:
            state = self._replica.state
            return state is not None and state.slot >= slot

    def has_time(self, at_us: int) -> bool:
        """Return True if no later record can change what the state says of that time."""
        with self.lock:
            state = self._replica.state
            return state is not None and 0 < at_us <= state.time_us

    def subscribe(self, subscriber: Subscriber) -> Future[None]:
        """Offer records to `subscriber`, after its `begin`; the future ends with that."""
        with self.lock:
            self._subscribers.add(subscriber)
            self._poll_s = _POLL_S
            future = self._ask(lambda replica, ticket: replica.handle_read(ticket))
            self._beginning[future] = subscriber
            return future

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Offer no more records."""
        with self.lock:
            self._subscribers.discard(subscriber)

    def read_since(self, slot: int) -> list[tuple[int, tuple[Change, ...]]]:
        """Return the records after `slot` with their versions, up to the log's present end.

        Raises: VersionDroppedError if the log begins later; ControlError.
        Cost:   it blocks; a read for each 256 records, and those since the state before `slot`.
        """
        values = self._values()
        replica = Replica(self.table, "reader", self._options, since=slot)
        replica.handle_read(_POLL_TICKET)
        found: list[tuple[int, tuple[Change, ...]]] = []
        while True:
            call = replica.poll_call(_now_us())
            while (event := replica.poll_event()) is not None:
                match event:
                    case Changed() if event.slot > slot:
                        found.append((event.slot, event.changes))
                    case Skipped():  # the log was shortened meanwhile: the next try says so
                        return self.read_since(slot)
                    case TicketFailed():
                        raise event.error
            if call is None:
                return found
            replica.handle_answer(perform(call, self.table, values), _now_us())

    @property
    def is_closed(self) -> bool:
        """True if it has ended; the outcome of puts that were under way is unknown then."""
        with self.lock:
            return self._closed is not None

    def close(self, error: HopliteError) -> None:
        """End the thread; every operation fails with `error`."""
        with self.lock:
            self._closed = self._closed or error
            self._wakes.notify()

    # ---- the thread ----

    def _ask(self, begin: Callable[[Replica, int], None]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a caller that stops waiting leaves it
        with self.lock:
            if self._closed is not None:
                future.set_exception(self._closed)
                return future
            ticket = next(self._tickets)
            self._futures[ticket] = future
            begin(self._replica, ticket)
            self._wakes.notify()
        return future

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            _logger.exception("table %s: this process can use it no longer", self.table)
            self.close(fault_error(self.table, error))
            with self.lock:
                assert self._closed is not None
                self._fail_all(self._closed)
            self._end_futures()
        self.janitor.close()
        self._leave(self)

    def _follow(self) -> None:
        values = self._values()
        retry_s = _RETRY_S
        while (call := self._next_call()) is not None:
            try:
                answer = perform(call, self.table, values)
            except ControlError as error:
                with self.lock:
                    self._replica.handle_failure(error)
                    self._take_events()
                self._end_futures()
                self._pause(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)
            else:
                with self.lock:
                    self._replica.handle_answer(answer, _now_us())
                retry_s = _RETRY_S

    def _next_call(self) -> Call | None:
        """Wait for something to do, and return the call; None at the end."""
        while True:
            with self.lock:
                is_closed = self._closed is not None
                call = None if is_closed else self._replica.poll_call(_now_us())
                self._take_events()
                if self._closed is not None:
                    self._fail_all(self._closed)
                elif call is None and not self._ended:
                    self._wait()
            self._end_futures()
            if call is not None or is_closed:
                return call

    def _wait(self) -> None:
        """Wait for a caller. Look for records from time to time, and often if there are watchers.

        A process that only waits looks as well, because a dead one may have left values behind.
        """
        is_woken = self._wakes.wait(self._poll_s if self._subscribers else _IDLE_S)
        if self._is_over():
            self._closed = self._closed or over_error(self.table)
        elif not is_woken and self._subscribers:
            self._poll_s = min(2 * self._poll_s, _POLL_MAX_S)
            self._replica.handle_read(_POLL_TICKET)
        elif not is_woken:
            every_us = self._pace * self._replica.look_every_us
            if not 0 <= _now_us() - self._replica.looked_us < every_us:  # the clock may go back
                self._replica.handle_read(_POLL_TICKET)

    def _pause(self, seconds: float) -> None:
        """Wait after a failed call; callers that come meanwhile wait as well."""
        end = time.monotonic() + seconds
        with self.lock:
            while self._closed is None and (left_s := end - time.monotonic()) > 0:
                self._wakes.wait(left_s)
            if self._is_over():
                self._closed = self._closed or over_error(self.table)

    def _take_events(self) -> None:
        while (event := self._replica.poll_event()) is not None:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case ReadDone():
                self._end(event.ticket, None)
            case NumbersGiven() | PutDone():
                self._end(event.ticket, event)
            case TicketFailed():
                self._fail(event)
            case Changed():
                self._poll_s = _POLL_S
                for subscriber in self._subscribers:
                    subscriber.offer(event.slot, event.changes)
            case Skipped():
                for subscriber in self._subscribers:
                    subscriber.skip()
            case Sweep():
                self.janitor.do(partial(self._sweep, event), Kind.DELETION)
            case StateDue():
                self.janitor.do(partial(self._compact, event), Kind.UPKEEP)

    def _sweep(self, event: Sweep) -> None:
        for garbage in event.garbage:
            self._delete(garbage)
        with self.lock:
            self._replica.handle_swept(event.slots)

    def _compact(self, event: StateDue) -> None:
        janitor = self.janitor
        compact(
            *(self.table, self._values(), event.slot, event.data), lambda: not janitor.is_ending
        )

    # ---- the ends of futures ----

    def _end(self, ticket: int, result: Any) -> None:
        future = self._futures.pop(ticket, None)
        if future is not None:
            if (subscriber := self._beginning.pop(future, None)) is not None:
                subscriber.begin(self.look_up(lambda state: state.slot))
            self._ended.append(partial(future.set_result, result))

    def _fail(self, event: TicketFailed) -> None:
        if self._replica.error is not None:
            self._end_subscribers(self._replica.error)
        future = self._futures.pop(event.ticket, None)
        if future is None:
            return
        self._beginning.pop(future, None)
        error = event.error
        if event.is_unknown:
            error = UnknownOutcomeError(f"it is unknown whether the put took effect: {error}")
        self._ended.append(partial(future.set_exception, error))

    def _fail_all(self, error: HopliteError) -> None:
        futures, self._futures = self._futures, {}
        self._ended += [partial(each.set_exception, error) for each in futures.values()]
        self._end_subscribers(error)

    def _end_subscribers(self, error: HopliteError) -> None:
        subscribers, self._subscribers = self._subscribers, WeakSet()
        for subscriber in subscribers:
            subscriber.end(error)

    def _end_futures(self) -> None:
        """Set the results: a future's callbacks are of callers, and may take other locks."""
        with self.lock:
            ended, self._ended = self._ended, []
        for end in ended:
            end()


def fault_error(table: str, fault: Exception) -> HopliteError:
    return HopliteError(
        f"the thread of table {table!r} has ended by a fault ({fault!r}), and a put that was under "
        "way may have taken effect: report it with this process's log, and call again"
    )


def over_error(table: str) -> HopliteError:
    return HopliteError(
        f"table {table!r} belongs to a Ray session that has ended in this process: make the table "
        "again, after ray.init()"
    )


def _now_us() -> int:
    return time.time_ns() // 1000
