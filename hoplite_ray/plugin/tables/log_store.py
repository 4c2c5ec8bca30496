"""Performs the calls of a table's machines on the cluster's key-value store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hoplite_ray.tables.calls import (
    AddSlot,
    AddState,
    Answer,
    Call,
    ListSlots,
    ListStates,
    ReadSlots,
    ReadState,
    RemoveSlot,
    RemoveState,
)
from hoplite_ray.tables.log import log_key, log_prefix, parse_slots, state_key, state_prefix


class KeyValueStore(Protocol):
    """The part of `seams.table.KeyValues` that tables use; each call raises ControlError."""

    def add(self, key: str, value: bytes) -> bool:
        """Store `value` unless the key has one."""

    def read(self, key: str) -> bytes | None:
        """Return the value of a key."""

    def read_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of some keys, all of one moment."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`."""

    def remove(self, key: str) -> None:
        """Remove a key."""


def perform(call: Call, table: str, values: KeyValueStore) -> Answer:
    """Make a call, and return its answer. Raises: ControlError if its outcome is unknown."""
    match call:
        case AddSlot():
            values.add(log_key(table, call.slot), call.data)
        case ReadSlots():
            slots = range(call.first, call.first + call.count)
            return values.read_all([log_key(table, slot) for slot in slots])
        case ReadState():
            return values.read(state_key(table, call.slot))
        case ListStates():
            return parse_slots(values.keys(state_prefix(table)))
        case ListSlots():
            return parse_slots(values.keys(log_prefix(table)))
        case AddState():
            values.add(state_key(table, call.slot), call.data)
        case RemoveSlot():
            values.remove(log_key(table, call.slot))
        case RemoveState():
            values.remove(state_key(table, call.slot))
    return None
