"""One pending reduce: a coroutine of the steward that adds sources to a fold as they get ready.

A source is added when its task has ended and its handle is here. The reduce skips failed sources
while `count` other ones can still come. It holds the refs of all sources until it ends.

Small sources are folded here (folding.py), larger ones by the nodes (on_nodes.py). The first source
that arrives decides, because all have one layout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import (
    InvalidArgumentError,
    LayoutMismatchError,
    ReduceError,
)
from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX, Array
from hoplite_ray.plugin.handle.messages import Combination
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward.folding import SmallFold
from hoplite_ray.plugin.steward.looking import Looks
from hoplite_ray.plugin.steward.on_nodes import NodeFold
from hoplite_ray.plugin.steward.source import Source, TakeBare, resolve
from hoplite_ray.values.layout import Layout, Share, check_reducible

_POLL_S = (0.0005, 0.01)  # first and longest pause between looks at a reduce that may commit

# Returns the node's store, and an anchor for the result, which the journal names with the result.
NameResult: TypeAlias = Callable[[], Awaitable[tuple[StoreClient, Ref]]]


@dataclass(slots=True)
class ReduceRun:
    """The sources of one reduce, the fold of them, and how many must come."""

    target: bytes
    how: Combination
    count: int
    sources: list[Source]
    take_bare: TakeBare
    name_result: NameResult
    first_failure_ends_it: bool
    ids: list[bytes]
    layout: Layout | None = None
    fold: SmallFold | NodeFold | None = None  # from the first source on
    failed: list[Source] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        refs: list[Ref],
        target: bytes,
        how: Combination,
        take_bare: TakeBare,
        name_result: NameResult,
    ) -> ReduceRun:
        return cls(
            target,
            how,
            len(refs) if how.count is None else how.count,
            [Source(index, ref) for index, ref in enumerate(refs)],
            take_bare,
            name_result,
            first_failure_ends_it=how.count is None,
            ids=[ref.binary() for ref in refs],
        )

    async def run(self) -> Array:
        """Wait for the commit; return the result, with the ids of the refs that went in."""
        arrivals: asyncio.Queue[Source] = asyncio.Queue()
        looks = Looks()
        waits = [
            asyncio.create_task(resolve(source, arrivals, looks, self.take_bare, needs_bytes=True))
            for source in self.sources
        ]
        try:
            fold = await self._feed(arrivals)
            members = sorted(self._members(fold))
            return fold.make(tuple(self.ids[index] for index in members))
        except BaseException:
            if self.fold is not None:
                self.fold.cancel()
            raise
        finally:
            for wait in waits:
                wait.cancel()
            self._drop_refs()

    def _drop_refs(self) -> None:
        self.failed.clear()
        for source in self.sources:
            source.drop_refs()

    async def _feed(self, arrivals: asyncio.Queue[Source]) -> SmallFold | NodeFold:
        """Add sources until the fold is over, and return it."""
        added = 0
        pause_s = _POLL_S[0]
        while True:
            if self.fold is None or added < self.count:  # the reduce can't commit before
                arrived = await arrivals.get()
            else:
                if self.fold.is_over():
                    return self.fold
                try:
                    arrived = await asyncio.wait_for(arrivals.get(), pause_s)
                except TimeoutError:
                    pause_s = min(2 * pause_s, _POLL_S[1])
                    continue
            if await self._accept(arrived):
                added += 1

    def _members(self, fold: SmallFold | NodeFold) -> Sequence[int]:
        try:
            return fold.members()
        except ReduceError as error:  # the store has lost sources that were ready
            fates = [each.describe_fate(is_lost=each.index in error.lost) for each in self.sources]
            raise ReduceError(str(error.args[0]), fates, error.lost) from None

    async def _accept(self, source: Source) -> bool:
        """Add a source, or count its failure. Raises: the error if too few can come."""
        if source.failure is None:
            source.failure = self._find_mismatch(source)
        if source.failure is None:
            assert source.handle is not None
            if self.fold is None:
                self.fold = await self._begin(source.index, source.handle._layout)
                for each in self.failed:
                    self.fold.fail(each.index)
            self.fold.add(source.index, source.handle)
            if isinstance(self.fold, SmallFold):
                source.handle = source.handle._with_data(None)  # the fold has taken the bytes
            return True
        if self.fold is not None:
            self.fold.fail(source.index)
        self.failed.append(source)
        if self.first_failure_ends_it:
            raise source.failure
        left = len(self.sources) - len(self.failed)
        if left < self.count:
            error = ReduceError(
                f"reduce needs {self.count} of {len(self.sources)} sources, only {left} "
                f"{'is' if left == 1 else 'are'} left",
                [each.describe_fate() for each in self.sources],
                sorted(each.index for each in self.failed),
            )
            error.first_failure = self.failed[0].failure  # type: ignore[attr-defined]
            raise error
        return False

    async def _begin(self, first: int, layout: Layout) -> SmallFold | NodeFold:
        """Begin the fold, by the layout of the source that has arrived first."""
        share = self._find_share(first, layout)
        if layout.size_bytes <= SMALL_BYTES_MAX:
            return SmallFold(
                self.target,
                layout,
                self.how.op,
                share=share,
                deterministic=self.how.deterministic,
            )
        store, anchor = await self.name_result()
        return NodeFold(
            *(store, self.target, anchor, layout, self.how),
            share=share,
            source_count=len(self.sources),
            count=self.count,
        )

    def _find_share(self, first: int, layout: Layout) -> Share | None:
        if self.how.reader is None:
            return None
        try:
            return Share.of(layout, self.how.reader, len(self.sources))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"source {first}: {error}") from None

    def _find_mismatch(self, source: Source) -> Exception | None:
        assert source.handle is not None
        layout = source.handle._layout
        if self.layout is None:
            try:
                check_reducible(layout, self.how.op)
            except InvalidArgumentError as error:
                return InvalidArgumentError(f"source {source.index}: {error}")
            self.layout = layout
        if layout != self.layout:
            return LayoutMismatchError(
                f"source {source.index} doesn't fit the first one to arrive: "
                f"{layout.difference(self.layout)}; all sources need the same dtypes and shapes"
            )
        return None
