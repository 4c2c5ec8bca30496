"""The calls of a table's machines to the key-value store, and their reports to their process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hoplite_ray.errors import HopliteError
from hoplite_ray.tables.log import Garbage
from hoplite_ray.tables.state import Change
from hoplite_ray.tables.versions import Version


@dataclass(frozen=True, slots=True)
class ListStates:
    """Answer: the slots of the stored states, in ascending order."""


@dataclass(frozen=True, slots=True)
class ListSlots:
    """Answer: the slots of the log that are stored, in ascending order."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """Answer: the bytes of the state after `slot`; None if it is not stored."""

    slot: int


@dataclass(frozen=True, slots=True)
class ReadSlots:
    """Answer: the bytes of `count` slots from `first` on, each or None, all of one moment."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AddSlot:
    """Store `data` in `slot` if nothing is stored there. The answer says nothing."""

    slot: int
    data: bytes


@dataclass(frozen=True, slots=True)
class AddState:
    """Store the state after `slot` if none is stored. The answer says nothing."""

    slot: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RemoveSlot:
    """Remove `slot` of the log. The answer says nothing."""

    slot: int


@dataclass(frozen=True, slots=True)
class RemoveState:
    """Remove the state after `slot`. The answer says nothing."""

    slot: int


Call: TypeAlias = (
    ListStates | ListSlots | ReadState | ReadSlots | AddSlot | AddState | RemoveSlot | RemoveState
)
Answer: TypeAlias = list[int] | bytes | list[bytes | None] | None


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The state has all records that were in the log when the read of `ticket` began."""

    ticket: int


@dataclass(frozen=True, slots=True)
class NumbersGiven:
    """The put of `ticket` shall store its values under these numbers of `writer`."""

    ticket: int
    writer: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PutDone:
    """The put of `ticket` is in the log; None stands for a version that was dropped since."""

    ticket: int
    versions: tuple[Version | None, ...]


@dataclass(frozen=True, slots=True)
class TicketFailed:
    """The operation of `ticket` has failed; a put may have taken effect if `is_unknown`."""

    ticket: int
    error: HopliteError
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """The record of `slot` has been applied; it has made these versions, maybe none."""

    slot: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """The records after slot `after` up to `upto` are gone; the state has what they did."""

    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete the objects of `garbage`, then report the slots by `handle_swept`."""

    slots: tuple[int, ...]
    garbage: tuple[Garbage, ...]


@dataclass(frozen=True, slots=True)
class StateDue:
    """Run a Compaction with the state after `slot`."""

    slot: int
    data: bytes


Event: TypeAlias = (
    ReadDone | NumbersGiven | PutDone | TicketFailed | Changed | Skipped | Sweep | StateDue
)
