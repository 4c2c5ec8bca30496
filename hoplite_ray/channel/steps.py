"""Operations of channels as generators, which a call waits through and its twin awaits.

A generator yields a step, and is sent the step's result or thrown its error. An unsealed value is
the step that seals it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from hoplite_ray.base.steps import drive, drive_async
from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.pending import Pending
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values.deadlines import left_s

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Within:
    """A step with a time limit of its own, beside that of its operation."""

    pending: Pending[Any]
    limit_s: float


# A function is work of this process, which an awaitable twin does on another thread.
Step: TypeAlias = "Pending[Any] | Within | Unsealed | Future[None] | Callable[[], Any]"
Steps: TypeAlias = Generator[Step, Any, T]


def run(steps: Steps[T], deadline: float | None) -> T:
    """Wait through an operation. Raises: GetTimeoutError; the operation's errors."""

    def do(step: Step) -> Any:
        if isinstance(step, Pending):
            return step.result(left_s(deadline))
        if isinstance(step, Within):
            return step.pending.result(_limit(step, deadline))
        if isinstance(step, Unsealed):
            return step.seal(left_s(deadline))
        if callable(step):
            return step()
        try:
            return step.result(left_s(deadline))
        except TimeoutError:
            raise _turn_error() from None

    return drive(steps, do)


async def run_async(steps: Steps[T], deadline: float | None) -> T:
    """Like `run`, but awaitable; cancelling it throws the cancellation into the operation."""

    async def do(step: Step) -> Any:
        if isinstance(step, Pending):
            return await step.result_async(left_s(deadline))
        if isinstance(step, Within):
            return await step.pending.result_async(_limit(step, deadline))
        if isinstance(step, Unsealed):
            return await step.seal_async(left_s(deadline))
        if callable(step):
            return await asyncio.to_thread(step)
        try:
            async with asyncio.timeout(left_s(deadline)):
                return await asyncio.wrap_future(step)
        except TimeoutError:
            raise _turn_error() from None

    return await drive_async(steps, do)


def _limit(step: Within, deadline: float | None) -> float:
    left = left_s(deadline)
    return step.limit_s if left is None else min(step.limit_s, left)


def _turn_error() -> GetTimeoutError:
    return GetTimeoutError(
        "another publish of this process to the channel has not ended; await it first, or raise "
        "timeout_s"
    )
