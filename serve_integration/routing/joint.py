"""One answer from several calls with the same query."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from hoplite_ray.serve.errors import JoinLostError
from hoplite_ray.serve.routing.query import Merged

_ANSWER_S = 5.0  # between two answers of inputs that have met, times the attempt's number


async def ask_jointly(calls: Sequence[Coroutine[Any, Any, Any]], attempt: int) -> Any:
    """Call several stages with one query; return the answer that is not Merged, or Merged.

    Raises:  the first error of a call; JoinLostError when some inputs have met and another call
             has no answer. The replica that had the answer has died then, and the join would wait
             for the other inputs in vain.
    """
    if len(calls) == 1:
        return await calls[0]
    asking = [asyncio.ensure_future(call) for call in calls]
    try:
        waiting = set(asking)
        answers: list[Any] = []
        while waiting:
            has_met = bool(answers)
            limit_s = _ANSWER_S * attempt if has_met else None
            done, waiting = await asyncio.wait(
                waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise JoinLostError("its inputs have met, and the answer was lost", 0)
            for each in done:  # the only answer there is, whatever the other calls return
                if each.exception() is None and not isinstance(each.result(), Merged):
                    return each.result()
            answers += [each.result() for each in done]
        return Merged()
    finally:
        for each in asking:
            each.cancel()


async def wait_for_first(*events: Coroutine[Any, Any, Any]) -> None:
    """Return when one of `events` has returned."""
    tasks = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
