"""The states, causes and events of worlds, as values for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


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
    """Where a world is between its join and its end."""

    JOINING = "joining"
    READY = "ready"
    LEAVING = "leaving"
    CLOSED = "closed"
    BROKEN = "broken"


class EventKind(IntEnum):
    """The kinds of events. The numbers are the native core's."""

    SUSPECT = 1
    RECOVERED = 2
    BROKEN = 3
    PEER_LEFT = 4


@dataclass(frozen=True, slots=True)
class WorldEvent:
    """One thing that has happened to a world, the member that it is about, and its cause.

    `cause` is empty unless the world has ended. `at_ns` is this process's monotonic clock.
    """

    kind: EventKind
    world: str
    epoch: int
    rank: int
    cause: str
    text: str
    at_ns: int
