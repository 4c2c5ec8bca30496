"""The trail of a version: the deltas that lead to it from older versions of its term.

Pure. A publisher keeps a delta as long as a reader may want it; the record of each version says
which there are, so that the next publisher of the channel deletes those that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hoplite_ray.values.deltas import DELTAS_MAX, are_worth_it
from hoplite_ray.values.recipe import Delta
from hoplite_ray.values.versions import VersionNumber


@dataclass(frozen=True, slots=True)
class Trail:
    """The deltas that lead to a version, each from the version before it.

    sizes_bytes:  of the deltas, the oldest first; the last one makes this version. None: readers
                  take it whole.
    block_bytes:  of the whole, as a `Recipe` has it.
    crc32c:       of the whole, as a `Recipe` has it.
    dropped:      how many deltas before these the publisher deletes with this version.
    """

    sizes_bytes: tuple[int, ...] = ()
    block_bytes: int = 0
    crc32c: int = 0
    dropped: int = 0

    def add(self, delta: Delta, whole_bytes: int) -> Trail:
        """Return the trail of the next version, which that delta makes.

        The oldest deltas go, so that at most 32 are left, and all of them are worth their bytes.
        """
        sizes = (*self.sizes_bytes, delta.size_bytes)[-DELTAS_MAX:]
        while sizes and not are_worth_it(sizes, whole_bytes):
            sizes = sizes[1:]
        dropped = len(self.sizes_bytes) + 1 - len(sizes)
        return Trail(sizes, delta.block_bytes, delta.crc32c, dropped)

    def end(self) -> Trail:
        """Return the trail of the next version if it has no delta: all of these deltas go."""
        count = len(self.sizes_bytes)
        return Trail(dropped=count + 1 if count else 0)

    def find_missing(
        self, number: VersionNumber, base: VersionNumber | None
    ) -> list[VersionNumber]:
        """Return whose deltas lead from `base` to version `number` of this trail, in their order.

        Returns: none if the version can't be made of that base.
        """
        if base is None or base.term != number.term:
            return []
        count = number.n - base.n
        return _run(number, count) if 0 < count <= len(self.sizes_bytes) else []

    def list_kept(self, number: VersionNumber) -> list[VersionNumber]:
        """Return whose deltas there are when version `number` is visible."""
        return _run(number, len(self.sizes_bytes))

    def list_dropped(self, number: VersionNumber) -> list[VersionNumber]:
        """Return whose deltas the publisher of version `number` deletes."""
        return _run(number._replace(n=number.n - len(self.sizes_bytes)), self.dropped)

    def to_fields(self) -> list[Any]:
        """Return the trail as a field of a record; a version without one has an empty field."""
        if not self.sizes_bytes and not self.dropped:
            return []
        return [self.block_bytes, self.crc32c, self.dropped, self.sizes_bytes]

    @classmethod
    def from_fields(cls, fields: Sequence[Any]) -> Trail:
        """Return the trail that `to_fields` wrote. Raises: TypeError or ValueError for another."""
        if not fields:
            return cls()
        block_bytes, crc32c, dropped, sizes_bytes = fields
        return cls(tuple(map(int, sizes_bytes)), int(block_bytes), int(crc32c), int(dropped))


class Pace:
    """How often a publisher looks for a delta: rarely where versions differ in most elements.

    A look in vain costs a read of two halves, and its version can't travel while it is copied.
    """

    def __init__(self) -> None:
        self._vain = 0  # looks in a row that found none
        self._skips = 0  # versions until the next look

    def is_due(self) -> bool:
        """Return True if the publisher shall look at this version, which the call counts."""
        if self._skips > 0:
            self._skips -= 1
            return False
        return True

    def note(self, has_found: bool) -> None:
        """Take the result of a look: after 2, 3, 4 and 5 in vain 1, 3, 7 and 15 are skipped."""
        self._vain = 0 if has_found else min(self._vain + 1, _VAIN_MAX)
        self._skips = 2 ** (self._vain - 1) - 1 if self._vain else 0


_VAIN_MAX = 5  # so that a publisher looks at every 16th version at least


def _run(last: VersionNumber, count: int) -> list[VersionNumber]:
    """Return so many numbers of one term, up to `last`."""
    first = max(last.n - count + 1, 1)
    return [last._replace(n=n) for n in range(first, last.n + 1)]
