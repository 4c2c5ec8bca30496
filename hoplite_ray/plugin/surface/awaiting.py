"""The awaitable twins, for coroutines of async actors and for asyncio programs.

None blocks the event loop. Cancelling a twin cancels its operation: a put releases its memory, a
get stops its transfer except when another caller waits for it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, overload

import ray

from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.parts.composed import Composed
from hoplite_ray.pending import Pending, show_progress
from hoplite_ray.plugin.handle import making
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.fetching import (
    PendingValue,
    PendingValues,
    delete_async_of,
    in_thread,
    put_async_of,
)
from hoplite_ray.plugin.handle.part_reading import read_part_async
from hoplite_ray.plugin.process.attachment import Attachment, attachment, need_ray
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.surface import combining
from hoplite_ray.plugin.surface.api import (
    begin_fetches,
    check_one,
    fetches_in,
    fill_in,
    fill_into,
    find_deletable,
    find_part,
    find_unfinished,
    late_error,
    own_object,
    raise_ours,
    ray_values,
    read_and_encode,
    wait,
)
from hoplite_ray.plugin.surface.arguments import Gettable, gettables, listed
from hoplite_ray.plugin.surface.combining import answer_ref, members_of
from hoplite_ray.plugin.surface.putting import put, put_delta, refuse_base
from hoplite_ray.values.codec import describe_empty
from hoplite_ray.values.deadlines import deadline_in, left_s, refuse_late
from hoplite_ray.values.dtypes import Kind
from hoplite_ray.values.layout import ReduceOp

_AT_ONCE = 0.0  # a deadline that has passed, so that nothing waits on the event loop


async def put_async(
    value: Any,
    *,
    base: Gettable | None = None,
    ordered: bool = False,
    timeout_s: float | None = None,
) -> Ref:
    """Like `put`, but awaitable; cancelling it releases the memory."""
    deadline = deadline_in(timeout_s)
    if isinstance(value, Array):
        refuse_base(base)
        return await in_thread(deadline, put, value, timeout_s=left_s(deadline))
    encoded = await in_thread(deadline, read_and_encode, value, deadline, ordered=ordered)
    if making.is_small(encoded.layout):
        here = await in_thread(deadline, attachment, deadline)
        await in_thread(deadline, put_delta, here, encoded, base, deadline, timeout_s)
        return making.put_small(here, encoded)
    here = await _attach(deadline)
    recipe = await in_thread(deadline, put_delta, here, encoded, base, deadline, timeout_s)
    with own_object(here, encoded.layout, _AT_ONCE, recipe) as (ref, incarnation):
        await put_async_of(ref.binary(), encoded, incarnation, left_s(deadline))
    return ref


async def array_async(
    value: Any, *, ordered: bool = False, timeout_s: float | None = None
) -> Array:
    """Like `array`, but awaitable; cancelling it releases the memory."""
    deadline = deadline_in(timeout_s)
    if isinstance(value, Array):
        await in_thread(deadline, value._seal, deadline)
        return value
    encoded = await in_thread(deadline, read_and_encode, value, deadline, ordered=ordered)
    if making.is_small(encoded.layout):
        await in_thread(deadline, attachment, deadline)
        return making.make_small(encoded)
    here = await _attach(deadline)
    anchor = await in_thread(deadline, here.anchors.take, left_s(deadline))
    return await making.make_async(here, anchor, encoded, timeout_s=left_s(deadline))


@overload
async def get_async(
    refs: Gettable | Composed, *, part: Any = ..., into: Any = ..., timeout_s: float | None = None
) -> Any: ...
@overload
async def get_async(refs: Sequence[Gettable], *, timeout_s: float | None = None) -> list[Any]: ...
async def get_async(
    refs: Gettable | Composed | Sequence[Gettable],
    *,
    part: Any = None,
    into: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Like `get`, but awaitable; cancelling it cancels the transfers. A thread fills `into`."""
    check_one(refs, part, into)
    deadline = deadline_in(timeout_s)
    if part is not None or isinstance(refs, Composed):
        begin = await in_thread(deadline, find_part, refs, part, deadline, timeout_s)
        value = await read_part_async(begin, deadline)
        return value if into is None else await asyncio.to_thread(fill_into, into, value)
    pending: list[Any] = await in_thread(
        deadline, begin_fetches, gettables(refs, "get_async"), deadline
    )
    awaited = [each for each in pending if isinstance(each, ray.ObjectRef)]
    need_ray()
    waits = set(find_unfinished(awaited)) if len(pending) > 1 else set(awaited)
    ready = [each for each in awaited if each not in waits]
    found = dict(zip(ready, await _ray_values(ready, deadline, timeout_s), strict=True))
    pending = await in_thread(deadline, fill_in, pending, found, deadline)
    under_way = [each.pending for each in fetches_in(pending)]

    async with show_progress(under_way):
        reading = _Reading(awaited, under_way, deadline, timeout_s)
        values = await _all_of([reading.value_of(each) for each in pending])
    if into is not None:
        return await asyncio.to_thread(fill_into, into, values[0])
    return values[0] if isinstance(refs, (ray.ObjectRef, Array)) else values


@dataclass(frozen=True, slots=True)
class _Reading:
    """The waits of one `get_async`.

    A class, because a closure that calls itself is a cycle, which keeps the refs until Python
    collects it.
    """

    awaited: list[Ref]
    under_way: list[Pending[Any]]
    deadline: float | None
    timeout_s: float | None

    async def value_of(self, each: Any) -> Any:
        if isinstance(each, ray.ObjectRef):
            (value,) = await _ray_values([each], self.deadline, self.timeout_s, among=self.awaited)
            (each,) = await in_thread(self.deadline, fill_in, [each], {each: value}, self.deadline)
            self.under_way.extend(fetch.pending for fetch in fetches_in([each]))
        if isinstance(each, PendingValues):
            return await _all_of([self.value_of(fetch) for fetch in each])
        if isinstance(each, PendingValue):
            return await each.result_async(left_s(self.deadline), is_shown=False)
        return each


async def delete_async(
    refs: Gettable | Sequence[Gettable], *, timeout_s: float | None = None
) -> None:
    """Like `delete`, but awaitable."""
    deadline = deadline_in(timeout_s)
    items = gettables(refs, "delete_async")
    for each in items:
        refuse_late(deadline, timeout_s, f"delete_async of {len(items)} objects")
        object_id = await in_thread(deadline, find_deletable, each, deadline, timeout_s)
        if object_id is not None:
            await delete_async_of(object_id, deadline)


async def wait_async(
    refs: Sequence[Ref], *, num_returns: int = 1, timeout_s: float | None = None
) -> tuple[list[Ref], list[Ref]]:
    """Like `wait`, but awaitable."""
    deadline = deadline_in(timeout_s)
    refs = listed(refs, "wait_async")
    ready, pending = wait(refs, num_returns=num_returns, timeout_s=0)  # also refuses bad arguments
    if len(ready) == num_returns:
        return ready, pending
    waits = [asyncio.ensure_future(seams.wait_ready(ref)) for ref in refs]
    are_enough = asyncio.Event()
    done: list[asyncio.Future[None]] = []

    def count(ended: asyncio.Future[None]) -> None:
        done.append(ended)
        if len(done) == num_returns:
            are_enough.set()

    for each in waits:
        each.add_done_callback(count)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s(deadline)):
                await are_enough.wait()
        ready = [ref for ref, each in zip(refs, waits, strict=True) if each.done()][:num_returns]
    finally:
        for each in waits:
            each.cancel()
    taken = set(ready)
    return ready, [ref for ref in refs if ref not in taken]


async def sources_async(ref: Ref, *, timeout_s: float | None = None) -> list[Ref]:
    """Like `sources`, but awaitable."""
    (handle,) = await _ray_values([answer_ref(ref)], deadline_in(timeout_s), timeout_s)
    return members_of(ref, handle)


async def empty_async(
    shape: int | Sequence[int] | None = None,
    dtype: Any = "float32",
    kind: Kind = "numpy",
    *,
    like: Any = None,
    timeout_s: float | None = None,
) -> Array:
    """Like `empty`, but awaitable."""
    deadline = deadline_in(timeout_s)
    template = describe_empty(shape, dtype, kind, like)
    if making.is_small(template.layout):
        await in_thread(deadline, attachment, deadline)
        return making.make_small_empty(template)
    here = await _attach(deadline)
    anchor = await in_thread(deadline, here.anchors.take, left_s(deadline))
    limit_s = left_s(deadline)
    return await making.make_empty_async(here, anchor, template, timeout_s=limit_s)


async def reduce_async(
    refs: Sequence[Gettable],
    *,
    op: ReduceOp = "sum",
    count: int | None = None,
    deterministic: bool = False,
    timeout_s: float | None = None,
) -> Ref:
    """Like `reduce`, but awaitable; it ends when the reduce has begun.

    The first call of a process may have to start a node and a steward.
    Cancelling it, or GetTimeoutError at `timeout_s`, ends the reduce: no ref of it is left.
    """
    return await in_thread(
        deadline_in(timeout_s),
        combining.reduce,
        refs,
        op=op,
        count=count,
        deterministic=deterministic,
    )


async def all_reduce_async(
    refs: Sequence[Gettable],
    *,
    op: ReduceOp = "sum",
    count: int | None = None,
    deterministic: bool = False,
    timeout_s: float | None = None,
) -> Ref:
    """Like `all_reduce`, but awaitable in the way of `reduce_async`."""
    return await in_thread(
        deadline_in(timeout_s),
        combining.all_reduce,
        refs,
        op=op,
        count=count,
        deterministic=deterministic,
    )


async def reduce_scatter_async(
    refs: Sequence[Gettable],
    *,
    op: ReduceOp = "sum",
    deterministic: bool = False,
    timeout_s: float | None = None,
) -> list[Ref]:
    """Like `reduce_scatter`, but awaitable in the way of `reduce_async`."""
    deadline = deadline_in(timeout_s)
    return await in_thread(
        deadline, combining.reduce_scatter, refs, op=op, deterministic=deterministic
    )


async def gather_async(refs: Sequence[Gettable], *, timeout_s: float | None = None) -> Ref:
    """Like `gather`, but awaitable in the way of `reduce_async`."""
    return await in_thread(deadline_in(timeout_s), combining.gather, refs)


async def all_gather_async(refs: Sequence[Gettable], *, timeout_s: float | None = None) -> Ref:
    """Like `all_gather`, but awaitable in the way of `reduce_async`."""
    return await in_thread(deadline_in(timeout_s), combining.all_gather, refs)


async def _attach(deadline: float | None) -> Attachment:
    """Return this process's attachment, and start the steward before the first put."""

    def attached() -> Attachment:
        here = attachment(deadline)
        with suppress(GetTimeoutError):  # the put waits for no steward, as in `Attachment.reap`
            here.begin_steward(deadline)
        return here

    return await in_thread(deadline, attached)


async def _ray_values(
    refs: list[Ref],
    deadline: float | None,
    timeout_s: float | None,
    among: list[Ref] | None = None,
) -> list[Any]:
    """Like `ray_values`, but awaitable. `among`: the refs of the whole get, for its error."""
    need_ray()
    pending = set(find_unfinished(refs))  # refuses refs of another session, which get no answer
    left = left_s(deadline)
    if left == 0:
        if pending:
            raise late_error(among or refs, timeout_s)
        return await asyncio.to_thread(ray_values, refs, deadline, timeout_s)
    scope = asyncio.timeout(left)
    try:
        async with scope:
            return await _all_of([_ray_value(ref, ref in pending) for ref in refs])
    except TimeoutError:
        if not scope.expired():
            raise  # the task's own error
        raise late_error(among or refs, timeout_s) from None
    except ray.exceptions.ObjectLostError:
        return await asyncio.to_thread(ray_values, refs, deadline, timeout_s)
    except ray.exceptions.RayTaskError as error:
        raise_ours(error)
        raise


async def _all_of(values: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Like `asyncio.gather`, but the first failure ends the other waits, which keep their refs."""
    waits = [asyncio.ensure_future(each) for each in values]
    try:
        return list(await asyncio.gather(*waits))
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _ray_value(ref: Ref, is_pending: bool) -> Any:
    has_transport = ref.tensor_transport() is not None
    if is_pending or has_transport:
        await seams.wait_ready(
            ref
        )  # an await of the ref itself, cancelled, would keep it until it ends
    if has_transport:  # awaited, it would be fetched on the thread of all Ray's answers
        return await asyncio.to_thread(ray.get, ref)
    return await ref
