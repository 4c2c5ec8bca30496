"""Reduce, allreduce, reduce-scatter and gather: what Store does with several objects at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.pending import (
    Listener,
    Pending,
    PendingReduce,
    Received,
    Reduction,
    results,
    results_async,
)
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.layout import REDUCE_OPS, Layout, ReduceOp, Share, checked_id


class Collectives(ABC):
    """The part of Store that combines objects; see there."""

    _client: _native.Client
    _listener: Listener

    @abstractmethod
    def _begin_gets(self, object_ids: Sequence[bytes], exists: bool) -> list[Pending[Received]]:
        """Start what `gather` waits for."""

    @abstractmethod
    def _usable(self) -> _native.Client:
        """The client, unless it was closed or this is a fork."""

    def gather(
        self, object_ids: Sequence[bytes], *, exists: bool = False, timeout_s: float | None = None
    ) -> list[Any]:
        """Return the values of all objects, in this order; they come in any order, all at once.

        Raises:  as `get`, of the first that fails; the others are then taken back.
        """
        pending = self._begin_gets(object_ids, exists)
        return [each.value for each in results(pending, timeout_s)]

    async def gather_async(
        self, object_ids: Sequence[bytes], *, exists: bool = False, timeout_s: float | None = None
    ) -> list[Any]:
        """Await what `gather` returns."""
        pending = self._begin_gets(object_ids, exists)
        return [each.value for each in await results_async(pending, timeout_s)]

    def reduce(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Combine the first `count` of `sources` (all, if None) element by element into `target`.

        Sources need not be put yet; they go in as they arrive, whatever their order in the list.
        With `begin_reduce` the caller confirms them one by one. The result stays until it is
        deleted; when this node has been away for 30 s, it may be evicted before everything else.
        With `deterministic`, members are combined along a fixed binary tree over their place in
        the list (0 with 1, 2 with 3, these pairs, and so on): the same members give the same bits,
        in whatever order they come.

        Shapes:  all sources share one layout, and so does the result: dicts and lists are combined
                 array by array. Integers wrap around; bool takes "max" (any), "min" (all); "mean"
                 takes floats; 16-bit floats are added up in 32 bits and rounded once.
        Raises:  ReduceError if fewer than `count` sources are left; LayoutMismatchError;
                 InvalidArgumentError for a dtype that the operation does not take.
        Cost:    size_bytes through each link (n nodes, a source on each; several that are there
                 already cross as one, unless 16 bits wide). Each node but the caller's folds
                 1 / (n - 1) of the result and holds size_bytes for it; deterministic: and of its
                 share up to min(count, sources / 2) copies, twice as wide for 16-bit floats, for
                 what waits for its neighbour.
        Source:  Zhuang et al., "Hoplite", SIGCOMM 2021, reduce; docs/design.md.
        """
        pending = self._begin_reduce_of(target, sources, op, count, deterministic=deterministic)
        return pending.result(timeout_s)

    async def reduce_async(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Await what `reduce` returns."""
        pending = self._begin_reduce_of(target, sources, op, count, deterministic=deterministic)
        return await pending.result_async(timeout_s)

    def allreduce(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Combine as `reduce` does, for a result that every node will get.

        Every node folds its share of the result, this one too, so that the gets that follow carry
        2 (n - 1) / n times the object over each of n nodes' links, which is the least there is.
        """
        pending = self._begin_reduce_of(
            target, sources, op, count, everywhere=True, deterministic=deterministic
        )
        return pending.result(timeout_s)

    async def allreduce_async(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Await what `allreduce` returns."""
        pending = self._begin_reduce_of(
            target, sources, op, count, everywhere=True, deterministic=deterministic
        )
        return await pending.result_async(timeout_s)

    def reduce_scatter(
        self,
        targets: Sequence[bytes],
        sources: Sequence[bytes],
        shape: int | Sequence[int],
        dtype: Any = "float32",
        *,
        kind: Kind = "numpy",
        op: ReduceOp = "sum",
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Combine all `sources` as `reduce` does, and cut the result by rows into `targets`.

        Target i gets the rows of numpy.array_split(result, n)[i], n being the number of sources and
        of targets. It is folded on the node which has source i, where a get of it moves no byte.
        Targets are objects like any other, each to be deleted by itself.

        Shapes:  every source is an array of `shape` and `dtype`, as `kind` has it ("numpy" or
                 "torch").
        Raises:  as `reduce`; the other targets are then taken back. LayoutMismatchError for a
                 source of another size or dtype.
        Cost:    (n - 1) / n of size_bytes through each of n nodes' links, each way, which is the
                 least there is; each folds and holds 1 / n.
        """
        pending = self._begin_scatter(targets, sources, shape, dtype, kind, op, deterministic)
        results(pending, timeout_s)

    async def reduce_scatter_async(
        self,
        targets: Sequence[bytes],
        sources: Sequence[bytes],
        shape: int | Sequence[int],
        dtype: Any = "float32",
        *,
        kind: Kind = "numpy",
        op: ReduceOp = "sum",
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Await what `reduce_scatter` does."""
        pending = self._begin_scatter(targets, sources, shape, dtype, kind, op, deterministic)
        await results_async(pending, timeout_s)

    def _begin_scatter(
        self,
        targets: Sequence[bytes],
        sources: Sequence[bytes],
        shape: int | Sequence[int],
        dtype: Any,
        kind: Kind,
        op: ReduceOp,
        deterministic: bool,
    ) -> list[PendingReduce]:
        if len(targets) != len(sources):
            raise InvalidArgumentError(
                f"reduce_scatter has {len(targets)} targets for {len(sources)} sources; "
                "it takes one for each"
            )
        source = Layout.of_array(shape, dtype, kind)
        shares = [Share.of(source, index, len(targets)) for index in range(len(targets))]
        begun: list[PendingReduce] = []
        try:
            for target, share in zip(targets, shares, strict=True):
                begun.append(
                    self._begin_reduce_of(
                        target, sources, op, None, deterministic=deterministic, share=share
                    )
                )
        except BaseException:
            for each in begun:
                each.cancel()
            raise
        return begun

    def begin_reduce(
        self,
        target: bytes,
        *,
        source_count: int,
        op: ReduceOp = "sum",
        count: int | None = None,
        everywhere: bool = False,
        deterministic: bool = False,
        share: Share | None = None,
    ) -> PendingReduce:
        """Start a reduce of the first `count` of `source_count` sources that are confirmed.

        With `share`, only of that share of each, as one of the targets of a reduce-scatter.
        """
        count = source_count if count is None else count
        if op not in REDUCE_OPS:
            raise InvalidArgumentError(f"op is {op!r}; it takes {', '.join(REDUCE_OPS)}")
        if source_count < 1:
            raise InvalidArgumentError("a reduce takes at least one source, not none")
        if type(count) is not int or not 1 <= count <= source_count:
            raise InvalidArgumentError(
                f"count is {count!r}; it takes 1 to {source_count}, the number of sources"
            )
        if type(deterministic) is not bool:
            raise InvalidArgumentError(f"deterministic is {deterministic!r}; it is True or False")
        target = checked_id(target)
        request = self._usable().reduce(
            target,
            op=REDUCE_OPS[op],
            source_count=source_count,
            count=count,
            everywhere=everywhere,
            deterministic=deterministic,
            share=None
            if share is None
            else (
                *(share.source.size_bytes, share.offset, share.reader),
                *(share.layout.to_bytes(), share.layout.parts),
            ),
        )
        return PendingReduce(self._listener, self._client, target, request)

    def _begin_reduce_of(
        self,
        target: bytes,
        sources: Sequence[bytes],
        op: ReduceOp,
        count: int | None,
        *,
        everywhere: bool = False,
        deterministic: bool = False,
        share: Share | None = None,
    ) -> PendingReduce:
        """Start a reduce whose sources go in when some node has them."""
        checked = [checked_id(source) for source in sources]
        pending = self.begin_reduce(
            target,
            source_count=len(checked),
            op=op,
            count=count,
            everywhere=everywhere,
            deterministic=deterministic,
            share=share,
        )
        try:
            for index, source in enumerate(checked):
                pending.await_source(index, source)
        except BaseException:
            pending.cancel()
            raise
        return pending
