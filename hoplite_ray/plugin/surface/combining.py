"""reduce, all_reduce, reduce_scatter, gather, all_gather and sources, as users call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray

from hoplite_ray._native import REDUCE_SOURCES_MAX
from hoplite_ray.errors import HopliteError, InvalidArgumentError, WrongTypeError
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.messages import Combination
from hoplite_ray.plugin.process.attachment import Attachment, attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.surface.api import ray_values
from hoplite_ray.plugin.surface.arguments import (
    Gettable,
    checked_count,
    checked_flag,
    checked_op,
    source_refs,
)
from hoplite_ray.plugin.surface.bare_reader import attend
from hoplite_ray.values.deadlines import deadline_in
from hoplite_ray.values.layout import ReduceOp


def reduce(
    refs: Sequence[Gettable],
    *,
    op: ReduceOp = "sum",
    count: int | None = None,
    deterministic: bool = False,
) -> Ref:
    """Combine the values of `count` of `refs`, whichever are ready first, element by element.

    Args:    refs: the sources: refs of `put`, of tasks that return an `array`, or of tasks that
             return a bare value (it is put into the store where it is); or Arrays, which go in
             under the ref of `put`.
             op: "sum", "prod", "min", "max" or "mean".
             count: how many sources go in, the first that are ready; None takes all of them.
             deterministic: True gives the same bits for the same members, in whatever order they
             come: they are combined along a fixed binary tree over their place in the list.
    Shapes:  all sources have the same arrays: dtypes, shapes, keys; so does the result. Dicts,
             lists and tuples are combined array by array. float16 and bfloat16 are summed in
             float32 and rounded once; integers wrap around; "mean" takes floats, bool only "min"
             and "max".
    Returns: at once, a pending ref: ready when the reduce has committed. The first call of a Ray
             node waits for its steward, which takes a second or two; event loops await
             `reduce_async`.
    Raises:  on get: ReduceError with the fate of every source when fewer than `count` can come;
             with `count=None` (all of them) what the first failing source raised.
    Cost:    every other node folds a share of the bytes; the caller's receives the result. Values
             of at most 64 KiB are folded by one process of the caller's node, and no node is asked.
             `deterministic`: each of them keeps up to min(count, sources / 2) copies of its share
             until their neighbours in the tree come, twice as wide for 16-bit floats.
    Source:  Zhuang et al., "Hoplite", SIGCOMM 2021, reduce; design decision 5.
    Example:

        arrays = [hop.put(np.full(4, number)) for number in range(3)]
        assert hop.get(hop.reduce(arrays, op="max")).tolist() == [2, 2, 2, 2]
    """
    return _begin_reduce(source_refs(refs, "reduce"), op, count, deterministic, everywhere=False)


def all_reduce(
    refs: Sequence[Gettable],
    *,
    op: ReduceOp = "sum",
    count: int | None = None,
    deterministic: bool = False,
) -> Ref:
    """Reduce like `reduce`, to a result that every node will read: all nodes fold.

    Args:    refs, op, count, deterministic: as for `reduce`.
    Returns: at once, a pending ref of one value; the nodes fetch it while it is folded.
    Raises:  as `reduce`.
    Cost:    with n nodes, 2 (n - 1) / n of the bytes through each.
    Example:

        mean = hop.all_reduce([hop.array(np.ones(4)), hop.array(np.zeros(4))], op="mean")
        assert hop.get(mean).tolist() == [0.5, 0.5, 0.5, 0.5]
    """
    return _begin_reduce(source_refs(refs, "all_reduce"), op, count, deterministic, everywhere=True)


def reduce_scatter(
    refs: Sequence[Gettable], *, op: ReduceOp = "sum", deterministic: bool = False
) -> list[Ref]:
    """Reduce all `refs`, and cut the result by rows into one ref for each of them.

    Ref i is for the maker of source i: it is combined on the node of that source, where reading it
    moves no byte. Other nodes can read it as well. Sources of at most 64 KiB are combined on
    the caller's node.
    Args:    refs, op, deterministic: as for `reduce`.
    Shapes:  every source is an array or tensor of one shape and dtype; ref i has the rows of
             numpy.array_split(result, len(refs))[i].
    Returns: at once, pending refs, each ready when its share has committed.
    Raises:  on get, of each ref: what the first failing source raised.
    Cost:    (n - 1) / n of a source's bytes through each of n nodes, each way, which is the least
             there is; each combines and holds 1 / n. It is n reduces by one process, the steward
             of the caller's node, each of which looks at n sources: for small ones that grows
             with n^2, 0.2 s for 16, 2 s for 64 and 9 s for 128 of one node on two cores.
    Example:

        shares = hop.reduce_scatter([hop.put(np.arange(4)), hop.put(np.arange(4))])
        assert hop.get(shares[1]).tolist() == [4, 6]
    """
    sources = source_refs(refs, "reduce_scatter")
    return [
        _begin_reduce(sources, op, None, deterministic, everywhere=True, reader=index)
        for index in range(len(sources))
    ]


def gather(refs: Sequence[Gettable]) -> Ref:
    """Gather the values of all `refs` in their order into one ref; it is ready when they are.

    Args:    refs: sources as `reduce` takes them, of any dtypes and shapes.
    Returns: at once, a pending ref of a list: hop.get of it gives the values, a task that it is
             passed to gets the Arrays, which fetch nothing until they are used.
    Raises:  on get: what the first failing source raised.
    Cost:    the reader's node receives each source once.
    Example:

        pair = hop.gather([hop.put(np.ones(2)), hop.put(np.zeros(3))])
        assert [value.shape for value in hop.get(pair)] == [(2,), (3,)]
    """
    return _begin_gather(refs, "gather")


def all_gather(refs: Sequence[Gettable]) -> Ref:
    """Gather like `gather`, a result that every node will read: sources go down broadcast trees.

    The two differ in name only, because each node that gets the result reads it at that moment.

    Args:    refs: as for `gather`.
    Returns: as `gather`.
    Raises:  as `gather`.
    Cost:    each node that reads it receives each source once.
    Example:

        pair = hop.all_gather([hop.put(np.ones(2)), hop.put(np.zeros(2))])
        assert len(hop.get(pair)) == 2
    """
    return _begin_gather(refs, "all_gather")


def _begin_reduce(
    sources: list[Ref],
    op: Any,
    count: Any,
    deterministic: Any,
    *,
    everywhere: bool,
    reader: int | None = None,
) -> Ref:
    how = Combination(
        checked_op(op),
        checked_count(count, len(sources)),
        everywhere,
        checked_flag("deterministic", deterministic),
        reader,
    )
    if len(sources) > REDUCE_SOURCES_MAX:
        raise InvalidArgumentError(
            f"a reduce of {len(sources)} sources; it takes {REDUCE_SOURCES_MAX} at most: reduce "
            "parts of them, and then the results"
        )
    here = attachment()
    return _call_steward(here, lambda steward, caller: steward.reduce.remote(sources, how, caller))


def _begin_gather(refs: Sequence[Gettable], taker: str) -> Ref:
    sources = source_refs(refs, taker)
    here = attachment()
    return _call_steward(here, lambda steward, caller: steward.gather.remote(sources, caller))


def _call_steward(here: Attachment, call: Callable[[Any, str], Ref]) -> Ref:
    """Call the steward, and return the answer's ref; this process reads bare sources for it."""
    steward, caller = here.steward_for_call()
    result = call(steward, caller)
    here.watch_answer(result, steward)
    attend(here, steward, caller, result)
    return result


def sources(ref: Ref, *, timeout_s: float | None = None) -> list[Ref]:
    """Return the refs that went into a reduce's result, in source order; wait until it commits.

    Args:    ref: the result of a reduce.
             timeout_s: seconds to wait for the commit; None waits without a limit.
    Returns: the refs. The ref of a source that was an Array is the one that `put` of the Array
             returns.
    Raises:  InvalidArgumentError if `ref` is no reduce's result; ReduceError as `get`;
             HopliteError if this process no longer holds one of those refs.
    Cost:    fetches the result's handle, which has the bytes of a value of at most 64 KiB.
    Example:

        refs = [hop.put(np.ones(3)) for _ in range(3)]
        quick = hop.reduce(refs, count=2)
        assert len(hop.sources(quick, timeout_s=60)) == 2
    """
    (handle,) = ray_values([answer_ref(ref)], deadline_in(timeout_s), timeout_s)
    return members_of(ref, handle)


def answer_ref(ref: Any) -> Ref:
    if not isinstance(ref, ray.ObjectRef):
        kind = type(ref).__name__
        raise WrongTypeError(f"sources takes the ref of a reduce's result, not {kind}")
    return ref


def members_of(ref: Ref, value: Any) -> list[Ref]:
    if not isinstance(value, Array) or value._members is None:
        raise InvalidArgumentError(f"object {ref.hex()[:12]}.. is not the result of a reduce")
    known = seams.known_refs()
    for member in value._members:
        if member not in known:
            raise HopliteError(
                f"source {member.hex()[:12]}.. went in, but this process has dropped its ref; "
                "keep the sources as long as sources() is to return their refs"
            )
    return [seams.ref_of(member) for member in value._members]
