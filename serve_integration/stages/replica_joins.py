"""The joins of one replica: one future for each attempt, which all callers of its inputs wait for.

`Joins` decides (joins.py, pure). This module has the futures, the deadlines and the tasks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from hoplite_ray.serve.edge.edge import NotifyRunning
from hoplite_ray.serve.errors import BusyError, JoinLostError, LateError
from hoplite_ray.serve.routing.query import Merged, Query
from hoplite_ray.serve.stages.compute import WAITING_MAX
from hoplite_ray.serve.stages.joins import Joins

logger = logging.getLogger("hoplite_ray.serve")

# Answers a query whose inputs have met. Arguments: the query, the inputs, the deadline, and what to
# call when work begins and ends.
AnswerJoined = Callable[
    [Query, dict[str, Any], float, tuple[NotifyRunning, ...]], Coroutine[Any, Any, Any]
]

_REMEMBERED_S = 5.0  # for a join's answer: a caller that replaces a dead one asks for it again
_TICK_S = 0.01  # by which a timer of the event loop may be early


class ReplicaJoins:
    """The joins of one replica. It belongs to one event loop."""

    def __init__(self, name: str, inputs: tuple[str, ...], answer_joined: AnswerJoined) -> None:
        """Begin with no query; `name` is the stage's, and `inputs` name those of each query."""
        self._name = name
        self._inputs = inputs
        self._answer_joined = answer_joined
        self._joins = Joins[Any](inputs, open_max=WAITING_MAX)
        self._answers: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._to_notify: WeakKeyDictionary[asyncio.Future[Any], tuple[NotifyRunning, ...]]
        self._to_notify = WeakKeyDictionary()  # to call when the joined query's work begins
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, query: Query, notify_running: NotifyRunning) -> Any:
        """Take in one input; returns the query's answer, or Merged for all inputs but the first.

        Raises:  BusyError; LateError at the deadline; JoinLostError if the answer was forgotten;
                 or what the query's answer raises.
        """
        deadline_s = time.monotonic() + query.left_s
        if not self._joins.has_room(query.join_id):
            raise BusyError(f"stage {self._name} has {WAITING_MAX} queries that wait for inputs")
        key = (query.join_id, query.attempt)
        if key not in self._answers and self._joins.is_over(*key):
            raise JoinLostError(f"its answer at {self._name} was forgotten", 0)
        joined = self._answer_future(query)
        self._to_notify[joined] = (*self._to_notify.get(joined, ()), notify_running)
        met = self._joins.offer(*key, query.name, query.value, deadline_s=deadline_s)
        if met is not None:
            task = asyncio.create_task(self._settle(joined, query, met, deadline_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            joined.add_done_callback(lambda _: task.cancel())  # at the deadline no caller waits
        answer = await asyncio.shield(joined)
        return answer if query.name == self._inputs[0] else Merged()

    def _answer_future(self, query: Query) -> asyncio.Future[Any]:
        """Return the answer of an attempt's join, which the callers of all its inputs wait for."""
        key = (query.join_id, query.attempt)
        joined = self._answers.get(key)
        if joined is None:
            loop = asyncio.get_running_loop()
            joined = self._answers[key] = loop.create_future()
            loop.call_later(query.left_s, self._expire, key)
        return joined

    def _expire(self, key: tuple[str, int]) -> None:
        """Forget an attempt's join at its deadline, whether its inputs have met or not."""
        for unmet in self._joins.expire(time.monotonic() + _TICK_S):
            logger.debug("%s at %s: %s have not come", unmet.query, self._name, unmet.missing)
        joined = self._answers.pop(key, None)
        if joined is not None and not joined.done():
            _fail(
                joined,
                LateError(f"query {key[0].split()[0]} had not all inputs at {self._name} in time"),
            )

    async def _settle(
        self, joined: asyncio.Future[Any], query: Query, met: dict[str, Any], deadline_s: float
    ) -> None:
        try:
            answer = await self._answer_joined(query, met, deadline_s, self._to_notify.pop(joined))
            if not joined.done():
                joined.set_result(answer)
        except Exception as error:
            if not joined.done():
                _fail(joined, error)
        finally:
            loop, key = asyncio.get_running_loop(), (query.join_id, query.attempt)
            loop.call_later(_REMEMBERED_S, self._answers.pop, key, None)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Have a future raise, without a warning if no caller waits for it any more."""
    future.set_exception(error)
    future.exception()
