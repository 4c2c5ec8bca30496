"""Bare values: results of sources without hop.array, which a reduce needs in the store.

The caller of the reduce or gather reads them, because it has the modules and the environment of its
job. It asks the steward for them while it waits:

    caller   reduce(...), then bare_sources()
    steward  answers bare_sources() with the bare sources that it has met
    caller   puts a small value itself; has a task put a large one where it is
    caller   take_bare(key, the handle or the task's ref), then bare_sources() again

A question outlasts the call, so that the next one finds it open. It ends with a call that had bare
sources, because the caller then drops what it has made of them.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field

from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.messages import Bare, BareResult
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward.source import Source

_KEY_BYTES = 16
_POLL_S = 5.0  # of one question for bare sources, beyond which the answer is empty


@dataclass(slots=True)
class _Caller:
    """The bare sources that one caller has not received yet."""

    bare: list[Bare] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class BareSources:
    """The steward's half. Everything runs on its event loop."""

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._results: dict[bytes, asyncio.Future[BareResult]] = {}
        self._answers: set[bytes] = set()  # of pending calls that had bare sources

    async def request_read(
        self, caller: str, answer: bytes, source: Source, node: str | None, is_large: bool
    ) -> Array | Ref:
        """Return the handle that `caller` has made of a bare value, or the ref of a task's."""
        assert source.ref is not None
        key = os.urandom(_KEY_BYTES)
        coming = self._results[key] = asyncio.get_running_loop().create_future()
        asking = self._callers.setdefault(caller, _Caller())
        self._answers.add(answer)
        asking.bare.append(Bare(key, answer, source.index, [source.ref], node, is_large))
        asking.changed.set()
        try:
            taken = await coming
        finally:
            del self._results[key]
            asking.bare = [each for each in asking.bare if each.key != key]
        if isinstance(taken, Exception):
            raise taken
        return taken if isinstance(taken, Array) else taken[0]

    async def next_for(self, caller: str) -> list[Bare]:
        """Return the sources that `caller` shall read; none after a time, or by `end_call`."""
        asking = self._callers.setdefault(caller, _Caller())
        if not asking.bare:
            asking.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(asking.changed.wait(), _POLL_S)
        bare, asking.bare = asking.bare, []
        if self._callers.get(caller) is asking:
            del self._callers[caller]
        return bare

    def deliver(self, key: bytes, taken: BareResult) -> None:
        """Take the caller's result for a source, unless its call has ended meanwhile."""
        coming = self._results.get(key)
        if coming is not None and not coming.done():
            coming.set_result(taken)

    def end_call(self, caller: str, answer: bytes) -> None:
        """End the question of `caller` if its call with that answer had bare sources."""
        had_any = answer in self._answers
        self._answers.discard(answer)
        if had_any and caller in self._callers:
            self._callers[caller].changed.set()
