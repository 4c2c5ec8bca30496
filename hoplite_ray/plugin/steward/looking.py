"""Looks at sources that are ready: one look, in a thread, for all that have come meanwhile.

A look finds the sizes and places of the sources, and fetches those that may be handles. Ray tells
this process sizes and places with the ends of most tasks; for the others a look asks the owners.
Each look of its own costs two changes of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import ray

from hoplite_ray.plugin.handle.array import PADDED_BYTES
from hoplite_ray.plugin.seams import values as value_seams
from hoplite_ray.plugin.seams.core import Ref

# A handle is smaller, except when its value has hundreds of arrays. A task on the node of a larger
# object looks at it.
_HANDLE_BYTES_MAX = 2 * PADDED_BYTES
_LOCATE_MS = 5_000
_FETCH_S = 0.1  # for all of one look; what has not come by then is fetched by itself
_TOGETHER_MAX = 256  # sources of one look


class HasRef(Protocol):
    """A source, which drops its ref when its call ends."""

    ref: Ref | None


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look. Without a size the owner has not answered: the fetch says why."""

    size_bytes: int = 0
    node: str | None = None  # a Ray node that has the value
    unread: value_seams.Unread | None = None  # unless it is large, or has not come

    @property
    def is_large(self) -> bool:
        """True if the value can be no handle."""
        return self.size_bytes > _HANDLE_BYTES_MAX


class Looks:
    """The looks of one call. Everything runs on the steward's event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[HasRef, asyncio.Future[Look]]] = []
        self._looking: asyncio.Task[None] | None = None

    async def at(self, source: HasRef) -> Look:
        """Look at a source whose task has ended."""
        found: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
        self._waiting.append((source, found))
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await found

    async def _look(self) -> None:
        try:
            while self._waiting:
                now, self._waiting = self._waiting[:_TOGETHER_MAX], self._waiting[_TOGETHER_MAX:]
                looks = await asyncio.to_thread(_look_at, [source for source, _ in now])
                for (_, found), look in zip(now, looks, strict=True):
                    if found.done():  # its call has ended
                        continue
                    if isinstance(look, Look):
                        found.set_result(look)
                    else:
                        found.set_exception(look)
        finally:
            self._looking = None


def _look_at(sources: Sequence[HasRef]) -> Sequence[Look | Exception]:
    """Return for each source what was found, or what went wrong with all."""
    refs = [source.ref for source in sources]
    try:
        return _looks_at([ref for ref in refs if ref is not None], refs)
    except ray.exceptions.GetTimeoutError:
        return [Look()] * len(refs)  # an owner is dying: its fetch raises the error
    except Exception as error:
        return [error] * len(refs)


def _looks_at(present: Sequence[Ref], refs: Sequence[Ref | None]) -> list[Look]:
    located = ray.experimental.get_local_object_locations(list(present))
    unknown = [ref for ref in present if not located.get(ref, {}).get("object_size")]
    if unknown:
        located |= ray.experimental.get_object_locations(unknown, timeout_ms=_LOCATE_MS)
    looks = {}
    for ref in present:
        facts = located.get(ref, {})
        nodes = facts.get("node_ids") or [None]
        looks[ref] = Look(facts.get("object_size") or 0, nodes[0])
    small = [ref for ref in looks if looks[ref].size_bytes and not looks[ref].is_large]
    for ref, unread in zip(small, value_seams.fetch_all_unread(small, _FETCH_S), strict=True):
        looks[ref] = replace(looks[ref], unread=unread)
    return [Look() if ref is None else looks[ref] for ref in refs]
