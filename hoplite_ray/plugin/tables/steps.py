"""Operations of tables as generators, which a call waits through and its awaitable twin awaits.

A generator yields a step, and is sent the step's result or thrown its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from hoplite_ray.base.steps import drive, drive_async
from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.plugin.handle.fetching import in_thread
from hoplite_ray.plugin.tables.values import Values
from hoplite_ray.tables.versions import Version
from hoplite_ray.values.deadlines import deadline_in, left_s

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blocking:
    """Work that blocks; it takes the deadline. An awaitable twin does it on another thread."""

    work: Callable[[float | None], Any]


@dataclass(frozen=True, slots=True)
class Fetch:
    """The value of a version."""

    version: Version


Step: TypeAlias = Future[Any] | Blocking | Fetch
Steps: TypeAlias = Generator[Step, Any, T]


def run(steps: Steps[T], values: Values, what: str, timeout_s: float | None) -> T:
    """Wait through an operation. Raises: GetTimeoutError naming `what`; the operation's errors."""
    deadline = deadline_in(timeout_s)

    def do(step: Step) -> Any:
        match step:
            case Future():
                try:
                    return step.result(left_s(deadline))
                except TimeoutError as error:
                    if step.done():  # it has ended by this error, or just after the wait
                        return step.result()
                    raise late_error(what, timeout_s) from error
            case Blocking():
                return step.work(deadline)
            case Fetch():
                return values.fetch(step.version, deadline)

    return drive(steps, do)


async def run_async(steps: Steps[T], values: Values, what: str, timeout_s: float | None) -> T:
    """Like `run`, but awaitable; cancelling it throws the cancellation into the operation."""
    deadline = deadline_in(timeout_s)

    async def do(step: Step) -> Any:
        match step:
            case Future() if step.done():  # also after the deadline, as `run` does
                return step.result()
            case Future():
                scope = asyncio.timeout(left_s(deadline))
                try:
                    async with scope:
                        return await asyncio.wrap_future(step)
                except TimeoutError as error:
                    if not scope.expired():
                        raise
                    raise late_error(what, timeout_s) from error
            case Blocking():
                return await in_thread(deadline, step.work, deadline)
            case Fetch():
                return await values.fetch_async(step.version, deadline)

    return await drive_async(steps, do)


def fill(future: Future[T], work: Callable[[], T]) -> T:
    """Do `work`, and end `future` as the work ends. Raises: CancelledError if it was cancelled."""
    if not future.set_running_or_notify_cancel():
        raise CancelledError
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
        raise
    future.set_result(result)
    return result


def late_error(what: str, timeout_s: float | None) -> GetTimeoutError:
    return GetTimeoutError(
        f"{what} has not ended after {timeout_s} s: Ray's GCS is slow or busy, or many processes "
        "put into the table at once; raise timeout_s"
    )
