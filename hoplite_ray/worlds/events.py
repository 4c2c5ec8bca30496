"""What a world is and what happens to it: states, causes and events, for people and programs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from enum import Enum, IntEnum

from hoplite_ray.errors import WorldError


class Cause(IntEnum):
    """Why a world has ended. The numbers travel."""

    PEER_DIED = 1
    """Its process has ended without leaving."""
    UNREACHABLE = 2
    """The network has cut it off."""
    FROZEN = 3
    """Its process has said nothing for `dead_after_s`."""
    PEER_LEFT = 4
    """It has left, and an operation needs it."""
    ABORTED = 5
    """A member has given the world up."""
    PROTOCOL = 6
    """A member sent what fits nothing: another dtype, size or operation."""
    LOCAL = 7
    """A process could not go on, or closed the world without leaving."""


class State(Enum):
    """Where a world is in its life."""

    JOINING = "joining"
    READY = "ready"
    LEAVING = "leaving"
    CLOSED = "closed"
    BROKEN = "broken"


class EventKind(IntEnum):
    """What an event tells; the native core's numbers."""

    SUSPECT = 1
    RECOVERED = 2
    BROKEN = 3
    PEER_LEFT = 4


@dataclass(frozen=True, slots=True)
class WorldEvent:
    """One thing that has happened to a world: by which member, and why if it has ended.

    `at_ns` is of this process's monotonic clock.
    """

    kind: EventKind
    world: str
    epoch: int
    rank: int
    cause: str
    text: str
    at_ns: int


class EventStream:
    """What happens from the moment when this was made, in an event loop: an async iterator.

    That of one world ends with the world.
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
        """Take in what comes next; None: nothing does. From any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed, and nobody iterates
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
