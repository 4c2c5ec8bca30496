"""The schedules of collectives: which member sends which part to which member, step by step.

A schedule is a generator. It yields the operations of a step, and goes on when they have ended.

* An array of at most SMALL_BYTES goes directly from member to member. So does every array of
  gather, all_gather, scatter and reduce_scatter, and of a world of two.
* A larger one goes in blocks along a line of ranks in broadcast and reduce.
* A larger one goes in shares around a ring in all_reduce (Patarasuk and Yuan, 2009). If its totals
  are wider than its elements, the shares go directly, because totals would take more bytes.

No link carries an array more often than it must. All members fold in the same order of ranks, so
that all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hoplite_ray.worlds.core.arrays import Lent
from hoplite_ray.worlds.ops.call import Call, Flat, Steps
from hoplite_ray.worlds.ops.folds import Fold, plan_fold

SMALL_BYTES = 64 << 10  # up to here fewer steps are faster than fewer bytes
BLOCK_BYTES = 512 << 10  # of a line: a member forwards one while the next one arrives


def broadcast(call: Call, array: Lent, src: int) -> Steps:
    """Fill `array` of all members from the one of `src`."""
    flat = array.flat
    others = [rank for rank in range(call.size) if rank != src]
    if call.size <= 2 or flat.nbytes <= SMALL_BYTES:
        if call.rank == src:
            yield [call.send(rank, flat) for rank in others]
        else:
            yield [call.receive(src, flat)]
        return
    place = (call.rank - src) % call.size
    before, after = (call.rank - 1) % call.size, (call.rank + 1) % call.size
    blocks = _blocks(flat)
    coming = (
        [call.receive(before, block) for block in blocks] if place > 0 else [None] * len(blocks)
    )
    sent = []
    for block, came in zip(blocks, coming, strict=True):
        yield [came]
        if place < call.size - 1:
            sent.append(call.send(after, block))
    yield sent


def reduce(call: Call, array: Lent, dst: int, op: str) -> Steps:
    """Fold all members' arrays into the one of `dst`, in the order of ranks after it."""
    flat = array.flat
    fold = plan_fold(op, flat.dtype, call.size)
    if call.size <= 2 or flat.nbytes <= SMALL_BYTES:
        if call.rank != dst:
            yield [call.send(dst, flat)]
            return
        ranks = [rank for rank in range(call.size) if rank != dst]
        parts = [np.empty_like(flat) for _ in ranks]
        yield [call.receive(rank, part) for rank, part in zip(ranks, parts, strict=True)]
        total = fold.start(flat)
        for part in parts:
            fold.add(total, part, out=total)
        fold.finish(total, flat)
        return
    place = (call.rank - dst - 1) % call.size  # the last one is dst
    before, after = (call.rank - 1) % call.size, (call.rank + 1) % call.size
    blocks = _blocks(flat)
    if place == 0:
        yield [call.send(after, fold.start(block)) for block in blocks]
        return
    partials = [fold.empty(block) for block in blocks]
    coming = [call.receive(before, partial) for partial in partials]
    sent = []
    for block, partial, came in zip(blocks, partials, coming, strict=True):
        yield [came]
        if call.rank == dst:
            total = block if fold.wide is None else partial
            fold.add(partial, block, out=total)
            fold.finish(total, block)
        else:
            fold.add(partial, block, out=partial)
            sent.append(call.send(after, partial))
    yield sent


def all_reduce(call: Call, array: Lent, op: str) -> Steps:
    """Fold all members' arrays into each of them; all get the same bits."""
    flat = array.flat
    fold = plan_fold(op, flat.dtype, call.size)
    if call.size <= 2 or flat.nbytes <= SMALL_BYTES:
        parts = {rank: np.empty_like(flat) for rank in range(call.size) if rank != call.rank}
        yield [call.receive(rank, part) for rank, part in parts.items()] + [
            call.send(rank, flat) for rank in parts
        ]
        parts[call.rank] = flat.copy() if call.rank > 0 else flat
        if call.rank > 0:
            flat[:] = parts[0]
        total = fold.start(flat)
        for rank in range(1, call.size):
            fold.add(total, parts[rank], out=total)
        fold.finish(total, flat)
        return
    shares = np.array_split(flat, call.size)
    if fold.wide is not None:
        mine = shares[call.rank]
        yield from _fold_shares(call, shares, mine, fold)
        others = [rank for rank in range(call.size) if rank != call.rank]
        yield [call.receive(rank, shares[rank]) for rank in others] + [
            call.send(rank, mine) for rank in others
        ]
        return
    before, after = (call.rank - 1) % call.size, (call.rank + 1) % call.size
    partial = np.empty_like(shares[0])
    for step in range(call.size - 1):
        given = shares[(call.rank - step) % call.size]
        taken = shares[(call.rank - step - 1) % call.size]
        came = partial[: taken.size]
        yield [call.receive(before, came), call.send(after, given)]
        fold.add(came, taken, out=taken)
    owned = shares[(call.rank + 1) % call.size]
    fold.finish(owned, owned)
    for step in range(call.size - 1):
        given = shares[(call.rank + 1 - step) % call.size]
        taken = shares[(call.rank - step) % call.size]
        yield [call.receive(before, taken), call.send(after, given)]


def reduce_scatter(call: Call, shares: Sequence[Flat], into: Lent, op: str) -> Steps:
    """Fold all members' shares of this rank into `into`; `shares` has one for each rank."""
    fold = plan_fold(op, into.flat.dtype, call.size)
    yield from _fold_shares(call, shares, into.flat, fold)


def _fold_shares(call: Call, shares: Sequence[Flat], into: Flat, fold: Fold) -> Steps:
    """Fold the shares of this rank in the order of ranks; `into` may be this member's share."""
    mine = shares[call.rank]
    parts = {rank: np.empty_like(mine) for rank in range(call.size) if rank != call.rank}
    yield [call.receive(rank, part) for rank, part in parts.items()] + [
        call.send(rank, shares[rank]) for rank in parts
    ]
    parts[call.rank] = mine
    total = fold.empty(mine)
    total[...] = parts[0]
    for rank in range(1, call.size):
        fold.add(total, parts[rank], out=total)
    fold.finish(total, into)


def all_gather(call: Call, array: Lent, into: Sequence[Lent]) -> Steps:
    """Fill `into`, one for each rank, with all members' arrays."""
    into[call.rank].flat[:] = array.flat
    others = [rank for rank in range(call.size) if rank != call.rank]
    yield [call.receive(rank, into[rank].flat) for rank in others] + [
        call.send(rank, array.flat) for rank in others
    ]


def gather(call: Call, array: Lent, into: Sequence[Lent], dst: int) -> Steps:
    """Fill `into` at `dst`, one for each rank; it is empty elsewhere."""
    if call.rank != dst:
        yield [call.send(dst, array.flat)]
        return
    into[dst].flat[:] = array.flat
    yield [call.receive(rank, into[rank].flat) for rank in range(call.size) if rank != call.rank]


def scatter(call: Call, arrays: Sequence[Lent], into: Lent, src: int) -> Steps:
    """Fill `into` from the array that `src` has for this rank; `arrays` is empty elsewhere."""
    if call.rank != src:
        yield [call.receive(src, into.flat)]
        return
    into.flat[:] = arrays[src].flat
    yield [call.send(rank, arrays[rank].flat) for rank in range(call.size) if rank != src]


def barrier(call: Call) -> Steps:
    """End when all members have called it."""
    others = [rank for rank in range(call.size) if rank != call.rank]
    nothing = np.empty(0, np.uint8)
    yield [call.receive(rank, nothing) for rank in others] + [
        call.send(rank, nothing) for rank in others
    ]


def _blocks(flat: Flat) -> list[Flat]:
    count = max(1, BLOCK_BYTES // flat.itemsize)
    return [flat[at : at + count] for at in range(0, flat.size, count)]
