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


def _run(last: VersionNumber, count: int) -> list[VersionNumber]:
    """Return so many numbers of one term, up to `last`."""
    first = max(last.n - count + 1, 1)
    return [last._replace(n=n) for n in range(first, last.n + 1)]
