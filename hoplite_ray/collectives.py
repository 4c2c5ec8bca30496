"""The collectives of `Store`: reduce, all_reduce, reduce_scatter and gather."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Sequence
from typing import Any

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.pending import PendingReduce, Reduction, results, results_async
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.layout import Layout, ReduceOp, Share, checked_id


class Collectives:
    """The part of `Store` that combines objects."""

    _client: StoreClient

    def gather(self, object_ids: Sequence[bytes], *, timeout_s: float | None = None) -> list[Any]:
        """Return the values of several objects, which are fetched at once.

        Args:    object_ids: the ids under which the values were or will be put.
                 timeout_s: as for `get`; the limit is for all of them together.
        Returns: the values, in the order of their ids.
        Raises:  as `get`, of the first that fails; the other gets are then cancelled.
        Example:

            object_ids = [new_id(), new_id()]
            for number, object_id in enumerate(object_ids):
                store.put(object_id, np.full(2, number))
            assert [value.sum() for value in store.gather(object_ids)] == [0, 2]
        """
        pending = self._client.begin_gets(object_ids)
        return [each.value for each in results(pending, timeout_s)]

    async def gather_async(
        self, object_ids: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[Any]:
        """Like `gather`, but awaitable; cancelling it cancels all transfers."""
        pending = self._client.begin_gets(object_ids)
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
        """Combine several objects element by element into a new object.

        The sources need not be put yet: each goes in when it arrives. The result stays until it is
        deleted, except when this node has been away for 30 s: then it may be evicted before
        everything else.

        Args:    target: the id of the result, from `new_id`.
                 sources: the ids of the objects to combine, in any order.
                 op: "sum", "prod", "min", "max" or "mean".
                 count: how many sources go in, the first to arrive; None takes all of them.
                 deterministic: True combines members along a fixed binary tree over their place in
                 the list (0 with 1, 2 with 3, these pairs, and so on): the same members then give
                 the same bits in any order of arrival.
                 timeout_s: seconds to wait for the result; None waits without a limit.
        Shapes:  all sources share one layout, and so does the result: dicts and lists are combined
                 array by array. Integers wrap around; bool takes "max" (any), "min" (all); "mean"
                 takes floats; 16-bit floats are added up in 32 bits and rounded once.
        Returns: the target, and which sources went in, as a `Reduction`.
        Raises:  ReduceError if fewer than `count` sources are left; LayoutMismatchError;
                 InvalidArgumentError for a dtype that the operation does not take; GetTimeoutError.
        Cost:    size_bytes through each link, with a source on each of n nodes. Sources of one node
                 cross as one, except when they are 16 bits wide. Each node but the caller's folds
                 1 / (n - 1) of the result and holds size_bytes for it. With `deterministic` it also
                 holds up to min(count, sources / 2) copies of its share, twice as wide for 16-bit
                 floats, because a member waits for its neighbour.
        Source:  Zhuang et al., "Hoplite", SIGCOMM 2021, reduce; design decision 5.
        Example:

            sources = [new_id() for _ in range(3)]
            for source in sources:
                store.put(source, np.ones(4, "float32"))
            target = new_id()
            reduction = store.reduce(target, sources, op="sum", count=2)
            assert len(reduction.members) == 2
            assert store.get(target).tolist() == [2, 2, 2, 2]
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
        """Like `reduce`, but awaitable; cancelling it takes the reduce back."""
        pending = self._begin_reduce_of(target, sources, op, count, deterministic=deterministic)
        return await pending.result_async(timeout_s)

    def all_reduce(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Combine several objects as `reduce` does, into a result that every node will get.

        Args:    as for `reduce`.
        Returns: as `reduce`.
        Raises:  as `reduce`.
        Cost:    2 (n - 1) / n times size_bytes over each of n nodes' links, with the gets that
                 follow; that is the lower bound. Every node folds its share, the caller's too.
        Example:

            sources = [new_id(), new_id()]
            for source in sources:
                store.put(source, np.ones(4))
            target = new_id()
            store.all_reduce(target, sources, op="mean")
            assert store.get(target).tolist() == [1, 1, 1, 1]
        """
        pending = self._begin_reduce_of(
            target, sources, op, count, everywhere=True, deterministic=deterministic
        )
        return pending.result(timeout_s)

    async def all_reduce_async(
        self,
        target: bytes,
        sources: Sequence[bytes],
        *,
        op: ReduceOp = "sum",
        count: int | None = None,
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Reduction:
        """Like `all_reduce`, but awaitable; cancelling it takes the reduce back."""
        pending = self._begin_reduce_of(
            target, sources, op, count, everywhere=True, deterministic=deterministic
        )
        return await pending.result_async(timeout_s)

    def allreduce(self, *args: Any, **options: Any) -> Reduction:
        """Call `all_reduce`, by its old name; the next release lacks it."""
        _warn_of_old_name("allreduce", "all_reduce")
        return self.all_reduce(*args, **options)

    def allreduce_async(self, *args: Any, **options: Any) -> Coroutine[Any, Any, Reduction]:
        """Call `all_reduce_async`, by its old name; the next release lacks it."""
        _warn_of_old_name("allreduce_async", "all_reduce_async")
        return self.all_reduce_async(*args, **options)

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
        """Combine all sources as `reduce` does, and cut the result by rows into the targets.

        Target i gets the rows of numpy.array_split(result, n)[i] for n sources. The node that has
        source i folds it, so that a get of it there moves no byte. Each target is an object of its
        own, and is deleted by itself.

        Args:    targets: one id for each source, from `new_id`.
                 sources: the ids of the arrays to combine.
                 shape, dtype: those of every source.
                 kind: "numpy" for arrays, "torch" for tensors.
                 op, deterministic, timeout_s: as for `reduce`.
        Shapes:  every source is an array of `shape` and `dtype`.
        Returns: None, when all targets can be had.
        Raises:  as `reduce`, and LayoutMismatchError for a source of another size or dtype; the
                 other targets are then taken back.
        Cost:    (n - 1) / n of size_bytes through each of n nodes' links, each way; that is the
                 lower bound. Each node folds and holds 1 / n.
        Example:

            sources, targets = [new_id(), new_id()], [new_id(), new_id()]
            for source in sources:
                store.put(source, np.arange(4, dtype="float32"))
            store.reduce_scatter(targets, sources, 4, "float32")
            assert store.get(targets[1]).tolist() == [4, 6]
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
        """Like `reduce_scatter`, but awaitable; cancelling it takes all targets back."""
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
        """Start a reduce. Each source goes in when a node has it."""
        checked = [checked_id(source) for source in sources]
        pending = self._client.begin_reduce(
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


def _warn_of_old_name(old: str, new: str) -> None:
    text = f"Store.{old} is called {new}; the next release lacks the old name"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
