"""Snapshots: all keys of a table as they are at one time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoplite_ray.plugin.tables.table import Table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cut of a table: all of its reads have the same time, which never changes.

    `with table.snapshot() as cut:` shows where the cut is used; leaving it does nothing. A snapshot
    can be pickled and read in any process.
    """

    table: Table
    time_s: float  # since 1970

    def get(self, key: str, *, timeout_s: float | None = None) -> Any:
        """Return the value that the key had, as `Table.get` with `at`.

        Args:    key, timeout_s: as for `Table.get`.
        Returns: the value.
        Raises:  as `Table.get`.
        Cost:    the bytes; nothing is asked of Ray.
        Example:

            table = hop.Table("snapshots")
            table.put("a", np.zeros(1))
            with table.snapshot() as cut:
                assert cut.get("a") == 0
        """
        return self.table.get(key, at=self, timeout_s=timeout_s)

    async def get_async(self, key: str, *, timeout_s: float | None = None) -> Any:
        """Like `get`, but awaitable; cancelling it cancels the transfer."""
        return await self.table.get_async(key, at=self, timeout_s=timeout_s)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass
