"""Collectives as a member calls them: they check arguments, and run a schedule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hoplite_ray.errors import (
    InvalidArgumentError,
    WrongTypeError,
)
from hoplite_ray.worlds.core.arrays import Lent, to_fill, to_send
from hoplite_ray.worlds.core.checks import check_whole
from hoplite_ray.worlds.core.waiting import Waits
from hoplite_ray.worlds.gpu import nccl
from hoplite_ray.worlds.gpu.arrays import OnGpu, empty, empty_like, is_on_gpu
from hoplite_ray.worlds.ops import schedules
from hoplite_ray.worlds.ops.call import Call
from hoplite_ray.worlds.ops.folds import check_fold
from hoplite_ray.worlds.ops.membership import Membership
from hoplite_ray.worlds.ops.transfers import mark_offer, plan_collective, plan_reduce_scatter


def broadcast(world: Membership, array: Any, src: int, timeout_s: float | None) -> Waits[Any]:
    """Like `World.broadcast`."""
    src = _check_root(world, "src", src)
    if is_on_gpu(array):
        on_gpu = world.gpu.lend(array, is_filled=world.rank != src)
        yield from _run_on_gpu(world, "broadcast", [on_gpu], [on_gpu], timeout_s, root=src)
        return array
    lent = to_send(array) if world.rank == src else to_fill(array)
    call = Call(world, "broadcast", lent.dtype, root=src)
    yield from call.run(schedules.broadcast(call, lent, src), timeout_s)
    return array


def all_reduce(world: Membership, array: Any, op: str, timeout_s: float | None) -> Waits[Any]:
    """Like `World.all_reduce`."""
    if is_on_gpu(array):
        on_gpu = world.gpu.lend(array, is_filled=True)
        yield from _run_on_gpu(world, "all_reduce", [on_gpu], [on_gpu], timeout_s, op=op)
        return array
    lent = to_fill(array)
    check_fold(op, lent)
    call = Call(world, "all_reduce", lent.dtype, op)
    yield from call.run(schedules.all_reduce(call, lent, op), timeout_s)
    return array


def reduce(world: Membership, array: Any, dst: int, op: str, timeout_s: float | None) -> Waits[Any]:
    """Like `World.reduce`."""
    dst = _check_root(world, "dst", dst)
    if is_on_gpu(array):
        on_gpu = world.gpu.lend(array, is_filled=world.rank == dst)
        yield from _run_on_gpu(world, "reduce", [on_gpu], [on_gpu], timeout_s, op=op, root=dst)
        return array
    lent = to_fill(array) if world.rank == dst else to_send(array)
    check_fold(op, lent)
    call = Call(world, "reduce", lent.dtype, op, dst)
    yield from call.run(schedules.reduce(call, lent, dst, op), timeout_s)
    return array


def reduce_scatter(
    world: Membership, array: Any, op: str, into: Any, timeout_s: float | None
) -> Waits[Any]:
    """Like `World.reduce_scatter`."""
    if is_on_gpu(array):
        return (yield from _reduce_scatter_on_gpu(world, array, op, into, timeout_s))
    lent = to_send(array)
    check_fold(op, lent)
    rows, row = _split_rows(world, lent.shape)
    if into is None:
        into = np.empty((len(rows[world.rank]), *lent.shape[1:]), lent.flat.dtype)
    target = to_fill(into)
    mine = len(rows[world.rank]) * row
    if (target.dtype, target.flat.size) != (lent.dtype, mine):
        raise InvalidArgumentError(
            f"{target.dtype}{list(target.shape)} can't hold this rank's {len(rows[world.rank])} "
            f"rows of {lent.dtype}{list(lent.shape)}; give an array of that dtype and size"
        )
    shares = [lent.flat[each.start * row : each.stop * row] for each in rows]
    call = Call(world, "reduce_scatter", lent.dtype, op)
    yield from call.run(schedules.reduce_scatter(call, shares, target, op), timeout_s)
    return into


def _split_rows(world: Membership, shape: Sequence[int]) -> tuple[list[range], int]:
    """Return the rows of each rank, as numpy.array_split has them, and the elements of a row."""
    if len(shape) == 0:
        raise InvalidArgumentError(
            "reduce_scatter cuts arrays by rows, and this one has no dimension; use all_reduce"
        )
    least, more = divmod(shape[0], world.size)
    starts = [rank * least + min(rank, more) for rank in range(world.size + 1)]
    rows = [range(first, last) for first, last in itertools.pairwise(starts)]
    return rows, math.prod(shape[1:])


def _reduce_scatter_on_gpu(
    world: Membership, array: Any, op: str, into: Any, timeout_s: float | None
) -> Waits[Any]:
    lent = world.gpu.lend(array, is_filled=False)
    nccl.check_fold(op, lent)
    rows, row = _split_rows(world, lent.shape)
    if into is None:
        into = empty(array, (len(rows[world.rank]), *lent.shape[1:]))
    target = world.gpu.lend(into, is_filled=True)
    shares = [lent.part(each.start * row, each.stop * row) for each in rows]
    _check_gpu_alike([shares[world.rank], target])
    call = Call(world, "reduce_scatter", mark_offer(lent.dtype), op)
    yield from call.run(plan_reduce_scatter(call, world.gpu, shares, target, op), timeout_s)
    return into


def all_gather(
    world: Membership, array: Any, out: Sequence[Any] | None, timeout_s: float | None
) -> Waits[list[Any]]:
    """Like `World.all_gather`."""
    if is_on_gpu(array):
        made, sources, targets = _lend_gpu_outputs(world, array, out)
        yield from _run_on_gpu(world, "all_gather", sources, targets, timeout_s)
        return made
    lent = to_send(array)
    given, into = _lend_outputs(world, lent, out)
    call = Call(world, "all_gather", lent.dtype)
    yield from call.run(schedules.all_gather(call, lent, into), timeout_s)
    return given


def gather(
    world: Membership, array: Any, dst: int, out: Sequence[Any] | None, timeout_s: float | None
) -> Waits[list[Any] | None]:
    """Like `World.gather`."""
    dst = _check_root(world, "dst", dst)
    if is_on_gpu(array):
        if world.rank == dst:
            made, sources, targets = _lend_gpu_outputs(world, array, out)
            yield from _run_on_gpu(world, "gather", sources, targets, timeout_s, root=dst)
            return made
        sources = [world.gpu.lend(array, is_filled=False)]
        yield from _run_on_gpu(world, "gather", sources, [], timeout_s, root=dst)
        return None
    lent = to_send(array)
    given, into = _lend_outputs(world, lent, out) if world.rank == dst else (None, [])
    call = Call(world, "gather", lent.dtype, root=dst)
    yield from call.run(schedules.gather(call, lent, into, dst), timeout_s)
    return given


def scatter(
    world: Membership, arrays: Sequence[Any] | None, src: int, into: Any, timeout_s: float | None
) -> Waits[Any]:
    """Like `World.scatter`."""
    src = _check_root(world, "src", src)
    lents: list[Lent] = []
    given = _check_one_for_each(world, arrays) if world.rank == src else []
    if is_on_gpu(into) or (given and is_on_gpu(given[src])):
        return (yield from _scatter_on_gpu(world, given, src, into, timeout_s))
    if world.rank == src:
        lents = [to_send(array) for array in given]
        if len({(each.dtype, each.flat.size) for each in lents}) != 1:
            raise InvalidArgumentError("scatter takes arrays of one dtype and size")
        if into is None:
            into = np.empty(lents[src].shape, lents[src].flat.dtype)
    elif into is None:
        raise InvalidArgumentError("scatter needs into= at every rank but src; give np.empty(...)")
    lent = to_fill(into)
    _check_alike([lent], lents[0] if lents else lent)
    call = Call(world, "scatter", lent.dtype, root=src)
    yield from call.run(schedules.scatter(call, lents, lent, src), timeout_s)
    return into


def _check_one_for_each(world: Membership, arrays: Any) -> list[Any]:
    try:
        given = [] if arrays is None else list(arrays)
    except TypeError as error:
        raise WrongTypeError(
            f"arrays={arrays!r:.60} is a {type(arrays).__name__}; give scatter a sequence of arrays"
        ) from error
    if len(given) != world.size:
        raise InvalidArgumentError(
            f"scatter takes one array for each of {world.size} ranks at its src, not {len(given)}"
        )
    return given


def _scatter_on_gpu(
    world: Membership, arrays: Sequence[Any], src: int, into: Any, timeout_s: float | None
) -> Waits[Any]:
    sources: list[OnGpu] = []
    if world.rank == src:
        sources = [world.gpu.lend(array, is_filled=False) for array in arrays]
        into = empty_like(arrays[src], 1)[0] if into is None else into
    target = world.gpu.lend(into, is_filled=True)
    _check_gpu_alike([*sources, target])
    yield from _run_on_gpu(world, "scatter", sources, [target], timeout_s, root=src)
    return into


def barrier(world: Membership, timeout_s: float | None) -> Waits[None]:
    """Like `World.barrier`."""
    call = Call(world, "barrier", "")
    yield from call.run(schedules.barrier(call), timeout_s)


def _run_on_gpu(
    world: Membership,
    name: str,
    sources: Sequence[OnGpu],
    targets: Sequence[OnGpu],
    timeout_s: float | None,
    *,
    op: str | None = None,
    root: int = 0,
) -> Waits[None]:
    if op is not None:
        nccl.check_fold(op, (*sources, *targets)[0])
    dtype = mark_offer((*sources, *targets)[0].dtype)
    call = Call(world, name, dtype, op or "sum", root)
    steps = plan_collective(call, world.gpu, name, sources, targets, root=root, op=op)
    yield from call.run(steps, timeout_s)


def _lend_gpu_outputs(
    world: Membership, array: Any, out: Sequence[Any] | None
) -> tuple[list[Any], list[OnGpu], list[OnGpu]]:
    lent = world.gpu.lend(array, is_filled=False)
    if out is None:
        out = empty_like(array, world.size)
    if len(out) != world.size:
        raise InvalidArgumentError(f"out= takes {world.size} arrays, one for each rank")
    into = [world.gpu.lend(each, is_filled=True) for each in out]
    _check_gpu_alike([lent, *into])
    return list(out), [lent], into


def _check_gpu_alike(arrays: Sequence[OnGpu]) -> None:
    for each in arrays[1:]:
        if (each.dtype, each.count) != (arrays[0].dtype, arrays[0].count):
            raise InvalidArgumentError(
                f"{each} and {arrays[0]} are not of one dtype and size; give arrays that are"
            )


def _lend_outputs(
    world: Membership, lent: Lent, out: Sequence[Any] | None
) -> tuple[list[Any], list[Lent]]:
    if out is None:
        out = [np.empty(lent.shape, lent.flat.dtype) for _ in range(world.size)]
    if len(out) != world.size:
        raise InvalidArgumentError(f"out= takes {world.size} arrays, one for each rank")
    into = [to_fill(each) for each in out]
    _check_alike(into, lent)
    return list(out), into


def _check_alike(into: Sequence[Lent], like: Lent) -> None:
    for each in into:
        if (each.dtype, each.flat.size) != (like.dtype, like.flat.size):
            raise InvalidArgumentError(
                f"{each.dtype}{list(each.shape)} can't hold {like.dtype}{list(like.shape)}; "
                "give an array of that dtype and size"
            )


def _check_root(world: Membership, what: str, rank: Any) -> int:
    root = check_whole(what, rank)
    if not 0 <= root < world.size:
        raise InvalidArgumentError(
            f"{what}={root} is no rank of {world}, which has ranks 0 to {world.size - 1}"
        )
    return root
