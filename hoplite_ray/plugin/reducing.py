"""One pending reduce: a coroutine of the steward that feeds sources to the store as they get ready.

A source is confirmed when its task has ended and its handle is here. Failed ones are skipped while
`count` others can still come. The refs of all sources are held until the reduce has committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ray.errors import LayoutMismatchError, ReduceError
from hoplite_ray.pending import PendingReduce
from hoplite_ray.plugin import seams
from hoplite_ray.plugin.array import PADDED_BYTES, Array, make
from hoplite_ray.plugin.seams import Ref
from hoplite_ray.refs import Layout, ReduceOp
from hoplite_ray.store import Store

DTYPES = ("float32", "float64", "int64")

# A handle, padded or not, is below this; what is larger must be an array and stays where it is.
_HANDLE_BYTES_MAX = 2 * PADDED_BYTES
_LOCATE_MS = 5_000
_POLL_S = (0.0005, 0.01)  # first and longest pause between looks at a reduce that may commit


@dataclass(slots=True)
class Source:
    """One source and what has become of it. Only this refers to its ref, so that it can let go."""

    index: int
    ref: Ref | None
    handle: Array | None = None
    wrapped: Ref | None = None  # of a bare array: the ref of the handle made for it
    failure: Exception | None = None

    def fate(self) -> str:
        assert self.ref is not None
        name = f"source {self.index} ({self.ref.hex()[:12]}..)"
        if self.failure is not None:
            cause = getattr(self.failure, "cause", None) or self.failure
            text = str(cause).strip().splitlines() or [""]
            return f"{name}: {type(cause).__name__}: {text[-1]}"
        return f"{name}: {'ready' if self.handle is not None else 'pending'}"


@dataclass(slots=True)
class ReduceRun:
    """The sources of one reduce, its request to the store, and how many must come."""

    store: Store
    target: bytes
    op: ReduceOp
    count: int
    sources: list[Source]
    first_failure_ends_it: bool
    ids: list[bytes]
    layout: Layout | None = None
    failed: list[Source] = field(default_factory=list)

    @classmethod
    def of(
        cls, refs: list[Ref], count: int | None, store: Store, target: bytes, op: ReduceOp
    ) -> ReduceRun:
        return cls(
            store,
            target,
            op,
            len(refs) if count is None else count,
            [Source(index, ref) for index, ref in enumerate(refs)],
            first_failure_ends_it=count is None,
            ids=[ref.binary() for ref in refs],
        )

    async def run(self) -> tuple[Layout, tuple[bytes, ...]]:
        """The result's layout and the ids of the refs that went in, once it has committed."""
        arrivals: asyncio.Queue[Source] = asyncio.Queue()
        waits = [asyncio.create_task(_resolve(source, arrivals)) for source in self.sources]
        request = self.store.begin_reduce(
            self.target, source_count=len(self.sources), count=self.count, op=self.op
        )
        try:
            members = await self._feed(request, arrivals)
            assert self.layout is not None
            return self.layout, tuple(self.ids[index] for index in sorted(members))
        except BaseException:
            request.cancel()
            raise
        finally:
            for wait in waits:
                wait.cancel()
            self._let_go()

    def _let_go(self) -> None:
        """Drop refs now: the traceback of an error would keep them until Python collects it."""
        self.failed.clear()
        for source in self.sources:
            source.ref = source.handle = source.wrapped = source.failure = None

    async def _feed(self, request: PendingReduce, arrivals: asyncio.Queue[Source]) -> Sequence[int]:
        confirmed = 0
        pause_s = _POLL_S[0]
        while True:
            if confirmed < self.count:  # nothing can commit before: wait for a source
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
        except ReduceError as error:  # sources were lost after they had been ready
            fates = [each.fate() for each in self.sources]
            raise ReduceError(str(error.args[0]), fates) from None

    def _accept(self, source: Source, request: PendingReduce) -> bool:
        """Confirm a source, or count its failure; raises when too few can come."""
        if source.failure is None:
            source.failure = self._mismatch(source)
        if source.failure is None:
            assert source.handle is not None
            handle = source.handle
            request.confirm(source.index, handle._object_id, incarnation=handle._incarnation)
            return True
        request.fail(source.index)
        self.failed.append(source)
        if self.first_failure_ends_it:
            raise source.failure
        left = len(self.sources) - len(self.failed)
        if left < self.count:
            error = ReduceError(
                f"reduce needs {self.count} of {len(self.sources)} sources, only {left} are left",
                [each.fate() for each in self.sources],
            )
            error.first_failure = self.failed[0].failure  # type: ignore[attr-defined]
            raise error
        return False

    def _mismatch(self, source: Source) -> Exception | None:
        assert source.handle is not None
        layout = source.handle._layout
        if layout.dtype.name not in DTYPES or not layout.dtype.isnative:
            return TypeError(
                f"source {source.index} is {layout.dtype}; reduce takes {', '.join(DTYPES)}"
            )
        if self.layout is None:
            self.layout = layout
        if layout != self.layout:
            return LayoutMismatchError(
                f"source {source.index} is {source.handle!r}, but the first one to arrive is "
                f"{self.layout.dtype}{list(self.layout.shape)}; sources need one dtype and shape"
            )
        return None


async def _resolve(source: Source, arrivals: asyncio.Queue[Source]) -> None:
    """Wait for a source's task and get its handle, or what went wrong."""
    try:
        assert source.ref is not None
        await seams.ready(source.ref)
        size_bytes, node = await asyncio.to_thread(_facts, source)
        if size_bytes > _HANDLE_BYTES_MAX:
            source.wrapped = _wrap_where_it_is(source, node)
        value = await (source.wrapped or source.ref)
        if isinstance(value, (np.ndarray, np.generic)):
            value = await asyncio.to_thread(make, np.asarray(value))
        if not isinstance(value, Array):
            raise _wrong_type(source.index, value)
        source.handle = value
    except Exception as failure:
        source.failure = failure
    await arrivals.put(source)


def _facts(source: Source) -> tuple[int, str | None]:
    """Size of a ready object and a Ray node that has it, asked from its owner, not fetched."""
    if source.ref is None:
        return 0, None
    try:
        located = ray.experimental.get_object_locations([source.ref], timeout_ms=_LOCATE_MS)
    except ray.exceptions.GetTimeoutError:
        return 0, None  # its owner is dying: fetching it tells
    facts = located.get(source.ref, {})
    nodes = facts.get("node_ids") or [None]
    return facts.get("object_size") or 0, nodes[0]


def _wrong_type(index: int, value: Any) -> TypeError:
    kind = type(value).__name__
    return TypeError(
        f"source {index} returned {kind}; return hoplite_ray.array(value) or a numpy array"
    )


def _wrap_where_it_is(source: Source, node: str | None) -> Ref:
    """Turn a bare array into an object of the store on the Ray node that holds it."""
    assert source.ref is not None
    where = node or ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(where, soft=True)
    task = _wrap.options(scheduling_strategy=strategy)
    return task.remote([source.ref], source.index)


@ray.remote(num_cpus=0)
def _wrap(refs: list[Ref], index: int) -> Array:
    value = ray.get(refs[0])
    if not isinstance(value, np.ndarray):
        raise _wrong_type(index, value)
    return make(value)
