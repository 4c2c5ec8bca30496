"""A stage: a class that answers lists of queries with lists, as a deployment of Ray Serve.

    @stage(max_batch=32, num_replicas=2)
    class Vision:
        def __init__(self, path): ...
        def __call__(self, images: list) -> list: ...

Nothing about worlds, batches or ids is in it. Source: Vortex 5.1; MultiWorld.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from ray import serve
from ray.serve.config import RequestRouterConfig

from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.door import Door
from hoplite_ray.serve.edge.edge import Begun
from hoplite_ray.serve.edge.failures import noted, packed, said
from hoplite_ray.serve.errors import BusyError, JoinLostError, LateError
from hoplite_ray.serve.routing import discovery, handoff
from hoplite_ray.serve.routing.outlet import Outlet, close_all, joint_answer
from hoplite_ray.serve.routing.query import Merged, Query
from hoplite_ray.serve.routing.router import ROUTER
from hoplite_ray.serve.seams import RUNNING_REQUESTS_KEY
from hoplite_ray.serve.stages.batching import Batches, Late
from hoplite_ray.serve.stages.joins import Joins
from hoplite_ray.serve.stages.options import check_options, misfit
from hoplite_ray.serve.stages.worker import Worker

logger = logging.getLogger("hoplite_ray.serve")

_WAITING_MAX = 4096  # queries at one replica; the next one is answered with BusyError
_REMEMBERED_S = 5.0  # a join's answer, for those whose caller has died and been replaced meanwhile
_HEALTH_CHECK_PERIOD_S = 1.0  # a dead replica is replaced after 5 s then, and after 18 with Serve's
_TICK_S = 0.01  # by which a loop's timer may come early
_CALL = "__call__"
_END_S = 20.0  # after which Serve ends a replica by itself that it has asked to end
_DRAIN_SHARE = 0.75  # of that, for what still runs

_LATE = [each.value for each in Late]
_TRACEBACK_MAX = 4000  # characters of it that go along with an exception

_query_ids: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("query_ids")


@dataclass(frozen=True, slots=True)
class Stage:
    """A decorated class, with constructor arguments and inputs if it was given any."""

    user_class: type
    max_batch: int
    late: Late
    options: Mapping[str, Any]
    inputs: tuple[str, ...] = ()
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = field(default=((), {}))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.user_class.__name__
        raise TypeError(
            f"{name} is a stage, whose objects Serve makes: {name}.bind(...) has their arguments, "
            f"{name}.user_class is the class itself"
        )

    def bind(self, *args: Any, **kwargs: Any) -> Stage:
        """Return it with constructor arguments."""
        return replace(self, arguments=(args, kwargs))

    def after(self, *stages: str, **named: Any) -> Stage:
        """Return it as one that gets what `stages` answer; of several, one list each by keyword."""
        if named:
            word = next(iter(named))
            raise TypeError(f"after({word}=...): name stages by themselves, as in after({word!r})")
        for each in stages:
            if not isinstance(each, str):
                raise TypeError(f"after({each!r}): name a stage by its keyword in the pipeline")
        if not stages or len(set(stages)) != len(stages):
            raise ValueError(f"after{stages}: name each stage once, and at least one")
        return replace(self, inputs=stages)


def stage(
    cls: type | None = None, *, max_batch: int = 32, late: str = "serve", **options: Any
) -> Any:
    """Make a class a stage; `options` are those of `serve.deployment`.

    The class has `__call__(list) -> list`, plain or async: as many answers as queries, in their
    order; one of them may be an exception, which its query is answered with. A call that raises is
    repeated with halves of its batch, so that only what can't be answered fails.

    max_batch:  queries in one call at most. A free stage takes what is there and never waits.
    late:       "serve" runs queries whose deadline can't be met; "drop" answers LateError at once.

    Raises:  TypeError for a generator, a class without `__call__`, or an option that is none or is
             the pipeline's to give; ValueError for what an option can't be.
    """

    def decorated(user_class: type) -> Stage:
        if not isinstance(user_class, type):
            raise TypeError(f"@stage is for classes, not for {user_class!r}")
        run = next((vars(base)[_CALL] for base in user_class.__mro__ if _CALL in vars(base)), None)
        if run is None:
            raise TypeError(f"stage {user_class.__name__} has no __call__(list) -> list")
        if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
            raise TypeError(
                f"stage {user_class.__name__} is a generator; return a list with one answer a query"
            )
        if type(max_batch) is not int or max_batch < 1:
            raise ValueError(
                f"stage {user_class.__name__}: max_batch={max_batch!r} must be a whole number "
                "from 1 on"
            )
        check_options(user_class.__name__, options)
        if late not in _LATE:
            raise ValueError(f"stage {user_class.__name__}: late={late!r} is none of {_LATE}")
        return Stage(user_class, max_batch, Late(late), options)

    return decorated if cls is None else decorated(cls)


def query_ids() -> tuple[str, ...]:
    """The ids of the queries that the calling stage runs, in the order of its list.

    A query may run more than once: what has effects elsewhere uses its id to have them once.

    Raises:  RuntimeError outside of a stage's `__call__`.
    """
    try:
        return _query_ids.get()
    except LookupError:
        raise RuntimeError("query_ids() is for a stage's __call__, while it runs") from None


def deployment(stage: Stage, name: str, downstream: Mapping[str, Any]) -> Any:
    """Return a stage's node of a Serve application; `downstream` are those that get its answers.

    Raises:  TypeError if its class does not take the arguments that it was bound to, or its
             `__call__` not the lists that it gets.
    """
    what = stage.user_class.__name__
    if why := misfit(stage.user_class, *stage.arguments[0], **stage.arguments[1]):
        raise TypeError(f"stage {name}: {what}.bind(...) lacks or has too much: {why}")
    inputs = stage.inputs if len(stage.inputs) > 1 else ()
    lists: tuple[Any, ...] = () if inputs else ([],)
    if why := misfit(stage.user_class.__call__, None, *lists, **dict.fromkeys(inputs)):
        wanted = (
            f"one list for each input, as keywords: {', '.join(inputs)}" if inputs else "a list"
        )
        raise TypeError(f"stage {name}: {what}.__call__ is to take {wanted}; {why}")
    options = {
        "max_ongoing_requests": max(100, 4 * stage.max_batch),
        "health_check_period_s": _HEALTH_CHECK_PERIOD_S,
        **stage.options,
        "name": name,
        "request_router_config": RequestRouterConfig(
            request_router_class=ROUTER  # type: ignore[arg-type]
        ),
    }
    return serve.deployment(**options)(Replica).bind(stage, name, dict(downstream))


@dataclass(eq=False, slots=True)
class _Run:
    """A query that waits for its batch."""

    id: str
    value: Any  # of a join a dict of all inputs
    answer: asyncio.Future[Any]
    came_s: float
    begun: tuple[Begun, ...] = ()  # who is to hear that it begins


class Replica:
    """One replica of a stage: the user's object, its batches and its edges. Serve makes it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, stage: Stage, name: str, downstream: dict[str, Any]
    ) -> None:
        self._stage = stage
        self._name = name
        self._user: Any = await _made(stage)
        self._is_async = inspect.iscoroutinefunction(self._user.__call__)
        self._worker = Worker(f"stage-{name}")
        self._batches = Batches[_Run](
            cap=stage.max_batch, waiting_max=_WAITING_MAX, late=stage.late
        )
        self._joins = Joins[Any](stage.inputs or ("",), open_max=_WAITING_MAX)
        self._joined: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._to_hear: WeakKeyDictionary[asyncio.Future[Any], tuple[Begun, ...]]
        self._to_hear = WeakKeyDictionary()  # that what was joined begins
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running = 0  # queries that wait or run
        self._asking = 0  # queries that came over edges and are not answered yet
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._what = f"the answer of stage {name}"
        self._outlets = {each: Outlet(handle, self._what) for each, handle in downstream.items()}
        self._door = Door(self._asked, self._what)
        self._metadata = {discovery.METADATA_KEY: await self._door.open()}

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell Serve where the door is; the user's own metadata go along."""
        own = getattr(self._user, "record_replica_metadata", None)
        return {**((own() if own is not None else {}) or {}), **self._metadata}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Serve how many queries wait or run here, which its autoscaling goes by.

        Serve counts calls by handles itself, and knows nothing of those over edges.
        """
        own = getattr(self._user, "record_autoscaling_stats", None)
        stats = await _beside(own) if own is not None else {}
        return {**(stats or {}), RUNNING_REQUESTS_KEY: self._running}

    async def reconfigure(self, user_config: Any) -> Any:
        """Have the user's object take in Serve's `user_config`."""
        own = getattr(self._user, "reconfigure", None)
        if own is None:
            raise ValueError(
                f"user_config is for a stage with reconfigure(); {self._name} has none"
            )
        return await _beside(own, user_config)

    async def check_health(self) -> None:
        """Ask the user's object, if it can tell."""
        own = getattr(self._user, "check_health", None)
        if own is not None:
            await _beside(own)

    async def __call__(self, query_id: str, left_s: float, *values: Any) -> Any:
        """Answer one query by a plain handle (edges="serve"): no stage is called from here."""
        value = (
            values[0] if len(values) == 1 else dict(zip(self._stage.inputs, values, strict=True))
        )
        query = Query(query_id, 1, "", value, left_s, {})
        return await self._run(query, value, time.monotonic() + left_s)

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits; None if it was never made whole, or has ended."""
        return None if self.__dict__.pop("_metadata", None) is None else self._end()

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            ends_s = float(self._stage.options.get("graceful_shutdown_timeout_s", _END_S))
            async with asyncio.timeout(_DRAIN_SHARE * ends_s):
                await self._is_idle.wait()
        await self._door.close()
        await close_all(self._outlets)
        self._worker.close()
        user, self._user = self._user, None
        own = getattr(user, "__del__", None)
        if inspect.iscoroutinefunction(own):
            await own()

    def _asked(self, told: tuple[Any, ...], begun: Begun) -> Awaitable[Any]:
        """Answer what comes over an edge; what can have its place in a batch has it at once."""
        query = Query(*told)
        if isinstance(query.value, handoff.Stored) or len(self._stage.inputs) > 1:
            return self._counted(self._taken(query, begun))
        return self._counted(self._answered(query, begun))

    async def _counted(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Wait for an answer, which this replica does not end before."""
        self._asking += 1
        self._is_idle.clear()
        try:
            return await answer
        finally:
            self._asking -= 1
            if not self._asking:
                self._is_idle.set()

    async def _taken(self, query: Query, begun: Begun) -> Any:
        """Answer what lies in the store, or is one of several inputs."""
        is_alone = query.alone and isinstance(query.value, handoff.Stored)
        if is_alone:  # reading it may end this process
            await begun(True).wait()
        query = replace(query, value=await handoff.taken(query.value, query.left_s))
        if is_alone:
            begun(False)
        if len(self._stage.inputs) > 1:
            return await self._joined_with(query, begun)
        return await self._answered(query, begun)

    def _answered(self, query: Query, begun: Begun) -> Coroutine[Any, Any, Any]:
        """Have it wait for its batch, now; what is returned waits for its answer."""
        observe_hop(query)
        deadline_s = time.monotonic() + query.left_s
        running = self._run(query, query.value, deadline_s, (begun,))
        return self._handed_on(query, running, deadline_s)

    async def _joined_with(self, query: Query, begun: Begun) -> Any:
        observe_hop(query)
        deadline_s = time.monotonic() + query.left_s
        if not self._joins.has_room(query.join_id):
            raise BusyError(f"stage {self._name} has {_WAITING_MAX} queries that wait for inputs")
        key = (query.join_id, query.attempt)
        if key not in self._joined and self._joins.is_over(*key):
            raise JoinLostError(f"its answer at {self._name} was forgotten", 0)
        joined = self._joined_answer(query)
        self._to_hear[joined] = (*self._to_hear.get(joined, ()), begun)
        met = self._joins.offer(*key, query.name, query.value, deadline_s=deadline_s)
        if met is not None:
            task = self._spawn(self._finish_join(joined, query, met, deadline_s))
            joined.add_done_callback(lambda _: task.cancel())  # at its deadline it need not run
        answer = await asyncio.shield(joined)
        return answer if query.name == self._stage.inputs[0] else Merged()

    def _joined_answer(self, query: Query) -> asyncio.Future[Any]:
        """Return the answer of an attempt's join, for whoever brings one of its inputs."""
        key = (query.join_id, query.attempt)
        joined = self._joined.get(key)
        if joined is None:
            loop = asyncio.get_running_loop()
            joined = self._joined[key] = loop.create_future()
            loop.call_later(query.left_s, self._expire, key)
        return joined

    def _expire(self, key: tuple[str, int]) -> None:
        """Forget an attempt's join at its deadline, met or not."""
        for unmet in self._joins.evict(time.monotonic() + _TICK_S):
            logger.debug("%s at %s: %s have not come", unmet.query, self._name, unmet.missing)
        joined = self._joined.pop(key, None)
        if joined is not None and not joined.done():
            fail(
                joined,
                LateError(f"query {key[0].split()[0]} had not all inputs at {self._name} in time"),
            )

    async def _finish_join(
        self, joined: asyncio.Future[Any], query: Query, met: dict[str, Any], deadline_s: float
    ) -> None:
        try:
            running = self._run(query, met, deadline_s, self._to_hear.pop(joined))
            answer = await self._handed_on(query, running, deadline_s)
            if not joined.done():
                joined.set_result(answer)
        except Exception as error:
            if not joined.done():
                fail(joined, error)
        finally:
            loop, key = asyncio.get_running_loop(), (query.join_id, query.attempt)
            loop.call_later(_REMEMBERED_S, self._joined.pop, key, None)

    async def _handed_on(
        self, query: Query, running: asyncio.Future[Any], deadline_s: float
    ) -> Any:
        """Have the next stages answer what runs here."""
        value = await running
        if not self._outlets:
            return value
        if len(self._outlets) > 1:
            left_s = deadline_s - time.monotonic()
            value = await handoff.shared(value, len(self._outlets), self._what, left_s)
        left_s = max(deadline_s - time.monotonic(), 0.001)
        calls = [
            outlet.call(
                query.onward(self._name, value, left_s),
                preferred=query.joins.get(name, ()),
            )
            for name, outlet in self._outlets.items()
        ]
        async with asyncio.timeout(left_s):
            return await joint_answer(calls, query.attempt)

    def _run(
        self, query: Query, value: Any, deadline_s: float, begun: tuple[Begun, ...] = ()
    ) -> asyncio.Future[Any]:
        """Have it wait for its batch; cancelled, what is returned takes it back.

        Raises:  BusyError.
        """
        answer = asyncio.get_running_loop().create_future()
        run = _Run(query.id, value, answer, time.monotonic(), begun if query.alone else ())
        ticket = self._batches.offer(run, deadline_s=deadline_s, alone=query.alone)
        if ticket is None:
            raise BusyError(f"stage {self._name} has {_WAITING_MAX} queries waiting")
        self._running += 1
        answer.add_done_callback(lambda _: self._ran(ticket))
        self._take()
        return answer

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ran(self, ticket: int) -> None:
        self._running -= 1
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

    def _begin(self, runs: list[_Run]) -> None:
        """Have the user's object answer a batch, in its thread or as a task of this loop."""
        began_s = time.monotonic()
        metrics.observe("serve_batch_size", len(runs))
        for run in runs:
            metrics.observe("serve_stage_ms", (began_s - run.came_s) * 1000, part="queue")
        told = [begun(True) for run in runs for begun in run.begun]
        if told:
            self._spawn(self._start_when(told, runs))
        else:
            self._start(runs)

    async def _start_when(self, told: list[asyncio.Event], runs: list[_Run]) -> None:
        """Start a batch that may end this process once all of its callers have been told."""
        for each in told:
            await each.wait()
        if all(run.answer.done() for run in runs):  # no caller waits for it any more
            self._batches.is_busy = False
            self._take()
        else:
            self._start(runs)

    def _start(self, runs: list[_Run]) -> None:
        began_s = time.monotonic()
        if self._is_async:
            self._spawn(self._work_async(runs, began_s))
        else:
            loop = asyncio.get_running_loop()
            context = contextvars.copy_context()
            self._worker.submit(context.run, self._work, runs, began_s, loop)

    def _finish(self, runs: list[_Run], answers: list[Any], took_s: float) -> None:
        for run, answer in zip(runs, answers, strict=True):
            for begun in run.begun:
                begun(False)
            if run.answer.done():
                continue
            if isinstance(answer, BaseException):
                error = _ordinary(answer)
                if not getattr(error, "__notes__", ()):
                    error = noted(error, f"in stage {self._name}: it was its answer")
                run.answer.set_exception(error)
            else:
                run.answer.set_result(answer)
        metrics.observe("serve_stage_ms", took_s * 1000, part="compute")
        self._batches.finish(len(runs), took_s)
        self._take()

    def _work(self, runs: list[_Run], began_s: float, loop: asyncio.AbstractEventLoop) -> None:
        steps = self._bisected(runs)
        wanted = next(steps)
        try:
            while True:
                try:
                    answers = self._called(wanted)
                except BaseException as error:  # as SystemExit, which would end this thread alone
                    wanted = steps.throw(_ordinary(error))
                else:
                    wanted = steps.send(answers)
        except StopIteration as stop:
            told = stop.value
        took_s = time.monotonic() - began_s
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._finish, runs, told, took_s)

    async def _work_async(self, runs: list[_Run], began_s: float) -> None:
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

    def _bisected(self, runs: list[_Run]) -> Generator[list[_Run], Any, list[Any]]:
        """Yield what to call, to be sent its answers; halves of what raises are called again.

        Answers are packed before anything else is called, which may write into the same buffers.
        Over a query that runs alone replicas have died: if packing kills, it is its query's death.

        Returns: an answer or an exception for each.
        """
        try:
            answers = yield runs
            if not isinstance(answers, list | tuple | np.ndarray) or len(answers) != len(runs):
                size = f" of {len(answers)}" if hasattr(answers, "__len__") else ""
                raise TypeError(
                    f"stage {self._name} answered {len(runs)} queries with a "
                    f"{type(answers).__name__}{size}; return a list with one answer for each"
                )
            return [packed(answer, self._what) for answer in answers]
        except Exception as error:
            if len(runs) == 1:
                told = "".join(traceback.format_exception(error))[-_TRACEBACK_MAX:]
                # Its frames hold the query, by whose future it would hold itself, for ever.
                error = error.with_traceback(None)
                return [noted(error, f"in stage {self._name}:\n{told}")]
        half = len(runs) // 2
        return (yield from self._bisected(runs[:half])) + (yield from self._bisected(runs[half:]))

    def _called(self, runs: list[_Run]) -> Any:
        """Call the user's object: answers, or what is awaited for them."""
        _query_ids.set(tuple(run.id for run in runs))
        if len(self._stage.inputs) > 1:
            return self._user(
                **{name: [run.value[name] for run in runs] for name in self._stage.inputs}
            )
        return self._user([run.value for run in runs])


async def _beside(function: Callable[..., Any], *args: Any) -> Any:
    """Call what may be async; in a thread, as Serve does, if it is not: edges are served here."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.to_thread(function, *args)
    return await result if inspect.isawaitable(result) else result


async def _made(stage: Stage) -> Any:
    """Make the user's object; its `__init__` may be async, as Serve allows."""
    cls: Any = stage.user_class
    args, kwargs = stage.arguments
    if not inspect.iscoroutinefunction(cls.__init__):
        return cls(*args, **kwargs)
    user = cls.__new__(cls)
    await user.__init__(*args, **kwargs)
    return user


def _ordinary(error: BaseException) -> Exception:
    """Return what a query can be answered with: of another kind goes its text.

    No future takes a StopIteration, as of a `next` in the user's code.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(said(error))


def observe_hop(query: Query) -> None:
    """Tell how long it was under way."""
    metrics.observe("serve_stage_ms", max(time.time() - query.sent_s, 0) * 1000, part="hop")


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Have a future raise, also if nobody waits for it any more."""
    future.set_exception(error)
    future.exception()
