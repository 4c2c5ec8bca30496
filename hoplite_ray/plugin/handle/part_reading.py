"""Parts of values under Ray: fetched from what refs and handles stand for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import InvalidArgumentError, NodeLostError, ObjectLostError
from hoplite_ray.parts.composed import Composed, name_ref
from hoplite_ray.parts.fetching import (
    PUT_AGAIN,
    Source,
    Steps,
    fetch_part,
    fetch_plan,
    read_source,
    run,
    run_async,
)
from hoplite_ray.parts.planning import plan_part
from hoplite_ray.plugin.handle.fetching import PendingValues, ToFetch, in_thread
from hoplite_ray.plugin.process.attachment import (
    TRIES,
    RayObjectLostError,
    attachment,
)

_STALE_S = 0.02  # between looks for the bytes of a later attempt
_LOOKS = 100  # for them

Begin = Callable[[StoreClient], Steps[Any]]


def begin_part(found: Any, part: Any) -> Begin:
    """Return how to get a part of what a ref stands for: an object to fetch, or a value."""
    if isinstance(found, PendingValues):
        raise InvalidArgumentError("a gather's result has no parts; get the part of a source")
    if isinstance(found, ToFetch):
        return lambda client: fetch_part(
            client, found.object_id, part, exists=True, least=found.incarnation
        )
    source = Source.of(found)
    plan = plan_part(source.columns, part)
    return lambda client: fetch_plan(client, source, plan)


def begin_composed(composed: Composed, part: Any, found: Mapping[Any, Any]) -> Begin:
    """Return how to get a composed value, or a part of it.

    Args:    found: what each ref of it stands for, by `name_ref`.
    """

    def read(client: StoreClient, ref: Any) -> Steps[Source]:
        shard = found[name_ref(ref)]
        if isinstance(shard, ToFetch):
            return read_source(client, shard.object_id, exists=True, least=shard.incarnation)
        return _give(Source.of(shard))

    return lambda client: composed.fetch(part, client, partial(read, client))


def _give(source: Source) -> Steps[Source]:
    yield from ()
    return source


def read_part(begin: Begin, deadline: float | None) -> Any:
    """Get a part, and again on the next node if a node dies.

    Raises: GetTimeoutError, RayObjectLostError, InvalidArgumentError for no such part.
    """
    for judge in _judge():
        store = attachment(deadline).store_by(deadline)
        try:
            return run(begin(store), deadline)
        except (NodeLostError, ObjectLostError) as error:
            judge(error)
        time.sleep(_STALE_S)
    raise AssertionError("unreachable")


async def read_part_async(begin: Begin, deadline: float | None) -> Any:
    """Like `read_part`, but awaitable; cancelling it cancels the transfers."""
    for judge in _judge():
        store = await in_thread(deadline, lambda: attachment(deadline).store_by(deadline))
        try:
            return await run_async(begin(store), deadline)
        except (NodeLostError, ObjectLostError) as error:
            judge(error)
        await asyncio.sleep(_STALE_S)
    raise AssertionError("unreachable")


def _judge() -> Iterator[Callable[[Exception], None]]:
    """Yield, for each try, what raises an error after which no other try is made."""
    lives, looks = TRIES, _LOOKS

    def judge(error: Exception) -> None:
        nonlocal lives, looks
        if isinstance(error, NodeLostError):
            lives -= 1
            if not lives:
                raise error
            return
        looks -= 1
        if not looks or PUT_AGAIN not in str(error):
            raise RayObjectLostError(str(error)) from None

    while True:
        yield judge
