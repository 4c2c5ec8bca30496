"""The events of worlds, as an event loop iterates over them."""

from __future__ import annotations

import asyncio
import contextlib

from hoplite_ray.errors import WorldError
from hoplite_ray.worlds.core.events import Cause, EventKind, State, WorldEvent

__all__ = ["Cause", "EventKind", "EventStream", "State", "WorldEvent"]


class EventStream:
    """The events from the moment when the stream was made, as an async iterator.

    The stream belongs to the event loop that was running then. The stream of one world ends with
    that world.
    """

    def __init__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WorldError(
                "events are told to an event loop; call events() in a coroutine, or look at "
                "world.state"
            ) from None
        self._queue: asyncio.Queue[WorldEvent | None] = asyncio.Queue()
        self._is_over = False

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> WorldEvent:
        event = None if self._is_over else await self._queue.get()
        if event is None:
            self._is_over = True
            raise StopAsyncIteration
        return event

    def tell(self, event: WorldEvent | None) -> None:
        """Add an event; None ends the stream. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task iterates
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
