"""The batches of one replica, and the user's object that answers them.

A plain class runs in the stage's own thread, an async class in a task of the event loop. A batch
that raises is called again in halves, so that only a query that can't be answered fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
import traceback
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from hoplite_ray.plugin.tables import weights
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.edge import NotifyRunning
from hoplite_ray.serve.edge.failures import as_exception, attach_note, pack_answer
from hoplite_ray.serve.errors import BusyError, LateError
from hoplite_ray.serve.routing.keys import KeyedAnswer, NearRule, Rule
from hoplite_ray.serve.routing.query import Query, take_cut
from hoplite_ray.serve.stages.batching import Batches
from hoplite_ray.serve.stages.declare import AnyStage
from hoplite_ray.serve.stages.estimates import Drift, LoopShare, RecentTimes
from hoplite_ray.serve.stages.worker import Worker

_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log

WAITING_MAX = 4096  # queries that wait at one replica; the next one is answered with BusyError

_PROBE_S = 0.001  # into a batch, when the loop is to show that it runs
_LOOP_SHARE_MAX = 0.1  # of batches' time; beyond it the loop gets turns between two batches
_TURNS = 6  # which an answer needs to be read, passed on and sent

_TRACEBACK_MAX = 4000  # characters; the end of a longer one goes along with its exception

_query_ids: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("query_ids")
_query_times: contextvars.ContextVar[tuple[float, ...]] = contextvars.ContextVar("query_times")


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


def query_snapshots() -> tuple[float, ...]:
    """Return the snapshot of each query that the calling stage runs, in the order of its list.

    A snapshot is a time for `hop.Table.get(key, at=snapshot)`. All stages have the same one for a
    query, also when it runs again. So they read one cut of all tables. The ingress takes it when
    the query comes, and queries of one tenth of a second share it.

    Returns: seconds since 1970, for each query; at most a tenth of a second before it came.
    Raises:  RuntimeError outside of a stage's `__call__`.
    Cost:    nothing is asked. The first get at a time costs a call to Ray's GCS; see `Table.get`.
    Source:  Cascade's stable reads at a time, as "Vortex" (2025) uses them, appendix A.
    """
    try:
        return _query_times.get()
    except LookupError:
        raise RuntimeError("query_snapshots() is for a stage's __call__, while it runs") from None


async def make_user(stage: AnyStage) -> Any:
    """Return the user's object, made with the arguments of `bind`, as Serve makes it.

    Its `__init__` may be async. The stage's weights come meanwhile, if it has any.
    """
    with nullcontext() if stage.weights is None else weights.declare(stage.weights):
        return await _construct(stage)


async def _construct(stage: AnyStage) -> Any:
    cls: Any = stage.user_class
    args, kwargs = stage.arguments
    if not inspect.iscoroutinefunction(cls.__init__):
        return cls(*args, **kwargs)
    user = cls.__new__(cls)
    await user.__init__(*args, **kwargs)
    return user


@dataclass(eq=False, slots=True)
class Run:
    """A query that waits for its batch."""

    id: str
    value: Any  # for a join a dict of all inputs
    answer: asyncio.Future[Any]
    came_s: float
    to_notify: tuple[NotifyRunning, ...] = ()  # called when its batch begins and ends
    pipeline: str = ""
    cut_s: float = 0.0
    is_late: bool = False  # True if it was dropped, because it can't be in time any more
    can_be_late: bool = True  # False if it had no time left when it came


class Compute:
    """The queries of one replica that wait or run. It belongs to one event loop.

    query_count:    the number of these queries.
    arrival_count:  of queries that came since the replica's start, also those that were refused.
    served_count:   of queries that have ended, also with an error or because they were cancelled.
    late_count:     of those that this stage made late: they came early enough, and ended too late
                    for the later stages to keep their deadlines, or were dropped as late.
    """

    def __init__(
        self,
        stage: AnyStage,
        name: str,
        user: Any,
        what: str,
        keys: Mapping[str, Mapping[str, Rule]] | None = None,
    ) -> None:
        """Begin with no query.

        user:  the user's object, whose `__call__` answers batches.
        what:  names its answers in errors.
        keys:  the rules of the next stages, by pipeline and name. An answer then comes as a
               KeyedAnswer.
        """
        self.query_count = self.arrival_count = self.served_count = self.late_count = 0
        self._stage = stage
        self._name = name
        self._user = user
        self._what = what
        self._keys = keys or {}
        self._is_async = inspect.iscoroutinefunction(user.__call__)
        self._worker = Worker(f"stage-{name}")
        self._batches = Batches[Run](cap=stage.max_batch, waiting_max=WAITING_MAX, late=stage.late)
        self._recent = RecentTimes()
        self._drift = Drift(stage.expected_s)
        self._loop_share = LoopShare()
        self._probe: asyncio.TimerHandle | None = None  # until the loop has run amid a batch
        self._probed_s = 0.0  # how long after the batch's begin it did
        self._ended_s = 0.0  # of the last batch, since 1970
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_take_due = False  # True if this turn or a later one takes a batch

    def close(self) -> None:
        """Begin no other batch, and release the user's object."""
        self._worker.close()
        self._user = None

    def run(
        self, query: Query, value: Any, deadline_s: float, to_notify: tuple[NotifyRunning, ...] = ()
    ) -> asyncio.Future[Any]:
        """Have a query wait for its batch; returns its answer. Cancelling that cancels the query.

        The batch is to end early enough for the way back, which is as long as the way here.

        Raises:  BusyError if too many queries wait.
        """
        self.arrival_count += 1
        answer = asyncio.get_running_loop().create_future()
        notified = to_notify if query.runs_alone else ()
        now_s = time.monotonic()
        run = Run(query.id, value, answer, now_s, notified, query.pipeline, query.cut_s)
        due_s = deadline_s - query.grace_s - 2 * query.hop_s  # as long as the way here, and back
        ticket = self._batches.offer(
            run, deadline_s=due_s, alone=query.runs_alone, pipeline=query.pipeline
        )
        if ticket is None:
            raise BusyError(f"stage {self._name} has {WAITING_MAX} queries waiting")
        run.can_be_late = self._batches.can_end(due_s, now_s, query.pipeline)
        self.query_count += 1
        answer.add_done_callback(lambda _: self._end_run(ticket, run, due_s))
        if not self._is_take_due:  # after the other queries of a frame
            self._is_take_due = True
            asyncio.get_running_loop().call_soon(self._take_due_batch)
        return answer

    def report_load(self) -> dict[str, float]:
        """Return the numbers by which a policy scales the stage ahead of its queries.

        Cost:    O(1).
        """
        return {
            "hoplite_arrivals": self.arrival_count,
            "hoplite_backlog_s": self._batches.backlog_s(),
            "hoplite_late": self.late_count,
            "hoplite_served": self.served_count,
        }

    def learn_hop(self, took_s: float, sent_s: float) -> None:
        """Learn how long a query was under way to this replica, and when it was sent, since 1970.

        A way amid a batch is not learnt, because part of it may be the wait for the batch's end.
        """
        if not self._batches.is_busy and sent_s > self._ended_s:
            self._recent.learn_hop(took_s)

    def report_times(self) -> tuple[dict[int, list[float]], list[float], float]:
        """Return the seconds of the last batches by size, those of ways here, and `loop_share`."""
        return *self._recent.report(), self.loop_share

    @property
    def loop_share(self) -> float:
        """The share of batches' time in which the event loop could not run."""
        return self._loop_share.mean

    async def run_batch(self, values: Sequence[Any]) -> float:
        """Run values as one batch, beside the queue; returns the seconds that the stage was busy.

        For a profile. REQUIRES: no batch runs, and no query waits.

        Raises:  the first error that is an answer.
        """
        loop = asyncio.get_running_loop()
        began_s, cut = time.monotonic(), take_cut(time.time())
        runs = [Run("profile", each, loop.create_future(), began_s, cut_s=cut) for each in values]
        self._start_batch(runs)
        await asyncio.wait([run.answer for run in runs])
        took_s = time.monotonic() - began_s
        for run in runs:
            run.answer.result()
        return took_s

    def learn_after(
        self, took_s: float, due_s: float, *, is_joined: bool, pipeline: str = ""
    ) -> None:
        """Learn how long later stages took to answer a query, if its answer is in time.

        Answers that are late say nothing, because such queries wait behind all others.
        """
        if time.monotonic() <= due_s:
            self._batches.learn_after(took_s, is_joined=is_joined, pipeline=pipeline)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end_run(self, ticket: int, run: Run, due_s: float) -> None:
        self.query_count -= 1
        self.served_count += 1
        ends_s = self._batches.find_end(due_s, run.pipeline)
        self.late_count += run.can_be_late and (run.is_late or time.monotonic() > ends_s)
        self._batches.withdraw(ticket)

    def _take_due_batch(self) -> None:
        self._is_take_due = False
        self._take_batch()

    def _take_batch(self) -> None:
        batch = self._batches.take(time.monotonic())
        if batch is None:
            return
        if batch.late_count:
            metrics.count("serve_late", batch.late_count)
        for late in batch.late:
            late.is_late = True
            if not late.answer.done():
                why = f"query {late.id} was not run at {self._name}: it can't be in time any more"
                late.answer.set_exception(LateError(why))
        if batch.items:
            self._begin_batch(batch.items)
        else:
            self._take_batch()

    def _begin_batch(self, runs: list[Run]) -> None:
        """Begin a batch; first notify the callers that asked for it."""
        began_s = time.monotonic()
        metrics.observe("serve_batch_size", len(runs))
        for run in runs:
            metrics.observe("serve_stage_ms", (began_s - run.came_s) * 1000, part="queue")
        notices = [notify_running(True) for run in runs for notify_running in run.to_notify]
        if notices:
            self._spawn(self._start_after_notice(notices, runs))
        else:
            self._start_batch(runs)

    async def _start_after_notice(self, notices: list[asyncio.Event], runs: list[Run]) -> None:
        """Start a batch that may kill this process, after its callers know that it begins."""
        for notice in notices:
            await notice.wait()
        if all(run.answer.done() for run in runs):  # no caller waits for it any more
            self._batches.is_busy = False
            self._take_batch()
        else:
            self._start_batch(runs)

    def _start_batch(self, runs: list[Run]) -> None:
        began_s = time.monotonic()
        if self._is_async:
            self._spawn(self._run_batch_async(runs, began_s))
        else:
            loop = asyncio.get_running_loop()
            self._probe = loop.call_later(_PROBE_S, self._answer_probe, began_s)
            context = contextvars.copy_context()
            self._worker.submit(context.run, self._run_batch, runs, began_s, loop)

    def _finish_batch(self, runs: list[Run], answers: list[Any], took_s: float) -> None:
        if self._stage.budget_s is not None:
            now_s = time.monotonic()
            metrics.observe_spent([now_s - run.came_s for run in runs], self._stage.budget_s)
        for run, answer in zip(runs, answers, strict=True):
            for notify_running in run.to_notify:
                notify_running(False)
            if run.answer.done():
                continue
            if isinstance(answer, BaseException):
                error = as_exception(answer)
                if not getattr(error, "__notes__", ()):
                    error = attach_note(error, f"in stage {self._name}: it was its answer")
                run.answer.set_exception(error)
            else:
                run.answer.set_result(answer)
        metrics.observe("serve_stage_ms", took_s * 1000, part="compute")
        self._batches.finish(len(runs), took_s)
        self._learn(len(runs), took_s)
        self._learn_loop(took_s)
        self._ended_s = time.time()
        if self._loop_share.mean > _LOOP_SHARE_MAX:
            self._take_after(_TURNS)
        else:
            self._take_batch()

    def _take_after(self, turns: int) -> None:
        """Take a batch after some turns of the loop, in which it sends answers and hears queries.

        The next batch would keep the loop from that.
        """
        self._is_take_due = True
        step = (self._take_due_batch,) if turns == 0 else (self._take_after, turns - 1)
        asyncio.get_running_loop().call_soon(*step)

    def _answer_probe(self, began_s: float) -> None:
        self._probe, self._probed_s = None, time.monotonic() - began_s

    def _learn_loop(self, took_s: float) -> None:
        """Learn how long the loop has waited for a batch that kept the interpreter."""
        probe, self._probe = self._probe, None
        waited_s = took_s if probe is not None else self._probed_s
        if probe is not None:
            probe.cancel()
        if not self._is_async and took_s > 2 * _PROBE_S:
            self._loop_share.learn(waited_s - _PROBE_S, took_s)

    def _learn(self, size: int, took_s: float) -> None:
        """Keep a batch's time, and tell when the plan's profile is not true any more."""
        self._recent.learn(size, took_s)
        ratio = self._drift.learn(size, took_s)
        if ratio is None:
            return
        metrics.set_gauge("serve_drift", ratio)
        if self._drift.judge(ratio):
            _serve_logger.warning(
                "batches of stage %s take %.2f times as long as its profile says: profile it again "
                "and plan anew, or look for what takes its CPU",
                *(self._name, ratio),
            )

    def _run_batch(self, runs: list[Run], began_s: float, loop: asyncio.AbstractEventLoop) -> None:
        steps = self._bisect(runs)
        wanted = next(steps)
        try:
            while True:
                try:
                    answers = self._call_user(wanted)
                except BaseException as error:  # also SystemExit, which would only end this thread
                    wanted = steps.throw(as_exception(error))
                else:
                    wanted = steps.send(answers)
        except StopIteration as stop:
            results = stop.value
        took_s = time.monotonic() - began_s
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._finish_batch, runs, results, took_s)

    async def _run_batch_async(self, runs: list[Run], began_s: float) -> None:
        steps = self._bisect(runs)
        wanted = next(steps)
        try:
            while True:
                try:
                    answers = await self._call_user(wanted)
                except BaseException as error:
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                        raise
                    wanted = steps.throw(as_exception(error))
                else:
                    wanted = steps.send(answers)
        except StopIteration as stop:
            self._finish_batch(runs, stop.value, time.monotonic() - began_s)

    def _bisect(self, runs: list[Run]) -> Generator[list[Run], Any, list[Any]]:
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
            return [
                self._pack(answer, run.pipeline) for answer, run in zip(answers, runs, strict=True)
            ]
        except Exception as error:
            if len(runs) == 1:
                text = "".join(traceback.format_exception(error))[-_TRACEBACK_MAX:]
                # The traceback's frames hold the query, and its future the error: a cycle.
                error = error.with_traceback(None)
                return [attach_note(error, f"in stage {self._name}:\n{text}")]
        half = len(runs) // 2
        return (yield from self._bisect(runs[:half])) + (yield from self._bisect(runs[half:]))

    def _pack(self, answer: Any, pipeline: str) -> Any:
        """Pack an answer, with its keys; returns an error in place of one that can't be sent."""
        packed = pack_answer(answer, self._what)
        keys = self._keys.get(pipeline)
        if not keys or isinstance(packed, BaseException):
            return packed
        try:
            derived = {
                each: rule.derive(packed if isinstance(rule, NearRule) else answer)
                for each, rule in keys.items()
            }
            return KeyedAnswer(packed, derived)
        except Exception as error:  # of this query alone
            return error

    def _call_user(self, runs: list[Run]) -> Any:
        """Call the user's object; returns its answers, or an awaitable of them."""
        _query_ids.set(tuple(run.id for run in runs))
        _query_times.set(tuple(run.cut_s for run in runs))
        if len(self._stage.inputs) > 1:
            return self._user(
                **{name: [run.value[name] for run in runs] for name in self._stage.inputs}
            )
        return self._user([run.value for run in runs])
