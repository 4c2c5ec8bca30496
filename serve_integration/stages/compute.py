"""The batches of one replica, and the user's object that answers them.

A plain class runs in the stage's own thread, an async class in a task of the event loop. A batch
that raises is called again in halves, so that only a query that can't be answered fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
import traceback
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.edge import NotifyRunning
from hoplite_ray.serve.edge.failures import attach_note, describe_error, pack_answer
from hoplite_ray.serve.errors import BusyError, LateError
from hoplite_ray.serve.routing.query import Query
from hoplite_ray.serve.stages.batching import Batches
from hoplite_ray.serve.stages.declare import AnyStage
from hoplite_ray.serve.stages.worker import Worker

WAITING_MAX = 4096  # queries that wait at one replica; the next one is answered with BusyError

_TRACEBACK_MAX = 4000  # characters; the end of a longer one goes along with its exception

_query_ids: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("query_ids")


def query_ids() -> tuple[str, ...]:
    """Return the ids of the queries that the calling stage runs, in the order of its list.

    A query may run more than once. A stage that changes something elsewhere uses the id, so that
    the change is made once.

    Raises:  RuntimeError outside of a stage's `__call__`.
    """
    try:
        return _query_ids.get()
    except LookupError:
        raise RuntimeError("query_ids() is for a stage's __call__, while it runs") from None


@dataclass(eq=False, slots=True)
class Run:
    """A query that waits for its batch."""

    id: str
    value: Any  # for a join a dict of all inputs
    answer: asyncio.Future[Any]
    came_s: float
    to_notify: tuple[NotifyRunning, ...] = ()  # called when its batch begins and ends


class Compute:
    """The queries of one replica that wait or run. It belongs to one event loop.

    running:  the number of these queries.
    """

    def __init__(self, stage: AnyStage, name: str, user: Any, what: str) -> None:
        """Begin with no query.

        user:  the user's object, whose `__call__` answers batches.
        what:  names its answers in errors.
        """
        self.running = 0
        self._stage = stage
        self._name = name
        self._user = user
        self._what = what
        self._is_async = inspect.iscoroutinefunction(user.__call__)
        self._worker = Worker(f"stage-{name}")
        self._batches = Batches[Run](cap=stage.max_batch, waiting_max=WAITING_MAX, late=stage.late)
        self._tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """Begin no other batch, and release the user's object."""
        self._worker.close()
        self._user = None

    def run(
        self, query: Query, value: Any, deadline_s: float, to_notify: tuple[NotifyRunning, ...] = ()
    ) -> asyncio.Future[Any]:
        """Have a query wait for its batch; returns its answer. Cancelling that cancels the query.

        Raises:  BusyError if too many queries wait.
        """
        answer = asyncio.get_running_loop().create_future()
        run = Run(query.id, value, answer, time.monotonic(), to_notify if query.runs_alone else ())
        ticket = self._batches.offer(run, deadline_s=deadline_s, alone=query.runs_alone)
        if ticket is None:
            raise BusyError(f"stage {self._name} has {WAITING_MAX} queries waiting")
        self.running += 1
        answer.add_done_callback(lambda _: self._ran(ticket))
        self._take()
        return answer

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ran(self, ticket: int) -> None:
        self.running -= 1
        self._batches.withdraw(ticket)

    def _take(self) -> None:
        batch = self._batches.take(time.monotonic())
        if batch is None:
            return
        for late in batch.late:
            if not late.answer.done():
                why = f"query {late.id} was not run at {self._name}: its deadline would be over"
                late.answer.set_exception(LateError(why))
        if batch.items:
            self._begin(batch.items)
        else:
            self._take()

    def _begin(self, runs: list[Run]) -> None:
        """Begin a batch; first tell the callers that asked to know."""
        began_s = time.monotonic()
        metrics.observe("serve_batch_size", len(runs))
        for run in runs:
            metrics.observe("serve_stage_ms", (began_s - run.came_s) * 1000, part="queue")
        told = [notify_running(True) for run in runs for notify_running in run.to_notify]
        if told:
            self._spawn(self._start_when(told, runs))
        else:
            self._start(runs)

    async def _start_when(self, told: list[asyncio.Event], runs: list[Run]) -> None:
        """Start a batch that may kill this process, after its callers have been told."""
        for each in told:
            await each.wait()
        if all(run.answer.done() for run in runs):  # no caller waits for it any more
            self._batches.is_busy = False
            self._take()
        else:
            self._start(runs)

    def _start(self, runs: list[Run]) -> None:
        began_s = time.monotonic()
        if self._is_async:
            self._spawn(self._work_async(runs, began_s))
        else:
            loop = asyncio.get_running_loop()
            context = contextvars.copy_context()
            self._worker.submit(context.run, self._work, runs, began_s, loop)

    def _finish(self, runs: list[Run], answers: list[Any], took_s: float) -> None:
        for run, answer in zip(runs, answers, strict=True):
            for notify_running in run.to_notify:
                notify_running(False)
            if run.answer.done():
                continue
            if isinstance(answer, BaseException):
                error = _ordinary(answer)
                if not getattr(error, "__notes__", ()):
                    error = attach_note(error, f"in stage {self._name}: it was its answer")
                run.answer.set_exception(error)
            else:
                run.answer.set_result(answer)
        metrics.observe("serve_stage_ms", took_s * 1000, part="compute")
        self._batches.finish(len(runs), took_s)
        self._take()

    def _work(self, runs: list[Run], began_s: float, loop: asyncio.AbstractEventLoop) -> None:
        steps = self._bisected(runs)
        wanted = next(steps)
        try:
            while True:
                try:
                    answers = self._called(wanted)
                except BaseException as error:  # also SystemExit, which would only end this thread
                    wanted = steps.throw(_ordinary(error))
                else:
                    wanted = steps.send(answers)
        except StopIteration as stop:
            told = stop.value
        took_s = time.monotonic() - began_s
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._finish, runs, told, took_s)

    async def _work_async(self, runs: list[Run], began_s: float) -> None:
        steps = self._bisected(runs)
        wanted = next(steps)
        try:
            while True:
                try:
                    answers = await self._called(wanted)
                except BaseException as error:
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                        raise
                    wanted = steps.throw(_ordinary(error))
                else:
                    wanted = steps.send(answers)
        except StopIteration as stop:
            self._finish(runs, stop.value, time.monotonic() - began_s)

    def _bisected(self, runs: list[Run]) -> Generator[list[Run], Any, list[Any]]:
        """Yield queries to call, and be sent their answers. Halves of what raises are called again.

        Answers are packed before the next call, which may write into the same buffers. Packing is
        part of a query's run: if it kills the replica, that death counts for the query.

        Returns: an answer or an exception for each query.
        """
        try:
            answers = yield runs
            if not isinstance(answers, list | tuple | np.ndarray) or len(answers) != len(runs):
                size = f" of {len(answers)}" if hasattr(answers, "__len__") else ""
                raise TypeError(
                    f"stage {self._name} answered {len(runs)} queries with a "
                    f"{type(answers).__name__}{size}; return a list with one answer for each"
                )
            return [pack_answer(answer, self._what) for answer in answers]
        except Exception as error:
            if len(runs) == 1:
                told = "".join(traceback.format_exception(error))[-_TRACEBACK_MAX:]
                # The traceback's frames hold the query, and its future the error: a cycle.
                error = error.with_traceback(None)
                return [attach_note(error, f"in stage {self._name}:\n{told}")]
        half = len(runs) // 2
        return (yield from self._bisected(runs[:half])) + (yield from self._bisected(runs[half:]))

    def _called(self, runs: list[Run]) -> Any:
        """Call the user's object; returns its answers, or an awaitable of them."""
        _query_ids.set(tuple(run.id for run in runs))
        if len(self._stage.inputs) > 1:
            return self._user(
                **{name: [run.value[name] for run in runs] for name in self._stage.inputs}
            )
        return self._user([run.value for run in runs])


def _ordinary(error: BaseException) -> Exception:
    """Return an error that a future takes; others are replaced by a RuntimeError with their text.

    A future takes no StopIteration, for example of a `next` in the user's code.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(describe_error(error))
