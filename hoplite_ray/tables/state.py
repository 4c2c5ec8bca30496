"""The meaning of a table's log: the state after a slot, which every process computes alike."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from hoplite_ray.tables.log import (
    COPIES_MAX,
    FORMAT,
    NUMBERS_AHEAD,
    Garbage,
    Options,
    Record,
    damage_error,
    dump_options,
    parse_options,
    refuse_format,
)
from hoplite_ray.tables.versions import INDEX_BITS, Version, Versions

WRITERS_MAX = 16_384  # beyond it the writer that has been silent longest is forgotten
_VERSIONS_PER_RECORD = 8  # of the state; more versions make states rarer, in proportion


@dataclass(frozen=True, slots=True)
class Change:
    """One new version, as a watcher hears of it."""

    key: str
    version: Version


@dataclass(frozen=True, slots=True)
class Applied:
    """The effects of one record.

    is_void:  True if it is a repetition, or of a writer that the table has forgotten.
    changes:  its new versions, in their order.
    garbage:  what the record's writer shall delete.
    is_due:   True if the record's writer shall store the state.
    """

    slot: int
    is_void: bool
    changes: tuple[Change, ...]
    garbage: tuple[Garbage, ...]
    is_due: bool


@dataclass(slots=True)
class _Writer:
    """A writer as the log knows it; `stored` has its values from number `low` on."""

    sequence: int
    time_us: int
    low: int
    stored: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """Garbage that the writer of a record of `time_us` is to delete."""

    time_us: int
    garbage: tuple[Garbage, ...]


class State:
    """The state of a table after `slot`. Pure: it changes by `apply` only. Not safe for threads.

    Invariants: times and version numbers ascend with the slots; `garbage` has every value that was
    dropped, until a record says that it was deleted.
    """

    def __init__(self, options: Options, mark: str) -> None:
        self.options = options
        self.slot = 0
        self.mark = mark  # of the bytes of `slot`
        self.time_us = 0
        self.base = 0  # the last slot after which a state was due
        self.versions = Versions(options.keep, options.keep_us)
        self.garbage: dict[int, Left] = {}  # by the slot whose writer is to delete it
        self._writers: dict[str, _Writer] = {}  # silent longest first

    def last_sequence(self, writer: str) -> int | None:
        """Return the number of the writer's last record; None if the writer is not known."""
        found = self._writers.get(writer)
        return None if found is None else found.sequence

    def low(self, writer: str) -> int:
        """Return the `low` of the writer's last record. REQUIRES: the writer is known."""
        return self._writers[writer].low

    def age_us(self, writer: str, now_us: int) -> int | None:
        """Return the time since the writer's last record; None if the writer is not known."""
        found = self._writers.get(writer)
        return None if found is None else max(now_us, self.time_us) - found.time_us

    def is_due(self, now_us: int) -> bool:
        """Return True if a record of `now_us` would drop or forget something. Cost: O(1)."""
        since_us = now_us - self.options.writer_us
        writer = next(iter(self._writers.values()), None)
        left = next(iter(self.garbage.values()), None)
        return (
            self.versions.is_drop_due(now_us)
            or (writer is not None and writer.time_us <= since_us)
            or (left is not None and left.time_us <= since_us)
        )

    def apply(self, record: Record, mark: str) -> Applied:
        """Apply the record of the next slot."""
        self.slot += 1
        self.mark = mark
        self.time_us = max(self.time_us + 1, record.time_us)
        is_void = not self._take_writer(record)
        changes = () if is_void else self._add_versions(record)
        if not is_void:
            for slot in record.swept:
                self.garbage.pop(slot, None)
        dropped = self.versions.drop_old(() if is_void else record.entries, self.time_us)
        garbage = _gather(dropped) + self._forget_writers() + self._take_over()
        if garbage:
            self.garbage[self.slot] = Left(self.time_us, garbage)
        due = max(self.options.records_per_state, self.versions.count // _VERSIONS_PER_RECORD)
        is_due = self.slot - self.base >= due
        if is_due:
            self.base = self.slot
        return Applied(self.slot, is_void, changes, garbage, is_due)

    def _take_writer(self, record: Record) -> bool:
        """Note the record at its writer, which may leave. Returns False for a void record."""
        writer = self._writers.pop(record.writer, None)
        sequence, stored = (0, ()) if writer is None else (writer.sequence, writer.stored)
        if record.sequence != sequence + 1:
            if writer is not None:
                self._writers[record.writer] = writer
            return False
        if record.low:
            numbers = (*stored, *(each.number for each in record.entries))
            self._writers[record.writer] = _Writer(
                *(record.sequence, self.time_us, record.low),
                tuple(each for each in numbers if each >= record.low),
            )
        return True

    def _add_versions(self, record: Record) -> tuple[Change, ...]:
        changes = []
        for index, entry in enumerate(record.entries):
            version = Version(
                *((self.slot << INDEX_BITS) + index, self.time_us, record.writer),
                *(entry.number, entry.size_bytes, entry.nodes),
            )
            self.versions.add(entry.key, version)
            changes.append(Change(entry.key, version))
        return tuple(changes)

    def _forget_writers(self) -> tuple[Garbage, ...]:
        """Forget silent writers, and return the values that each may have stored in vain.

        A writer stores no value whose number is NUMBERS_AHEAD above the `low` of its last record,
        and its later records are void. So no other of its values can become garbage.
        """
        garbage = []
        while self._writers:
            name, writer = next(iter(self._writers.items()))
            is_silent = writer.time_us <= self.time_us - self.options.writer_us
            if not is_silent and len(self._writers) <= WRITERS_MAX:
                break
            del self._writers[name]
            ahead = range(writer.low, writer.low + NUMBERS_AHEAD)
            left = tuple(each for each in ahead if each not in writer.stored)
            garbage.append(Garbage(name, left, COPIES_MAX))
        return tuple(garbage)

    def _take_over(self) -> tuple[Garbage, ...]:
        """Take over the garbage of records whose writers have not reported it for long.

        Such a writer has died, or it reports later; what is deleted twice is no error.
        """
        taken: list[Garbage] = []
        while self.garbage:
            slot, left = next(iter(self.garbage.items()))
            if left.time_us > self.time_us - self.options.writer_us:
                break
            del self.garbage[slot]
            taken += left.garbage
        return tuple(taken)

    def encode(self) -> bytes:
        """Return the bytes of the state: the same in every process. Cost: O(the table)."""
        fields = [
            *(FORMAT, dump_options(self.options)),
            *(self.slot, self.mark, self.time_us, self.base, self.versions.dump()),
            [
                [
                    *(slot, left.time_us),
                    [[each.writer, each.numbers, each.copies] for each in left.garbage],
                ]
                for slot, left in self.garbage.items()
            ],
            [
                [name, each.sequence, each.time_us, each.low, each.stored]
                for name, each in self._writers.items()
            ],
        ]
        return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), level=1)

    @classmethod
    def decode(cls, data: bytes, where: str) -> State:
        """Return the state of `encode`. Raises: ControlError naming `where` if it is none."""
        try:
            fields: list[Any] = json.loads(zlib.decompress(data))
            refuse_format(fields[0], where)
            _, options, slot, mark, time_us, base, versions, garbage, writers = fields
            state = cls(parse_options(options, where), mark)
            state.slot, state.time_us, state.base = slot, time_us, base
            state.versions.load(versions)
            for made_in, left_us, made in garbage:
                state.garbage[made_in] = Left(
                    left_us,
                    tuple(
                        Garbage(writer, tuple(numbers), copies) for writer, numbers, copies in made
                    ),
                )
            for name, sequence, when_us, low, stored in writers:
                state._writers[name] = _Writer(sequence, when_us, low, tuple(stored))
        except (zlib.error, ValueError, TypeError, LookupError, RecursionError) as error:
            raise damage_error(where) from error
        return state


def _gather(dropped: list[Version]) -> tuple[Garbage, ...]:
    """Return the values of dropped versions, in the order of the versions."""
    ordered = sorted((each for each in dropped if each.value), key=lambda each: each.number)
    return tuple(Garbage(each.writer, (each.value,), len(each.nodes)) for each in ordered)
