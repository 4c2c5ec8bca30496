"""The events of worlds, as threads and event loops iterate over them."""

from __future__ import annotations

import threading
from collections import deque

from hoplite_ray.errors import WorldTimeoutError
from hoplite_ray.values.deadlines import checked_timeout
from hoplite_ray.worlds.core.events import Cause, EventKind, State, WorldEvent
from hoplite_ray.worlds.core.waiting import Deadline, Turn, Waits, run_async, run_blocking

__all__ = ["Cause", "EventKind", "EventStream", "State", "WorldEvent"]


class EventStream:
    """The events from the moment when the stream was made: `for` blocks, `async for` awaits.

    The stream of one world ends with that world, and the stream of a manager with its manager. Any
    thread and any event loop may use it. Each event goes to one of the callers that wait.

    Example:

        events = manager.events()
        edge = manager.join("sample", rank=rank, size=2, rendezvous=address)
        if rank == 0:
            edge.recv(src=1)
            edge.abort("the input has ended")
        else:
            edge.send(np.ones(3), dst=0)
        assert next(events).kind.name == "BROKEN"
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all attributes below
        self._events: deque[WorldEvent] = deque()
        self._waiting: list[Turn] = []
        self._is_over = False

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> WorldEvent:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> WorldEvent:
        event = await self.next_async()
        if event is None:
            raise StopAsyncIteration
        return event

    def next(self, *, timeout_s: float | None = None) -> WorldEvent | None:
        """Wait for the next event.

        Args:    timeout_s: seconds to wait; None waits without a limit.
        Returns: the event; None at the end of the stream.
        Raises:  WorldTimeoutError at the limit; InvalidArgumentError; WrongTypeError.
        Example:

            events = manager.events()
            manager.close()
            assert events.next(timeout_s=30) is None
        """
        return run_blocking(self._next(timeout_s), "next")

    async def next_async(self, *, timeout_s: float | None = None) -> WorldEvent | None:
        """Like `next`, but awaitable; cancelling it loses no event."""
        return await run_async(self._next(timeout_s))

    def close(self) -> None:
        """End the stream now. Events that were not taken are dropped. Idempotent.

        Returns: None; callers that wait find the stream at its end.
        Raises:  nothing.
        Example:

            events = manager.events()
            events.close()
            assert list(events) == []
        """
        with self._lock:
            self._events.clear()
        self.tell(None)

    def tell(self, event: WorldEvent | None) -> None:
        """Add an event; None ends the stream. From any thread; for this package."""
        with self._lock:
            if self._is_over:
                return
            if event is None:
                self._is_over = True
            else:
                self._events.append(event)
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.end()

    def _next(self, timeout_s: float | None) -> Waits[WorldEvent | None]:
        checked_timeout(timeout_s)
        deadline = Deadline(timeout_s)
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._is_over:
                    return None
                coming = Turn()
                self._waiting.append(coming)
            try:
                has_come = yield coming, deadline.left_s()
            finally:
                with self._lock:
                    if coming in self._waiting:
                        self._waiting.remove(coming)
            if not has_come:
                raise WorldTimeoutError(f"no event has come within {timeout_s} s")
