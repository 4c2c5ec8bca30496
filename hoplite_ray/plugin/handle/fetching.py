"""Transfers between the store and this process, which begin again when the node dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import GetTimeoutError, NodeLostError, ObjectLostError
from hoplite_ray.pending import Pending, ReceivedObject, wait_for_failure
from hoplite_ray.plugin.process.attachment import (
    TRIES,
    RayObjectLostError,
    attachment,
    live_store,
)
from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.layout import short_name
from hoplite_ray.values.recipe import Recipe

P = ParamSpec("P")
T = TypeVar("T")

_CALL_S = 1.0  # of a call that waits for nothing: a thread is free within milliseconds
_STALE_S = 0.02  # between looks for the bytes of a later attempt


async def in_thread(
    deadline: float | None, function: Callable[P, T], *args: P.args, **options: P.kwargs
) -> T:
    """Call `function` on another thread and return its result, by `deadline`.

    With a deadline that has passed, it calls a `function` that waits for nothing all the same.
    Raises: any error of `function`; GetTimeoutError at `deadline`, also if no thread is free.
    """
    left = left_s(deadline)
    scope = asyncio.timeout(_CALL_S if left == 0 else left)
    began_s = time.monotonic()
    try:
        async with scope:
            return await asyncio.to_thread(function, *args, **options)
    except TimeoutError as error:
        if not scope.expired() or isinstance(error, GetTimeoutError):
            raise
        waited_s = round(time.monotonic() - began_s, 2)
        raise GetTimeoutError(
            f"this process has not reached its node after {waited_s} s, or has no thread free for "
            "it; raise timeout_s"
        ) from None


async def retry(begin: Callable[[StoreClient], Pending[T]], deadline: float | None) -> T:
    """Begin it, and again on the next node if a node dies; all by `deadline`."""
    for tries_left in reversed(range(TRIES)):
        store = live_store()
        if store is None:
            store = await in_thread(deadline, lambda: attachment(deadline).store_by(deadline))
        try:
            return await begin(store).result_async(left_s(deadline))
        except NodeLostError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


async def put_async_of(
    object_id: bytes, encoded: Encoded, incarnation: int, timeout_s: float | None
) -> None:
    """Like `Attachment.put`, but awaitable; cancelling it cancels the transfer."""
    await retry(
        lambda store: store.begin_put(object_id, encoded, incarnation=incarnation),
        deadline_in(timeout_s),
    )


async def delete_async_of(object_id: bytes, deadline: float | None) -> None:
    """Like `Attachment.delete`, but awaitable."""
    await retry(lambda store: store.begin_delete(object_id), deadline)


async def get_bytes_async_of(object_id: bytes) -> bytes:
    """Return the bytes of an object that exists.

    Raises: ObjectLostError, and NodeLostError if the node does not come back.
    """
    return await retry(lambda store: store.begin_get_bytes(object_id), None)


@dataclass(frozen=True, slots=True, eq=False)
class ToFetch:
    """An object to fetch; `why` is the reason for a loss, if it is known.

    With a recipe this node may make the object itself.
    """

    object_id: bytes
    incarnation: int
    why: str = ""
    recipe: Recipe | None = None


class PendingValue:
    """A fetch under way. The caller calls `result`, also again, or `result_async` once.

    Args: `deadline`: of the beginning; `why`: the reason for a loss, if it is known; `pending`: the
          fetch that is under way already.
    """

    def __init__(
        self,
        object_id: bytes,
        incarnation: int,
        *,
        deadline: float | None = None,
        why: str = "",
        pending: Pending[ReceivedObject] | None = None,
    ) -> None:
        self._object_id = object_id
        self._incarnation = incarnation
        self._why = why
        self._tries_left = TRIES
        self._is_cancelled = False
        self._value: tuple[Any] | None = None
        if pending is None:
            self._begin(deadline)
        else:
            self._pending = pending

    def _begin(self, deadline: float | None) -> None:
        store = attachment(deadline).store_by(deadline)
        self._pending = store.begin_get(self._object_id, exists=True)
        if self._is_cancelled:  # between two tries
            self._pending.cancel()

    @property
    def pending(self) -> Pending[ReceivedObject]:
        """The fetch of the current try."""
        return self._pending

    def result(self, timeout_s: float | None) -> Any:
        """Return the caller's own value, of the handle's attempt or of a later one.

        Raises: GetTimeoutError, ObjectLostError, and NodeLostError if the node does not come back.
        """
        if self._value is None:
            self._value = (self._result(timeout_s),)
        return self._value[0]

    def _result(self, timeout_s: float | None) -> Any:
        deadline = deadline_in(timeout_s)
        while True:
            try:
                received = self._pending.result(left_s(deadline))
                if self._is_new(received, deadline, timeout_s):
                    return received.value
                time.sleep(_STALE_S)
            except NodeLostError as error:
                self._count_try(error)
            except ObjectLostError as error:
                raise self._explain_loss(error) from None
            self._begin(deadline)

    async def result_async(self, timeout_s: float | None, *, is_shown: bool = True) -> Any:
        """Like `result`, but awaitable; cancelling it cancels the fetch."""
        deadline = deadline_in(timeout_s)
        while True:
            try:
                pending = self._pending
                wait = pending.result_async if is_shown else pending.result_without_line
                received = await wait(left_s(deadline))
                if self._is_new(received, deadline, timeout_s):
                    return received.value
                await asyncio.sleep(_STALE_S)
            except NodeLostError as error:
                self._count_try(error)
            except ObjectLostError as error:
                raise self._explain_loss(error) from None
            await in_thread(deadline, self._begin, deadline)

    def cancel(self) -> None:
        """Cancel the fetch: unless it has ended, its result raises RequestCancelledError."""
        self._is_cancelled = True
        self._pending.cancel()

    def _count_try(self, error: NodeLostError) -> None:
        self._tries_left -= 1
        if not self._tries_left:
            raise error

    def _explain_loss(self, error: ObjectLostError) -> RayObjectLostError:
        text = f"{error}; {self._why}" if self._why else str(error)
        return RayObjectLostError(text, self._object_id.hex())

    def _is_new(
        self, received: ReceivedObject, deadline: float | None, timeout_s: float | None
    ) -> bool:
        """Return True if the bytes are of the handle's attempt or of a later one.

        Raises: GetTimeoutError at `deadline` if they are of an earlier attempt.
        """
        if received.incarnation >= self._incarnation:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            raise GetTimeoutError(
                f"object {short_name(self._object_id)} has only an earlier attempt's bytes "
                f"after {timeout_s} s; wait longer, or get the ref again"
            )
        return False


class PendingValues(list[Any]):
    """The fetches of a gather's result."""


def start_fetches(items: Sequence[Any], deadline: float | None) -> list[Any]:
    """Return `items` with a fetch in place of each ToFetch, also of those in PendingValues.

    The node is asked for all of them at once.
    Raises: GetTimeoutError if the node is not there by `deadline`.
    """
    wanted = [each for each in flatten_values(items) if isinstance(each, ToFetch)]
    if not wanted:
        return list(items)
    store = attachment(deadline).store_by(deadline)
    plain = [each.object_id for each in wanted if each.recipe is None]
    fetches = iter(store.begin_gets(plain, exist=True))

    def begin(item: Any) -> Any:
        if isinstance(item, PendingValues):
            return PendingValues(map(begin, item))
        if not isinstance(item, ToFetch):
            return item
        return PendingValue(
            *(item.object_id, item.incarnation),
            why=item.why,
            pending=next(fetches)
            if item.recipe is None
            else store.begin_rebuild(item.object_id, item.recipe),
        )

    return [begin(each) for each in items]


def flatten_values(items: Sequence[Any]) -> list[Any]:
    """Return `items` with the members of each PendingValues in its place."""
    return [
        each for item in items for each in (item if isinstance(item, PendingValues) else [item])
    ]


def results(fetches: Sequence[PendingValue], deadline: float | None) -> list[Any]:
    """Wait for all fetches, and return their values in this order.

    Raises: the error of the first fetch that fails, like `PendingValue.result`; it cancels all.
    """
    values: dict[PendingValue, Any] = {}
    waiting = list(fetches)
    try:
        while len(waiting) > 1:
            beside = [each for each in waiting if each.pending.is_of_same_store(waiting[0].pending)]
            failed = wait_for_failure([each.pending for each in beside], left_s(deadline))
            for each in beside if failed is None else [beside[failed]]:
                values[each] = each.result(left_s(deadline))
                waiting.remove(each)
        for each in waiting:
            values[each] = each.result(left_s(deadline))
    except BaseException:
        for each in fetches:
            each.cancel()
        raise
    return [values[each] for each in fetches]
