"""One operation of a ray.util.collective group at one member: its objects, and its waits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hoplite_ray.errors import GetTimeoutError, HopliteError
from hoplite_ray.pending import Pending
from hoplite_ray.plugin.groups.roster import Roster
from hoplite_ray.values.layout import ReduceOp

_LOOK_S = 0.1  # between looks at the notice; a member's failure takes up to this time to arrive
_ACKNOWLEDGED = np.zeros(1, np.uint8)


class Operation:
    """See the module. Every wait ends at the operation's limit, or with a member's failure."""

    def __init__(
        self, roster: Roster, what: str, key: tuple[object, ...], timeout_s: float
    ) -> None:
        self._roster = roster
        self._what = what
        self._key = key
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._store = roster.store
        self._to_delete: list[bytes] = []

    def id(self, what: str, *ranks: int) -> bytes:
        """Return the id of one of its objects, which all members derive alike."""
        return self._roster.id(self._key, what, ranks)

    def put(self, value: Any, what: str, *ranks: int) -> None:
        """Put an object, which goes when the operation ends."""
        object_id = self.id(what, *ranks)
        self._to_delete.append(object_id)
        self._put(object_id, value)

    def reduce(
        self, sources: Mapping[int, bytes], what: str, op: ReduceOp, *, everywhere: bool = False
    ) -> None:
        """Combine the members' objects into one with rank 0's name, and wait for it."""
        target = self.id(what, 0)
        self._to_delete.append(target)
        self._roster.record_owned(target)
        pending = self._store.begin_reduce(
            target, source_count=len(sources), op=op, everywhere=everywhere
        )
        for rank, source in sources.items():
            pending.await_source(rank, source)
        self._wait_results([pending], [])

    def get(self, ids: Mapping[int, bytes]) -> list[Any]:
        """Return the values of the objects that these ranks put."""
        pending = [self._store.begin_get(each) for each in ids.values()]
        return [each.value for each in self._wait_results(pending, list(ids))]

    def acknowledge(self, of: int, to: int) -> bytes:
        """Tell member `to` that member `of` needs nothing of it; `to` deletes the object."""
        object_id = self.id("acknowledged", of, to)
        self._put(object_id, _ACKNOWLEDGED)
        return object_id

    def await_acknowledgements(self, pairs: Mapping[int, tuple[int, int]]) -> None:
        """Wait for the acknowledgements of other members; `delete_objects` deletes them."""
        ids = {rank: self.id("acknowledged", *pair) for rank, pair in pairs.items()}
        self._to_delete += ids.values()
        self.get(ids)

    def delete_objects(self) -> None:
        """Delete the objects that are this member's to delete."""
        for object_id in self._to_delete:
            with suppress(HopliteError):  # its node is gone, and so is the object
                self._roster.delete(object_id)

    def _put(self, object_id: bytes, value: Any) -> None:
        self._roster.record_owned(object_id)
        pending = self._store.begin_put(object_id, value)
        try:
            while not pending.wait(_LOOK_S):  # for memory
                self._check_progress([pending], [])
        except BaseException:
            pending.cancel()
            raise
        pending.result()

    def _wait_results(self, pending: Sequence[Pending[Any]], ranks: Sequence[int]) -> list[Any]:
        """Return the results of `pending`, each of which one of `ranks` makes."""
        try:
            while pending:
                ended = pending[0].wait_all(pending, _LOOK_S)
                if ended is None:
                    self._check_progress(pending, ranks)
                    continue
                if ended < len(pending):
                    pending[ended].result()
                break
            return [each.result() for each in pending]
        except BaseException:
            for each in pending:
                each.cancel()
            raise

    def _check_progress(self, pending: Sequence[Pending[Any]], ranks: Sequence[int]) -> None:
        """Raise if a member has failed or the time is up."""
        self._roster.check()
        if time.monotonic() < self._deadline:
            return
        late = [rank for rank, each in zip(ranks, pending, strict=False) if not each.wait(0)]
        who = f"waiting for rank {', '.join(map(str, late))}" if late else "waiting for the others"
        raise GetTimeoutError(
            f"{self._what} of collective group {self._roster.name!r} has not ended after "
            f"{self._timeout_s} s at rank {self._roster.rank}: {who}; see that all members call "
            "the same operations in the same order, or raise its option timeout_ms"
        )
