"""The ingress of a pipeline, where queries come in, and what all ingresses have in common.

The ingress sends a query to the first stages. It chooses the replicas of joins, so that all inputs
of a query meet; senders choose all other replicas. It asks a query again as a whole when the inputs
can't meet at the chosen replicas any more. Source: Vortex 5.3.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import numbers
import time
import uuid
import warnings
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from hoplite_ray.serve import metrics
from hoplite_ray.serve.errors import (
    JoinLostError,
    PipelineGoneError,
    PoisonousQueryError,
    UnknownPipelineError,
)
from hoplite_ray.serve.graph.http import answer_http, is_json
from hoplite_ray.serve.routing import handoff
from hoplite_ray.serve.routing.joint import ask_jointly
from hoplite_ray.serve.routing.keys import Key, Rule
from hoplite_ray.serve.routing.outlet import DEATHS_MAX, Outlet, close_all, open_outlets
from hoplite_ray.serve.routing.query import Merged, Query, take_cut
from hoplite_ray.serve.stages.declare import AnyStage, StageLike
from hoplite_ray.serve.stages.parking import count_prepared

logger = logging.getLogger("hoplite_ray.serve")

_AGAIN_S = 0.1  # before a query is asked again
# After the first refusal by a replica that is newer than the ingress, for another to know the
# pipeline. Then an update has removed it.
_GONE_S = 2.0
_SKEW_S = 5.0  # by which such a replica has started later, because clocks of machines differ
INGRESS, INGRESS_REPLICAS = "ingress", 2
QUERY = "the query"  # as errors call what an ingress sends
EdgesName = Literal["worlds", "serve"]
EDGES = get_args(EdgesName)


def merge_stages(stages: Mapping[str, StageLike], named: Mapping[str, StageLike]) -> dict[str, Any]:
    """Return the stages of a mapping and of keywords, by name.

    Raises:  TypeError for a name that is no text; ValueError for a name that is given twice.
    """
    for name in stages:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} names a stage, and is to be text")
    if twice := stages.keys() & named.keys():
        raise ValueError(f"{min(twice)} is in the mapping and a keyword; name each stage once")
    return {**stages, **named}


def check_ingress(edges: str, replicas: int) -> None:
    """Raise ValueError for an argument that an ingress can't have."""
    if edges not in EDGES:
        raise ValueError(f"edges={edges!r} is none of {list(EDGES)}")
    if type(replicas) is not int or replicas < 1:
        raise ValueError(f"replicas={replicas!r}, of the ingress, must be a whole number from 1 on")


def check_parking(stages: Mapping[str, AnyStage], edges: str) -> None:
    """Raise ValueError for a stage that is to park its replicas and can't, or the reverse."""
    for name, each in stages.items():
        prepared = count_prepared(each.serve_options.get("autoscaling_config"))
        if prepared and not each.starts_parked:
            raise ValueError(
                f"stage {name}: scale_ahead(prepared={prepared:g}) needs starts_parked=True, or "
                f"the prepared replicas answer queries; set it, or give spare={prepared:g} instead"
            )
        if each.starts_parked and edges != "worlds":
            raise ValueError(
                f"stage {name}: starts_parked=True needs edges='worlds', and edges={edges!r} lets "
                "Serve choose replicas, which knows of no parked ones; leave starts_parked out"
            )


def in_seconds(deadline_s: float, deadline_ms: float | None) -> float:
    """Return a deadline in seconds. Its old name `deadline_ms` counts if it is given, and warns.

    Raises:  ValueError for a value that is no deadline.
    """
    if deadline_ms is None:
        return check_limit("deadline_s", deadline_s, "seconds")
    why = "deadline_ms will go with the next release; give deadline_s, in seconds"
    warnings.warn(why, DeprecationWarning, stacklevel=3)
    return check_limit("deadline_ms", deadline_ms, "milliseconds") / 1000


def check_limit(name: str, value: float, unit: str) -> float:
    """Return a time that an argument has. Raises ValueError for a value that is none."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r} must be a number above 0, and finite; give {unit}")
    return value


def ingress_options(replicas: int, deadline_s: float) -> dict[str, Any]:
    """Return an ingress's options. It holds no CPU of Ray, because it only waits.

    Its graceful shutdown lasts as long as its queries may. With Serve's default of 20 s an update
    of a slow stage would lose some.
    """
    return {
        "name": INGRESS,
        "num_replicas": replicas,
        "max_ongoing_requests": 1000,
        "graceful_shutdown_timeout_s": max(20.0, deadline_s + 5.0),
        "ray_actor_options": {"num_cpus": 0},
    }


class Asker:
    """The queries of one pipeline, which an ingress asks its stages."""

    _pipeline = ""
    _limits_s: tuple[float, ...] = ()

    def __init__(
        self,
        nodes: Mapping[str, Any],
        inputs: Mapping[str, tuple[str, ...]],
        outlets: Mapping[str, Outlet],
        deadline_s: float,
        latency_s: float | None,
        *,
        pipeline: str = "",
        limits_s: tuple[float, ...] = (),
    ) -> None:
        """Begin without a query. All tables are by the names of stages.

        nodes:     handles, also of stages of other pipelines.
        inputs:    of the pipeline's stages, each after its inputs.
        outlets:   to the same stages as `nodes`; none if the handles carry the queries.
        pipeline:  its name; "" if it is the whole application.
        limits_s:  of all pipelines of the ingress, for the bounds of a metric; none: its own.
        """
        self._began_s = time.time()
        self._pipeline = pipeline
        self._limits_s = limits_s
        self._inputs = inputs
        self._deadline_s = deadline_s
        self._latency_s = latency_s
        self._handles = nodes
        self._first = {name: each for name, each in outlets.items() if inputs.get(name) == ()}
        self._joins = {
            name: each for name, each in outlets.items() if len(inputs.get(name, ())) > 1
        }
        self._outlets = self._first | self._joins

    async def ask(
        self,
        value: Any,
        query_id: str | None = None,
        *,
        deadline_s: float | None = None,
        deadline_ms: float | None = None,
    ) -> Any:
        """Answer one query.

        query_id:     its id, which stages see. A caller that asks again gives the same one.
        deadline_s:   of this query, at most the application's; None: the application's.
        deadline_ms:  the same in milliseconds. Deprecated.

        Raises:  TimeoutError at the deadline; ValueError for a value that is none;
                 PipelineGoneError if an update has removed the pipeline; or what a stage raises.
        """
        asked_s = self._deadline_s if deadline_s is None else deadline_s
        limit_s = min(in_seconds(asked_s, deadline_ms), self._deadline_s)
        query_id = query_id or uuid.uuid4().hex
        began_s = time.monotonic()
        outcome = "failed"
        try:
            ask = self._ask_by_edges if self._outlets else self._ask_by_handles
            answer = await ask(query_id, value, limit_s)
            outcome = "ok"
            return answer
        except TimeoutError as error:
            outcome = "late"
            if str(error) or hasattr(error, "__notes__"):  # a stage's own error says where
                raise
            raise TimeoutError(
                f"query {query_id} was not answered within {limit_s:g} s, its deadline"
            ) from None
        finally:
            took_s = time.monotonic() - began_s
            limits_s = self._limits_s or (self._latency_s or self._deadline_s,)
            metrics.count("serve_queries", outcome=outcome, pipeline=self._pipeline)
            metrics.observe_query(took_s, *limits_s, pipeline=self._pipeline)
            if self._latency_s is not None and (took_s > self._latency_s or outcome != "ok"):
                metrics.count("serve_missed", pipeline=self._pipeline)

    async def _ask_by_edges(self, query_id: str, value: Any, limit_s: float) -> Any:
        """Ask a query, and ask it again when the replicas are lost where its inputs would meet."""
        deadline_s = time.monotonic() + limit_s
        keys = {name: outlet.derive_key(value) for name, outlet in self._outlets.items()}
        value = await handoff.share(value, len(self._first), QUERY, limit_s)
        deaths, ask, cut_s = 0, uuid.uuid4().hex, take_cut(time.time())
        gone_s: float | None = None  # when a newer replica has first refused it
        for attempt in itertools.count(1):
            try:
                query = Query(query_id, attempt, "", value, limit_s, {}, deaths, ask=ask)
                query.cut_s = cut_s
                query.grace_s = self._grace_s(limit_s)
                query.pipeline = self._pipeline
                return await self._attempt(query, keys, deadline_s)
            except JoinLostError as error:
                logger.debug("query %s is asked again: %s", query_id, error)
                deaths = max(deaths, error.deaths)
                if deaths >= DEATHS_MAX:
                    raise PoisonousQueryError(
                        f"{deaths} replicas have died, one after the other, while they held this "
                        "query"
                    ) from error
                if self._is_old_for(error):
                    gone_s = gone_s or time.monotonic()
                    if time.monotonic() - gone_s >= _GONE_S:
                        raise self._gone_error(query_id) from error
                await asyncio.sleep(_AGAIN_S)

    def _is_old_for(self, error: JoinLostError) -> bool:
        """Return True if a replica of a later update has said that it knows no such pipeline."""
        return isinstance(error, UnknownPipelineError) and error.began_s > self._began_s + _SKEW_S

    def _gone_error(self, query_id: str) -> PipelineGoneError:
        named = f"pipeline {self._pipeline!r}" if self._pipeline else "its only pipeline"
        return PipelineGoneError(
            f"query {query_id} was not answered, because an update of the application has removed "
            f"or renamed {named}: ask again, with the name of a pipeline that there is now"
        )

    async def _attempt(
        self, query: Query, keys: Mapping[str, Key | None], deadline_s: float
    ) -> Any:
        async with asyncio.timeout(max(deadline_s - time.monotonic(), 0)):
            joins = {}
            for name, outlet in self._joins.items():
                await outlet.wait_ready()
                joins[name] = outlet.rank_replicas(keys[name])
            left_s = deadline_s - time.monotonic()
            calls = [
                outlet.call(replace(query, left_s=left_s, joins=joins), key=keys[name])
                for name, outlet in self._first.items()
            ]
            answer = await ask_jointly(calls, query.attempt)
        if isinstance(answer, Merged):
            raise JoinLostError("none of its inputs has the answer", 0)
        return answer

    async def _ask_by_handles(self, query_id: str, value: Any, limit_s: float) -> Any:
        responses: dict[str, Any] = {}
        grace_s = self._grace_s(limit_s)
        options = {"cut_s": take_cut(time.time())} | ({"grace_s": grace_s} if grace_s else {})
        for name, inputs in self._inputs.items():
            values = [responses[each] for each in inputs] or [value]
            responses[name] = self._handles[name].remote(query_id, limit_s, *values, **options)
        async with asyncio.timeout(limit_s):
            return await responses[next(reversed(list(self._inputs)))]

    def _grace_s(self, limit_s: float) -> float:
        """Return the seconds from the promised latency to a query's deadline."""
        return 0.0 if self._latency_s is None else max(limit_s - self._latency_s, 0.0)


class Ingress(Asker):
    """The ingress of a pipeline. Serve makes it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        nodes: dict[str, Any],
        inputs: dict[str, tuple[str, ...]],
        edges: str,
        deadline_s: float,
        latency_s: float | None = None,
        keys: Mapping[str, Rule] | None = None,
    ) -> None:
        outlets = await open_outlets(nodes, edges, QUERY, keys)
        super().__init__(nodes, inputs, outlets, deadline_s, latency_s)

    async def __call__(self, request: Any) -> Any:
        """Answer one query: a value by a handle, or JSON over HTTP."""
        if not is_json(request):
            return await self.ask(request)
        return await answer_http(request, self.ask)

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits; None if there is nothing to close."""
        outlets, self._outlets = getattr(self, "_outlets", {}), {}
        return close_all(outlets) if outlets else None
