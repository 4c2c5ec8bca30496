"""A replica of a stage: the methods that Serve calls, and the queries that come over its edges.

It has the stage's door, and the outlets to the next stages. Batches run in compute.py, and the
inputs of joins meet in replica_joins.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ray import serve

from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.door import Door
from hoplite_ray.serve.edge.edge import NotifyRunning
from hoplite_ray.serve.errors import UnknownPipelineError
from hoplite_ray.serve.routing import discovery, handoff
from hoplite_ray.serve.routing.joint import ask_jointly
from hoplite_ray.serve.routing.keys import Key, KeyedAnswer, Rule
from hoplite_ray.serve.routing.outlet import Outlet, close_all
from hoplite_ray.serve.routing.query import Query, take_cut
from hoplite_ray.serve.seams import RUNNING_REQUESTS_KEY
from hoplite_ray.serve.stages.compute import Compute, make_user
from hoplite_ray.serve.stages.declare import AnyStage
from hoplite_ray.serve.stages.parking import PARKED_KEY, ReplicaParking
from hoplite_ray.serve.stages.replica_joins import ReplicaJoins

T = TypeVar("T")

_END_S = 20.0  # Serve's default, after which it kills a replica that it has asked to end
_HOP_SHARE = 0.1  # of a query's time: the most that one way of an edge is taken to need
_DRAIN_SHARE = 0.75  # of that time, for the queries that still run


class Replica:
    """One replica of a stage: the user's object, its batches and its edges. Serve makes it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        stage: AnyStage,
        name: str,
        downstream: dict[str, Any],
        keys: Mapping[str, Rule] | None = None,
        next_stages: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        keys = keys or {}
        self._began_s = time.time()
        self._stage = stage
        self._name = name
        self._user: Any = await make_user(stage)
        self._what = f"the answer of stage {name}"
        self._compute = Compute(stage, name, self._user, self._what, _split(keys, next_stages))
        self._joins = ReplicaJoins(name, stage.inputs or ("",), self._answer_joined)
        self._open_queries = 0  # queries that came over edges and are not answered yet
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._outlets = {
            each: Outlet(handle, self._what, keys.get(each)) for each, handle in downstream.items()
        }
        self._next = _split(self._outlets, next_stages)
        self._door = Door(self._answer_call, self._what, is_parked=stage.starts_parked)
        self._metadata = {discovery.METADATA_KEY: await self._door.open()}
        if stage.budget_s is not None:
            metrics.set_gauge("serve_budget_ms", 1000 * stage.budget_s)
        self._parking: ReplicaParking | None = None
        if stage.starts_parked:
            at = serve.get_replica_context()
            self._parking = ReplicaParking(
                at.app_name, at.deployment, at.replica_tag, self._door.activate
            )

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell Serve where the door is, and the user's own metadata."""
        own = getattr(self._user, "record_replica_metadata", None)
        return {**((own() if own is not None else {}) or {}), **self._metadata}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Serve how many queries wait or run here, and whether this replica is parked.

        Serve itself counts calls by handles, and does not see calls over edges. The other numbers
        are for a policy that scales ahead of the queries.
        """
        own = getattr(self._user, "record_autoscaling_stats", None)
        stats = await _call_user(own) if own is not None else {}
        load = self._compute.report_load()
        parked = {} if self._parking is None else {PARKED_KEY: int(self._parking.is_parked)}
        count = {RUNNING_REQUESTS_KEY: self._compute.query_count}
        return {**(stats or {}), **load, **parked, **count}

    async def report_times(self) -> tuple[dict[int, list[float]], list[float], float]:
        """Return the seconds of the last batches by size, those of ways here, and `loop_share`."""
        return self._compute.report_times()

    async def reconfigure(self, user_config: Any) -> Any:
        """Give Serve's `user_config` to the user's object."""
        own = getattr(self._user, "reconfigure", None)
        if own is None:
            raise ValueError(
                f"user_config is for a stage with reconfigure(); {self._name} has none"
            )
        return await _call_user(own, user_config)

    async def check_health(self) -> None:
        """Ask the user's object for its health, if it has a `check_health`."""
        own = getattr(self._user, "check_health", None)
        if own is not None:
            await _call_user(own)

    async def __call__(
        self,
        query_id: str,
        left_s: float,
        *values: Any,
        grace_s: float = 0.0,
        cut_s: float | None = None,
    ) -> Any:
        """Answer one query by a plain handle (edges="serve"). The ingress calls the next stage."""
        value = (
            values[0] if len(values) == 1 else dict(zip(self._stage.inputs, values, strict=True))
        )
        cut = take_cut(time.time()) if cut_s is None else cut_s
        query = Query(query_id, 1, "", value, left_s, {}, grace_s=grace_s, cut_s=cut)
        self._activate_for_query()
        return await self._compute.run(query, value, time.monotonic() + left_s)

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits; None if `__init__` did not finish, or the replica has ended."""
        return None if self.__dict__.pop("_metadata", None) is None else self._end()

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            options: Mapping[str, Any] = self._stage.serve_options
            ends_s = float(options.get("graceful_shutdown_timeout_s", _END_S))
            async with asyncio.timeout(_DRAIN_SHARE * ends_s):
                await self._is_idle.wait()
        if self._parking is not None:
            self._parking.close()
        await self._door.close()
        await close_all(self._outlets)
        self._compute.close()
        user, self._user = self._user, None
        own = getattr(user, "__del__", None)
        if inspect.iscoroutinefunction(own):
            await own()

    def _answer_call(
        self, fields: tuple[Any, ...], notify_running: NotifyRunning
    ) -> Awaitable[Any]:
        """Answer a query that came over an edge. Where it can, it waits for its batch at once."""
        self._activate_for_query()
        query = Query(*fields)
        if query.pipeline not in self._next:  # in an update
            why = f"a replica of stage {self._name} knows no pipeline {query.pipeline!r}"
            raise UnknownPipelineError(why, 0, self._began_s)
        if isinstance(query.value, handoff.Stored) or len(self._stage.inputs) > 1:
            return self._keep_alive_for(self._fetch_and_answer(query, notify_running))
        return self._keep_alive_for(self._begin_answer(query, notify_running))

    def _activate_for_query(self) -> None:
        """Park no longer: a sender has found no active replica."""
        if self._parking is not None and self._parking.is_parked:
            self._parking.handle_query()

    async def _keep_alive_for(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Wait for an answer, and keep the replica from ending meanwhile."""
        self._open_queries += 1
        self._is_idle.clear()
        try:
            return await answer
        finally:
            self._open_queries -= 1
            if not self._open_queries:
                self._is_idle.set()

    async def _fetch_and_answer(self, query: Query, notify_running: NotifyRunning) -> Any:
        """Answer a query whose value is in the store, or that is one of several inputs."""
        is_alone = query.runs_alone and isinstance(query.value, handoff.Stored)
        if is_alone:  # reading the value may kill this process
            await notify_running(True).wait()
        query = replace(query, value=await handoff.fetch(query.value, query.left_s))
        if is_alone:
            notify_running(False)
        if len(self._stage.inputs) > 1:
            self._observe_hop(query)
            return await self._joins.answer(query, notify_running)
        return await self._begin_answer(query, notify_running)

    def _observe_hop(self, query: Query) -> None:
        """Tell the query, the metrics and profiles how long it was under way."""
        hop_s = max(time.time() - query.sent_s, 0)
        query.hop_s = min(hop_s, _HOP_SHARE * query.left_s)  # two machines' clocks may differ
        self._compute.learn_hop(query.hop_s, query.sent_s)
        metrics.observe("serve_stage_ms", hop_s * 1000, part="hop")

    def _begin_answer(
        self, query: Query, notify_running: NotifyRunning
    ) -> Coroutine[Any, Any, Any]:
        """Queue a query for its batch; returns a coroutine that waits for its answer."""
        self._observe_hop(query)
        deadline_s = time.monotonic() + query.left_s
        running = self._compute.run(query, query.value, deadline_s, (notify_running,))
        return self._forward_answer(query, running, deadline_s)

    async def _answer_joined(
        self,
        query: Query,
        met: dict[str, Any],
        deadline_s: float,
        to_notify: tuple[NotifyRunning, ...],
    ) -> Any:
        """Answer a query whose inputs have met."""
        running = self._compute.run(query, met, deadline_s, to_notify)
        return await self._forward_answer(query, running, deadline_s)

    async def _forward_answer(
        self, query: Query, running: asyncio.Future[Any], deadline_s: float
    ) -> Any:
        """Wait for this stage's answer, and have the next stages answer that."""
        value = await running
        outlets = self._next[query.pipeline]
        if not outlets:
            return value
        keys: Mapping[str, Key | None] = {}
        if isinstance(value, KeyedAnswer):
            value, keys = value.value, value.keys
        if len(outlets) > 1:
            left_s = deadline_s - time.monotonic()
            value = await handoff.share(value, len(outlets), self._what, left_s)
        left_s = max(deadline_s - time.monotonic(), 0.001)
        calls = [
            outlet.call(
                query.for_next_stage(self._name, value, left_s),
                key=keys.get(name),
                preferred=query.joins.get(name, ()),
            )
            for name, outlet in outlets.items()
        ]
        began_s = time.monotonic()
        async with asyncio.timeout(left_s):
            answer = await ask_jointly(calls, query.attempt)
        self._compute.learn_after(
            time.monotonic() - began_s,
            deadline_s - query.grace_s,
            is_joined=not outlets.keys().isdisjoint(query.joins),
            pipeline=query.pipeline,
        )
        return answer


def _split(
    by_stage: Mapping[str, T], next_stages: Mapping[str, tuple[str, ...]] | None
) -> Mapping[str, Mapping[str, T]]:
    """Return what each pipeline has of a table of next stages; None: there is one pipeline."""
    if next_stages is None:
        return {"": by_stage}
    return {
        pipeline: {each: by_stage[each] for each in names if each in by_stage}
        for pipeline, names in next_stages.items()
    }


async def _call_user(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that may be async. A plain one runs in a thread, as with Serve.

    The edges of this replica are served in this event loop, which must not wait.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.to_thread(function, *args)
    return await result if inspect.isawaitable(result) else result
