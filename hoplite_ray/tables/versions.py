"""The versions of the keys of a table, and the rule by which old ones are dropped.

A version is dropped when `keep` newer ones of its key are there, and it was superseded at least
`keep_us` ago. A key whose newest version removes it goes whole, `keep_us` after that. The clock of
this rule is the time of the log's last record. So all processes drop the same versions at the same
record, and a record need not name them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from hoplite_ray.errors import VersionDroppedError, VersionMissingError
from hoplite_ray.tables.log import Entry

INDEX_BITS = 16  # of a version's number: its place in its record; the bits above are the slot


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one key.

    number:  greater than that of every earlier version of the table.
    time_us: of its record: microseconds since 1970, by the writer's clock or a little later.
    writer:  the process that put it; `value` is the value's number among those of that process.
    nodes:   the nodes that were given a copy of the value.
    """

    number: int
    time_us: int
    writer: str
    value: int
    size_bytes: int
    nodes: tuple[int, ...]

    @property
    def is_removal(self) -> bool:
        """True if the version says that the key is removed."""
        return self.value == 0

    @property
    def time_s(self) -> float:
        """Seconds since 1970; a get at this time finds the version."""
        return self.time_us / 1e6

    @property
    def slot(self) -> int:
        return self.number >> INDEX_BITS


@dataclass(slots=True)
class _History:
    """The versions of a key that are kept, oldest first; never empty."""

    versions: list[Version] = field(default_factory=list)
    has_dropped: bool = False  # True if earlier versions were dropped


_TIME = attrgetter("time_us")
_NUMBER = attrgetter("number")


class Versions:
    """All keys of a table. Not safe for threads; a lookup costs O(log of the key's versions)."""

    def __init__(self, keep: int, keep_us: int) -> None:
        self._keep = keep
        self._keep_us = keep_us
        self._histories: dict[str, _History] = {}
        # (when a version of the key was superseded, or the key removed, the key): in that order
        self._ages: deque[tuple[int, str]] = deque()
        self._forgotten_us = 0  # the time of the last removal whose key has gone whole
        self._forgotten = 0  # its number
        self.count = 0  # of all versions

    def __len__(self) -> int:
        return len(self._histories)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys with this prefix whose newest version is no removal, sorted."""
        return sorted(
            key
            for key, history in self._histories.items()
            if key.startswith(prefix) and not history.versions[-1].is_removal
        )

    def newest(self, prefix: str) -> list[tuple[str, Version]]:
        """Return the newest version of each key with this prefix, by number."""
        found = [
            (key, history.versions[-1])
            for key, history in self._histories.items()
            if key.startswith(prefix)
        ]
        return sorted(found, key=lambda each: each[1].number)

    def latest(self, key: str) -> Version:
        """Return the newest version. Raises: VersionMissingError if there is no value now."""
        history = self._histories.get(key)
        if history is None:
            raise VersionMissingError(f"the table has no key {key!r}", key)
        return _value_at(key, history.versions[-1], "now")

    def at(self, key: str, time_us: int) -> Version:
        """Return the newest version that is not later than `time_us`.

        Raises: VersionMissingError if the key had no value then; VersionDroppedError if that
                version is kept no longer.
        """
        history = self._histories.get(key)
        versions = [] if history is None else history.versions
        place = bisect_right(versions, time_us, key=_TIME)
        when = f"at {time_us / 1e6:.6f}"
        if place:
            return _value_at(key, versions[place - 1], when)
        if (history is not None and history.has_dropped) or time_us < self._forgotten_us:
            raise self._dropped_error(key, f"its version {when}")
        raise VersionMissingError(f"key {key!r} had no value {when}", key)

    def find(self, key: str, number: int) -> Version:
        """Return a version by its number.

        Raises: VersionMissingError if it is none of this key; VersionDroppedError if it is kept no
                longer, or may not be.
        """
        history = self._histories.get(key)
        versions = [] if history is None else history.versions
        place = bisect_right(versions, number, key=_NUMBER)
        if place and versions[place - 1].number == number:
            return _value_at(key, versions[place - 1], f"in version {number}")
        is_old = place == 0 and history is not None and history.has_dropped
        if is_old or (place == 0 and number < self._forgotten):
            raise self._dropped_error(key, f"version {number}")
        raise VersionMissingError(f"{number} is no version of key {key!r}", key)

    def find_value(self, key: str, writer: str, value: int) -> Version | None:
        """Return the version that has this value; None if it is not there or was dropped."""
        history = self._histories.get(key)
        for each in reversed([] if history is None else history.versions):
            if each.writer == writer and each.value == value:
                return each
        return None

    def add(self, key: str, version: Version) -> None:
        """Add the newest version of all. `drop_old` is called after the last one of a record."""
        history = self._histories.setdefault(key, _History())
        if history.versions or version.is_removal:
            self._ages.append((version.time_us, key))
        history.versions.append(version)
        self.count += 1

    def drop_old(self, entries: tuple[Entry, ...], now_us: int) -> list[Version]:
        """Drop what the rule drops at `now_us`, and return it; `entries` are those of the record.

        Cost: O(entries and versions that come of age), not O(keys).
        """
        dropped: list[Version] = []
        for entry in entries:
            dropped += self._trim(entry.key, now_us)
        while self._ages and self._ages[0][0] + self._keep_us <= now_us:
            dropped += self._trim(self._ages.popleft()[1], now_us)
        return dropped

    def is_drop_due(self, now_us: int) -> bool:
        """Return True if a record of `now_us` would look for versions to drop. Cost: O(1)."""
        return bool(self._ages) and self._ages[0][0] + self._keep_us <= now_us

    def _trim(self, key: str, now_us: int) -> list[Version]:
        history = self._histories.get(key)
        if history is None:
            return []
        versions = history.versions
        count = 0
        while len(versions) - count > self._keep and self._is_old(versions[count + 1], now_us):
            count += 1
        if versions[-1].is_removal and self._is_old(versions[-1], now_us):
            count = len(versions)
            del self._histories[key]
            self._forgotten_us = max(self._forgotten_us, versions[-1].time_us)
            self._forgotten = max(self._forgotten, versions[-1].number)
        dropped = versions[:count]
        if count:
            del versions[:count]
            history.has_dropped = True
            self.count -= count
        return dropped

    def _is_old(self, superseder: Version, now_us: int) -> bool:
        return superseder.time_us + self._keep_us <= now_us

    def _dropped_error(self, key: str, what: str) -> VersionDroppedError:
        return VersionDroppedError(
            f"{what} of key {key!r} is kept no longer: the table keeps {self._keep} versions of a "
            f"key, and older ones for {self._keep_us / 1e6:g} s; open it with a larger keep_s",
            key,
        )

    def dump(self) -> list[Any]:
        """Return all of it as JSON takes it."""
        histories = [
            [
                key,
                history.has_dropped,
                [
                    [
                        *(each.number, each.time_us, each.writer, each.value, each.size_bytes),
                        *each.nodes,
                    ]
                    for each in history.versions
                ],
            ]
            for key, history in self._histories.items()
        ]
        return [self._forgotten_us, self._forgotten, histories]

    def load(self, dumped: list[Any]) -> None:
        """Take what `dump` returned. REQUIRES: it is empty. Raises: ValueError, TypeError."""
        self._forgotten_us, self._forgotten, histories = dumped
        ages = []
        for key, has_dropped, fields in histories:
            versions = [
                Version(number, time_us, writer, value, size_bytes, tuple(nodes))
                for number, time_us, writer, value, size_bytes, *nodes in fields
            ]
            self._histories[key] = _History(versions, has_dropped)
            self.count += len(versions)
            ages += [(each.time_us, key) for each in _with_age(versions)]
        self._ages.extend(sorted(ages))


def _with_age(versions: list[Version]) -> Iterator[Version]:
    """Yield the versions at whose time an earlier one was superseded, or the key removed."""
    for place, each in enumerate(versions):
        if place or each.is_removal:
            yield each


def _value_at(key: str, version: Version, when: str) -> Version:
    if version.is_removal:
        raise VersionMissingError(f"key {key!r} has no value {when}: it was removed", key)
    return version
