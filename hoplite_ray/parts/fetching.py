"""Get a part of an object: ask what the object is, read its layout, and get the part.

A node that has the object makes the part, which is an object of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hoplite_ray import _native
from hoplite_ray.base.steps import drive, drive_async
from hoplite_ray.client import StoreClient
from hoplite_ray.errors import ObjectLostError
from hoplite_ray.parts.indexing import Runs
from hoplite_ray.parts.planning import PartPlan, plan_part
from hoplite_ray.pending import Pending
from hoplite_ray.values import codec
from hoplite_ray.values.deadlines import left_s
from hoplite_ray.values.dtypes import OPAQUE
from hoplite_ray.values.layout import Layout, short_name
from hoplite_ray.values.recipe import Attempt
from hoplite_ray.values.trees.columns import Columns

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

T = TypeVar("T")

Steps: TypeAlias = Generator[Sequence[Pending[Any]], Any, T]

PUT_AGAIN = "put again"  # in the error of a part whose source has other bytes by now
_TRIES = 3  # of a part whose source is put again by a later attempt meanwhile


@dataclass(frozen=True, slots=True)
class Source:
    """An object whose parts can be planned; a small one is here, with its bytes.

    head_bytes:  of the layout's text, which lies in front of the leaves.
    memory:      of the leaves of a small object.
    """

    attempt: Attempt
    columns: Columns
    head_bytes: int = 0
    memory: memoryview | None = None

    @staticmethod
    def of(value: Any) -> Source:
        """Return a value of this process as a source."""
        encoded = value if isinstance(value, codec.Encoded) else codec.encode(value)
        return _make_small(Attempt(b"", 0), encoded.layout, bytearray().join(encoded.data))


def run(steps: Steps[T], deadline: float | None) -> T:
    """Wait through an operation. Raises: GetTimeoutError; the operation's errors."""

    def do(step: Sequence[Pending[Any]]) -> list[Any]:
        try:
            return [each.result(left_s(deadline)) for each in step]
        except BaseException:
            _cancel(step)
            raise

    return drive(steps, do)


async def run_async(steps: Steps[T], deadline: float | None) -> T:
    """Like `run`, but awaitable; cancelling it cancels the transfers."""

    async def do(step: Sequence[Pending[Any]]) -> list[Any]:
        waits = [asyncio.ensure_future(each.result_async(left_s(deadline))) for each in step]
        try:
            return list(await asyncio.gather(*waits))
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    return await drive_async(steps, do)


def _cancel(step: Sequence[Pending[Any]]) -> None:
    for each in step:
        each.cancel()


def fetch_part(
    client: StoreClient, object_id: bytes, part: Any, *, exists: bool, least: int = 0
) -> Steps[Any]:
    """Get a part of an object.

    Args:    part: as `plan_part` takes it.
             exists: True if the object was put: without a holder it is lost, not awaited.
             least: the oldest attempt whose bytes the caller takes.
    """
    return _retry(lambda: _fetch_part(client, object_id, part, exists, least))


def _fetch_part(
    client: StoreClient, object_id: bytes, part: Any, exists: bool, least: int
) -> Steps[Any]:
    source = yield from read_source(client, object_id, exists=exists, least=least)
    return (yield from fetch_plan(client, source, plan_part(source.columns, part)))


def _retry(begin: Any) -> Steps[Any]:
    """Do it again if an attempt is lost, because a later one may be there."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return (yield from begin())
        except ObjectLostError as error:
            if not tries_left or PUT_AGAIN not in str(error):
                raise
    raise AssertionError("unreachable")


def read_source(
    client: StoreClient, object_id: bytes, *, exists: bool, least: int = 0
) -> Steps[Source]:
    """Learn an object's layout; fetch a small object.

    Cost:    a round trip to the object's home, and for a long layout that this process has not read
             the layout's compressed text.
    """
    (described,) = yield [client.begin_describe(object_id, exists=exists)]
    layout, incarnation = described
    if incarnation < least:
        raise ObjectLostError(
            f"object {short_name(object_id)} has an earlier attempt's bytes, and is {PUT_AGAIN}"
        )
    attempt = Attempt(object_id, incarnation)
    if layout.size_bytes <= _native.INLINE_BYTES_MAX:
        (encoded,) = yield [client.begin_get_encoded(object_id)]
        return _make_small(attempt, encoded.layout, encoded.data[0])
    columns = layout.known_columns
    if columns is None:
        (memory,) = yield [_begin_head(client, attempt, layout.head_bytes)]
        columns = layout.read_head(memory)
    return Source(attempt, columns, layout.head_bytes)


def _make_small(attempt: Attempt, layout: Layout, data: Buffer) -> Source:
    memory = memoryview(data)
    columns = layout.read(memory)
    return Source(attempt, columns, memory=memory[layout.head_bytes :])


def _begin_head(client: StoreClient, source: Attempt, size_bytes: int) -> Pending[memoryview]:
    """Start to get the text of a layout, as a part of its object."""
    columns = Columns(0, [("numpy", "uint8")], [0], [(size_bytes,)])
    runs = (Runs(0, 0, size_bytes, 0, 1),)
    name = PartPlan(columns, runs).name(source)
    return client.begin_excerpt(name, source, [(OPAQUE, size_bytes)], runs)


def fetch_plan(client: StoreClient, source: Source, plan: PartPlan) -> Steps[Any]:
    """Get what a plan describes of a source, and build it."""
    (value,) = yield from fetch_plans(client, [(source, plan)])
    return value


def fetch_plans(client: StoreClient, wanted: Sequence[tuple[Source, PartPlan]]) -> Steps[list[Any]]:
    """Get what plans describe, all at once."""
    moved = [
        (source.attempt, plan.behind(source.head_bytes))
        for source, plan in wanted
        if source.memory is None and plan.runs
    ]
    pending: list[Pending[Any]] = [
        client.begin_excerpt(plan.name(attempt), attempt, plan.columns.parts, plan.runs)
        for attempt, plan in moved
    ]
    came = iter((yield pending) if pending else [])
    values = []
    for source, plan in wanted:
        if not plan.runs:
            memory = memoryview(bytearray(plan.size_bytes))
        elif source.memory is None:
            memory = next(came)
        else:
            memory = plan.gather(source.memory)
        values.append(codec.build(plan.columns, memory))
    return values


def in_rounds(operations: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Do several operations beside each other: each round asks for the next steps of all."""
    results: dict[int, T] = {}
    steps: dict[int, Sequence[Pending[Any]]] = {}

    def go_on(number: int, answer: Any) -> None:
        try:
            steps[number] = operations[number].send(answer)
        except StopIteration as end:
            steps.pop(number, None)
            results[number] = end.value

    for number in range(len(operations)):
        go_on(number, None)
    while steps:
        asked = list(steps.items())
        answers = iter((yield [each for _, step in asked for each in step]))
        for number, step in asked:
            go_on(number, [next(answers) for _ in step])
    return [results[number] for number in range(len(operations))]
