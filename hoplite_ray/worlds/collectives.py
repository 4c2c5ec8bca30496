"""The collectives of `World`: broadcast, reduces, gathers, scatters and the barrier.

Each verb and its twin run the same generator of `ops.collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hoplite_ray.values.layout import ReduceOp
from hoplite_ray.worlds.core.waiting import run_async, run_blocking
from hoplite_ray.worlds.ops import collectives
from hoplite_ray.worlds.ops.membership import Membership

T = TypeVar("T")


class Collectives:
    """The part of `World` that all members call in the same order. It only uses `membership`."""

    membership: Membership

    def broadcast(self, array: T, *, src: int, timeout_s: float | None = None) -> T:
        """Fill every member's `array` from the one of `src`.

        Args:    array: an array of one dtype and size at all members. It is read at `src`, and
                 filled elsewhere.
                 src: the rank whose array all get.
                 timeout_s: seconds to wait; None waits as long as all members live.
        Returns: `array`.
        Raises:  WorldBrokenError; WorldTimeoutError, which ends the world if a part has moved;
                 InvalidArgumentError; WrongTypeError.
        Cost:    the array once over each link: directly below 64 KiB, else along a line of ranks.
        Example:

            array = np.arange(3) if world.rank == 0 else np.empty(3, int)
            assert world.broadcast(array, src=0).tolist() == [0, 1, 2]
        """
        steps = collectives.broadcast(self.membership.usable(), array, src, timeout_s)
        result: T = run_blocking(steps, "broadcast")
        return result

    async def broadcast_async(self, array: T, *, src: int, timeout_s: float | None = None) -> T:
        """Like `broadcast`, but awaitable; cancelling it ends the world if a part has moved."""
        steps = collectives.broadcast(self.membership.usable(), array, src, timeout_s)
        result: T = await run_async(steps)
        return result

    def all_reduce(self, array: T, *, op: ReduceOp = "sum", timeout_s: float | None = None) -> T:
        """Fold all members' arrays element by element, in place; all members get the same bits.

        Args:    array: an array of one dtype and size at all members; it is filled.
                 op: "sum", "prod", "min", "max" or "mean"; "mean" takes floats.
                 timeout_s: as for `broadcast`.
        Returns: `array`.
        Raises:  as `broadcast`; InvalidArgumentError for a dtype that the operation does not take.
        Cost:    2 (n - 1) / n of the array out of and into each of n members above 64 KiB; n - 1
                 arrays below, in one step.
        Source:  Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
                 workstations", JPDC 2009.
        Example:

            array = np.ones(3)
            world.all_reduce(array)
            assert array.tolist() == [world.size] * 3
        """
        steps = collectives.all_reduce(self.membership.usable(), array, op, timeout_s)
        result: T = run_blocking(steps, "all_reduce")
        return result

    async def all_reduce_async(
        self, array: T, *, op: ReduceOp = "sum", timeout_s: float | None = None
    ) -> T:
        """Like `all_reduce`, but awaitable; cancelling it ends the world if a part has moved."""
        steps = collectives.all_reduce(self.membership.usable(), array, op, timeout_s)
        result: T = await run_async(steps)
        return result

    def reduce(
        self, array: T, *, dst: int, op: ReduceOp = "sum", timeout_s: float | None = None
    ) -> T:
        """Fold all members' arrays into the one of `dst`, in place; the other arrays stay.

        Args:    array: an array of one dtype and size at all members; it is filled at `dst`.
                 dst: the rank that gets the result.
                 op, timeout_s: as for `all_reduce`.
        Returns: `array`.
        Raises:  as `all_reduce`.
        Cost:    the array once over each link: directly below 64 KiB, else along a line of ranks.
        Example:

            array = np.full(3, world.rank)
            world.reduce(array, dst=0, op="max")
            assert world.rank != 0 or array.tolist() == [world.size - 1] * 3
        """
        steps = collectives.reduce(self.membership.usable(), array, dst, op, timeout_s)
        result: T = run_blocking(steps, "reduce")
        return result

    async def reduce_async(
        self, array: T, *, dst: int, op: ReduceOp = "sum", timeout_s: float | None = None
    ) -> T:
        """Like `reduce`, but awaitable; cancelling it ends the world if a part has moved."""
        steps = collectives.reduce(self.membership.usable(), array, dst, op, timeout_s)
        result: T = await run_async(steps)
        return result

    def reduce_scatter(
        self, array: Any, *, op: ReduceOp = "sum", into: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Fold all members' arrays as `all_reduce` does, and give each member its rows of it.

        Rank i gets the rows of numpy.array_split(result, size)[i]; `array` stays as it is.

        Args:    array: an array of one dtype and shape at all members, with a dimension or more.
                 op, timeout_s: as for `all_reduce`.
                 into: the array to fill, of the dtype and size of this rank's rows; None makes a
                 new one.
        Returns: `into`, or a new array.
        Raises:  as `all_reduce`.
        Cost:    (n - 1) / n of the array out of and into each of n members, in one step; that is
                 the lower bound. On GPUs it is a reduce for each rank, one after the other.
        Example:

            rows = world.reduce_scatter(np.ones((4, 3)))
            assert rows.tolist() == [[world.size] * 3] * len(rows)
        """
        steps = collectives.reduce_scatter(self.membership.usable(), array, op, into, timeout_s)
        return run_blocking(steps, "reduce_scatter")

    async def reduce_scatter_async(
        self, array: Any, *, op: ReduceOp = "sum", into: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Like `reduce_scatter`, but awaitable; cancelling it ends the world if a part moved."""
        steps = collectives.reduce_scatter(self.membership.usable(), array, op, into, timeout_s)
        return await run_async(steps)

    def all_gather(
        self, array: Any, *, out: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """Give every member the arrays of all members.

        Args:    array: an array of one dtype and shape at all members.
                 out: the arrays to fill, one for each rank; None makes new ones.
                 timeout_s: as for `broadcast`.
        Returns: the list of all members' arrays, by rank.
        Raises:  as `broadcast`.
        Cost:    n - 1 arrays out of and into each of n members, in one step.
        Example:

            ranks = world.all_gather(np.array([world.rank]))
            assert [int(each[0]) for each in ranks] == list(range(world.size))
        """
        steps = collectives.all_gather(self.membership.usable(), array, out, timeout_s)
        return run_blocking(steps, "all_gather")

    async def all_gather_async(
        self, array: Any, *, out: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """Like `all_gather`, but awaitable; cancelling it ends the world if a part has moved."""
        steps = collectives.all_gather(self.membership.usable(), array, out, timeout_s)
        return await run_async(steps)

    def gather(
        self,
        array: Any,
        *,
        dst: int,
        out: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any] | None:
        """Give one member the arrays of all members.

        Args:    array: an array of one dtype and shape at all members.
                 dst: the rank that gets the arrays.
                 out, timeout_s: as for `all_gather`; only `dst` needs `out`.
        Returns: the list of all members' arrays at `dst`, by rank; None elsewhere.
        Raises:  as `broadcast`.
        Cost:    n - 1 arrays into `dst`, in one step.
        Example:

            arrays = world.gather(np.array([world.rank]), dst=1)
            assert (arrays is None) == (world.rank != 1)
        """
        steps = collectives.gather(self.membership.usable(), array, dst, out, timeout_s)
        return run_blocking(steps, "gather")

    async def gather_async(
        self,
        array: Any,
        *,
        dst: int,
        out: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any] | None:
        """Like `gather`, but awaitable; cancelling it ends the world if a part has moved."""
        steps = collectives.gather(self.membership.usable(), array, dst, out, timeout_s)
        return await run_async(steps)

    def scatter(
        self,
        arrays: Sequence[Any] | None = None,
        *,
        src: int,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Give each member one of the arrays of `src`.

        Args:    arrays: one array for each rank, all of one dtype and size; only `src` gives them.
                 src: the rank that has them.
                 into: the array to fill, which all ranks but `src` need.
                 timeout_s: as for `broadcast`.
        Returns: the array of this rank: `into`, or a new one.
        Raises:  as `broadcast`.
        Cost:    n - 1 arrays out of `src`, in one step.
        Example:

            arrays = np.eye(world.size) if world.rank == 0 else None
            row = world.scatter(arrays, src=0, into=np.empty(world.size))
            assert row[world.rank] == 1
        """
        steps = collectives.scatter(self.membership.usable(), arrays, src, into, timeout_s)
        return run_blocking(steps, "scatter")

    async def scatter_async(
        self,
        arrays: Sequence[Any] | None = None,
        *,
        src: int,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Like `scatter`, but awaitable; cancelling it ends the world if a part has moved."""
        steps = collectives.scatter(self.membership.usable(), arrays, src, into, timeout_s)
        return await run_async(steps)

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until all members have called it.

        Args:    timeout_s: as for `broadcast`.
        Returns: None, when all have come.
        Raises:  as `broadcast`.
        Cost:    an empty message to and from each other member.
        Example:

            world.barrier(timeout_s=30)
        """
        run_blocking(collectives.barrier(self.membership.usable(), timeout_s), "barrier")

    async def barrier_async(self, *, timeout_s: float | None = None) -> None:
        """Like `barrier`, but awaitable; cancelling it ends the world if a part has moved."""
        await run_async(collectives.barrier(self.membership.usable(), timeout_s))
