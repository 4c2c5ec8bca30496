"""One pending reduce: a coroutine of the steward that feeds sources to the store as they get ready.

A source is confirmed when its task has ended and its handle is here. The reduce skips failed
sources while `count` other ones can still come. It holds the refs of all sources until it
ends.

A large result for the caller alone comes to this node block by block while it is folded. Without
that, the caller's get after the commit would wait for a whole further copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import (
    HopliteError,
    InvalidArgumentError,
    LayoutMismatchError,
    ReduceError,
)
from hoplite_ray.pending import Pending, PendingReduce, ReceivedObject
from hoplite_ray.plugin.handle.messages import Combination
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward.source import Source, TakeBare, resolve
from hoplite_ray.values.layout import Layout, Share, check_reducible

_FOLDED_HERE_BYTES = 64 << 10  # up to it the caller's node folds, and nothing has to come
_fetch_tasks: set[asyncio.Task[None]] = set()  # the last blocks of results that have committed

_POLL_S = (0.0005, 0.01)  # first and longest pause between looks at a reduce that may commit


@dataclass(slots=True)
class ReduceRun:
    """The sources of one reduce, its request to the store, and how many must come."""

    store: StoreClient
    target: bytes
    how: Combination
    count: int
    sources: list[Source]
    take_bare: TakeBare
    first_failure_ends_it: bool
    ids: list[bytes]
    layout: Layout | None = None
    failed: list[Source] = field(default_factory=list)
    fetch: Pending[ReceivedObject] | None = None  # of the result, to this node

    @classmethod
    def of(
        cls,
        refs: list[Ref],
        store: StoreClient,
        target: bytes,
        how: Combination,
        take_bare: TakeBare,
    ) -> ReduceRun:
        return cls(
            store,
            target,
            how,
            len(refs) if how.count is None else how.count,
            [Source(index, ref) for index, ref in enumerate(refs)],
            take_bare,
            first_failure_ends_it=how.count is None,
            ids=[ref.binary() for ref in refs],
        )

    async def run(self) -> tuple[Layout, tuple[bytes, ...]]:
        """Wait for the commit; return the result's layout and the ids of the refs that went in."""
        arrivals: asyncio.Queue[Source] = asyncio.Queue()
        waits = [
            asyncio.create_task(resolve(source, arrivals, self.take_bare))
            for source in self.sources
        ]
        request: PendingReduce | None = None
        try:
            share = await self._find_share(arrivals)
            request = self.store.begin_reduce(
                self.target,
                source_count=len(self.sources),
                count=self.count,
                op=self.how.op,
                everywhere=self.how.everywhere,
                deterministic=self.how.deterministic,
                share=share,
            )
            members = await self._feed(request, arrivals)
            assert self.layout is not None
            layout = self.layout if share is None else share.layout
            if self.fetch is not None:
                rest = asyncio.create_task(_fetch_rest(self.fetch))
                _fetch_tasks.add(rest)
                rest.add_done_callback(_fetch_tasks.discard)
            return layout, tuple(self.ids[index] for index in sorted(members))
        except BaseException:
            for pending in (request, self.fetch):
                if pending is not None:
                    pending.cancel()
            raise
        finally:
            for wait in waits:
                wait.cancel()
            self._drop_refs()

    async def _find_share(self, arrivals: asyncio.Queue[Source]) -> Share | None:
        """Return the reader's share, by the layout of the first source that arrives."""
        if self.how.reader is None:
            return None
        first = await arrivals.get()
        arrivals.put_nowait(first)
        if first.failure is not None:
            raise first.failure
        assert first.handle is not None
        try:
            return Share.of(first.handle._layout, self.how.reader, len(self.sources))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"source {first.index}: {error}") from None

    def _drop_refs(self) -> None:
        self.failed.clear()
        for source in self.sources:
            source.drop_refs()

    async def _feed(self, request: PendingReduce, arrivals: asyncio.Queue[Source]) -> Sequence[int]:
        confirmed = 0
        pause_s = _POLL_S[0]
        while True:
            if confirmed < self.count:  # the reduce can't commit before
                arrived = await arrivals.get()
            else:
                if request.wait(0):
                    return self._members(request)
                try:
                    arrived = await asyncio.wait_for(arrivals.get(), pause_s)
                except TimeoutError:
                    pause_s = min(2 * pause_s, _POLL_S[1])
                    continue
            if self._accept(arrived, request):
                confirmed += 1

    def _members(self, request: PendingReduce) -> Sequence[int]:
        try:
            return request.result().members
        except ReduceError as error:  # the store has lost sources that were ready
            fates = [each.describe_fate(is_lost=each.index in error.lost) for each in self.sources]
            raise ReduceError(str(error.args[0]), fates, error.lost) from None

    def _accept(self, source: Source, request: PendingReduce) -> bool:
        """Confirm a source, or count its failure. Raises: the error if too few can come."""
        if source.failure is None:
            source.failure = self._find_mismatch(source)
        if source.failure is None:
            assert source.handle is not None
            handle = source.handle
            request.confirm(source.index, handle._object_id, incarnation=handle._incarnation)
            self._begin_fetch(handle._layout)
            return True
        request.fail(source.index)
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

    def _begin_fetch(self, layout: Layout) -> None:
        """Fetch a result for the caller alone; an allreduce's comes to all nodes by itself."""
        is_for_caller = not self.how.everywhere and layout.size_bytes > _FOLDED_HERE_BYTES
        if is_for_caller and self.fetch is None:
            self.fetch = self.store.begin_get(self.target)

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


async def _fetch_rest(fetch: Pending[ReceivedObject]) -> None:
    with suppress(HopliteError):  # a get of the result raises it
        await fetch.result_async()
