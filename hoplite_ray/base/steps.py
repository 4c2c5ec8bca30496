"""Operations as generators, which a call waits through and its awaitable twin awaits.

A generator yields a step, and is sent the step's result or thrown its error. The caller says how a
step is done, so that an operation is written once for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """Do the steps of an operation, and return its result. Raises: the operation's errors."""
    try:
        step = next(steps)
        while True:
            try:
                result = do(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    """Like `drive`, but awaitable; cancelling it throws the cancellation into the operation."""
    try:
        step = next(steps)
        while True:
            try:
                result = await do(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
