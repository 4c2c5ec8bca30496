"""A graph of stages as one Serve application: queries go in by its ingress, answers come out there.

The ingress sends a query to the first stages; each stage sends what it has answered to the next
ones, over their edges, and keeps it until they have answered. So a dead replica is replaced by a
sibling from there on, and everything before it stands. But for joins: a query whose inputs can't
meet any more at the replicas that were chosen is asked again as a whole.
Only joins are chosen by the ingress, so that all inputs of a query meet; other replicas are chosen
by who sends. Source: Vortex 5.3.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import numbers
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import orjson
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.failures import said
from hoplite_ray.serve.errors import (
    BusyError,
    JoinLostError,
    LateError,
    PoisonousQueryError,
    QuorumError,
)
from hoplite_ray.serve.routing import handoff
from hoplite_ray.serve.routing.joint import joint_answer
from hoplite_ray.serve.routing.outlet import DEATHS_MAX, close_all, outlets_of
from hoplite_ray.serve.routing.query import Merged, Query
from hoplite_ray.serve.stages.declare import Stage
from hoplite_ray.serve.stages.deploy import deployment

logger = logging.getLogger("hoplite_ray.serve")
_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log
_STATUS: dict[type[Exception], int] = {TimeoutError: 504, LateError: 504, BusyError: 503}

_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
_AGAIN_S = 0.1  # before a query is asked again
INGRESS, INGRESS_REPLICAS = "ingress", 2
QUERY = "the query"  # what goes from an ingress to stages
EDGES = ("worlds", "serve")


def pipeline(
    *unnamed: Any,
    edges: str = "worlds",
    deadline_ms: float = 60_000,
    replicas: int = INGRESS_REPLICAS,
    **stages: Stage,
) -> Any:
    """Return a Serve application of stages: `serve.run(pipeline(a=A, b=B.after("a")))`.

    `handle.remote(x)` answers one query; over HTTP a query and its answer are JSON. What the last
    stage answers is the query's answer.

    edges:        "worlds"; "serve" runs the same stages over plain handles, for comparison.
    deadline_ms:  of each query, from when the ingress has it. Then TimeoutError.
    replicas:     of the ingress.

    Raises:  ValueError for what is no graph: a stage that is not there, a circle, two last stages.
    """
    if unnamed:
        raise TypeError("stages of a pipeline have names: pipeline(text=Text), not pipeline(Text)")
    check_ingress(edges, deadline_ms, replicas)
    order = ordered(stages)
    nodes: dict[str, Any] = {}
    for name in reversed(order):
        following = consumers(stages, name) if edges == "worlds" else []
        downstream = {each: nodes[each] for each in following}
        nodes[name] = deployment(stages[name], name, downstream)
    inputs = {name: stages[name].inputs for name in order}
    options = ingress_options(replicas, deadline_ms / 1000)
    shown = (
        nodes
        if edges == "serve"
        else {
            name: node for name, node in nodes.items() if not inputs[name] or len(inputs[name]) > 1
        }
    )
    return serve.deployment(**options)(Ingress).bind(shown, inputs, edges, deadline_ms / 1000)


def check_ingress(edges: str, deadline_ms: float, replicas: int) -> None:
    """Raise ValueError for what an ingress can't have."""
    if edges not in EDGES:
        raise ValueError(f"edges={edges!r} is none of {list(EDGES)}")
    check_deadline(deadline_ms)
    if type(replicas) is not int or replicas < 1:
        raise ValueError(f"replicas={replicas!r}, of the ingress, must be a whole number from 1 on")


def check_deadline(deadline_ms: float) -> None:
    """Raise ValueError for what is none."""
    is_number = isinstance(deadline_ms, numbers.Real) and not isinstance(deadline_ms, bool)
    if not is_number or not 0 < deadline_ms < math.inf:
        raise ValueError(
            f"deadline_ms={deadline_ms!r} must be a number above 0, and finite; give milliseconds"
        )


def deadline_of(asked_ms: float | None, deadline_s: float) -> float:
    """Return how long a query may take, in seconds; `asked_ms` is what its caller wants.

    Raises:  ValueError for what is no deadline.
    """
    if asked_ms is None:
        return deadline_s
    check_deadline(asked_ms)
    return min(asked_ms / 1000, deadline_s)


def ingress_options(replicas: int, deadline_s: float) -> dict[str, Any]:
    """Return an ingress's options: it only waits, and holds no CPU of Ray's.

    Serve would end one after 20 s that still has queries, as in an update of a slow stage.
    """
    return {
        "name": INGRESS,
        "num_replicas": replicas,
        "max_ongoing_requests": 1000,
        "graceful_shutdown_timeout_s": max(20.0, deadline_s + 5.0),
        "ray_actor_options": {"num_cpus": 0},
    }


def ordered(stages: Mapping[str, Stage]) -> list[str]:
    """Return the names such that each comes after its inputs.

    Raises:  ValueError if that can't be, or there is not one last stage.
    """
    if not stages:
        raise ValueError("a pipeline has at least one stage: pipeline(name=Stage)")
    if INGRESS in stages:
        raise ValueError(f"no stage can be called {INGRESS!r}, as the one where queries come in is")
    for name, each in stages.items():
        if not isinstance(each, Stage):
            raise ValueError(f"{name}={each!r} is no stage; decorate the class with @stage")
        for before in each.inputs:
            if before not in stages:
                raise ValueError(
                    f"stage {name} is after {before!r}, which is none of {sorted(stages)}"
                )
    order: list[str] = []
    left = dict(stages)
    while left:
        free = [name for name, each in left.items() if set(each.inputs) <= set(order)]
        if not free:
            raise ValueError(
                f"stages {sorted(left)} wait for themselves: what each is after comes after it"
            )
        for name in free:
            order.append(name)
            del left[name]
    last = [name for name in order if not consumers(stages, name)]
    if len(last) != 1:
        raise ValueError(f"stages {last} are all last; the answer is one stage's")
    return order


def consumers(stages: Mapping[str, Stage], name: str) -> list[str]:
    """Return the stages that get the answers of one."""
    return [each for each, of in stages.items() if name in of.inputs]


def is_json(request: Any) -> bool:
    """Whether it came over HTTP."""
    return isinstance(request, Request)


class Ingress:
    """Where queries come in. Serve makes it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        nodes: dict[str, Any],
        inputs: dict[str, tuple[str, ...]],
        edges: str,
        deadline_s: float,
    ) -> None:
        self._inputs = inputs
        self._deadline_s = deadline_s
        self._handles = nodes
        self._outlets = await outlets_of(nodes, edges, QUERY)
        self._first = [outlet for name, outlet in self._outlets.items() if not inputs[name]]
        self._joins = {
            name: outlet for name, outlet in self._outlets.items() if len(inputs[name]) > 1
        }

    async def __call__(self, request: Any) -> Any:
        """Answer one query: a value by a handle, or JSON over HTTP."""
        if not is_json(request):
            return await self.ask(request)
        return await answered_by_json(request, self.ask)

    async def ask(
        self, value: Any, query_id: str | None = None, deadline_ms: float | None = None
    ) -> Any:
        """Answer one query.

        query_id:     what stages see as its id; the same one if a caller asks again.
        deadline_ms:  of this query, at most the application's.
        """
        limit_s = deadline_of(deadline_ms, self._deadline_s)
        query_id = query_id or uuid.uuid4().hex
        began_s = time.monotonic()
        outcome = "failed"
        try:
            asked = self._asked if self._outlets else self._by_handles
            answer = await asked(query_id, value, limit_s)
            outcome = "ok"
            return answer
        except (TimeoutError, LateError) as error:
            outcome = "late"
            if str(error) or hasattr(error, "__notes__"):  # a stage's own says where
                raise
            raise TimeoutError(
                f"query {query_id} was not answered within {limit_s:g} s, its deadline"
            ) from None
        finally:
            metrics.count("serve_queries", outcome=outcome)
            metrics.observe_query(time.monotonic() - began_s, self._deadline_s)

    async def _asked(self, query_id: str, value: Any, limit_s: float) -> Any:
        """Ask, again whenever the replicas are lost that its inputs were to meet at."""
        deadline_s = time.monotonic() + limit_s
        value = await handoff.shared(value, len(self._first), QUERY, limit_s)
        deaths, ask = 0, uuid.uuid4().hex
        for attempt in itertools.count(1):
            try:
                return await self._by_edges(query_id, ask, attempt, value, deadline_s, deaths)
            except JoinLostError as error:
                logger.debug("query %s is asked again: %s", query_id, error)
                deaths = max(deaths, error.deaths)
                if deaths >= DEATHS_MAX:
                    raise PoisonousQueryError(
                        f"{deaths} replicas have died, one after the other, while they held this "
                        "query"
                    ) from error
                await asyncio.sleep(_AGAIN_S)

    async def _by_edges(
        self, query_id: str, ask: str, attempt: int, value: Any, deadline_s: float, deaths: int
    ) -> Any:
        async with asyncio.timeout(max(deadline_s - time.monotonic(), 0)):
            joins = {}
            for name, outlet in self._joins.items():
                await outlet.ready()
                joins[name] = tuple(random.sample(outlet.replicas, len(outlet.replicas)))
            left_s = deadline_s - time.monotonic()
            calls = [
                outlet.call(Query(query_id, attempt, "", value, left_s, joins, deaths, ask=ask))
                for outlet in self._first
            ]
            answer = await joint_answer(calls, attempt)
        if isinstance(answer, Merged):
            raise JoinLostError("none of its inputs has the answer", 0)
        return answer

    async def _by_handles(self, query_id: str, value: Any, limit_s: float) -> Any:
        responses: dict[str, Any] = {}
        for name, inputs in self._inputs.items():
            values = [responses[each] for each in inputs] or [value]
            responses[name] = self._handles[name].remote(query_id, limit_s, *values)
        async with asyncio.timeout(limit_s):
            return await responses[next(reversed(self._inputs))]

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits; None if there is nothing to close, or it is closed."""
        outlets, self._outlets = getattr(self, "_outlets", {}), {}
        return close_all(outlets) if outlets else None


async def answered_by_json(request: Request, ask: Callable[[Any], Awaitable[Any]]) -> Response:
    """Answer an HTTP request: its JSON is the query, the answer is JSON.

    An error is `{"error": ...}` and, by its status, whose: 400 for what is no JSON or too deep, 504
    for a deadline, 503 for a stage that has too much to do or a quorum that is not reached, 500 for
    any other; that one is logged.
    """
    try:
        query = await request.json()
    except (ValueError, RecursionError) as error:
        return _refused(f"the query is no JSON ({error}); POST the query as JSON", 400)
    try:
        answer = await ask(query)
        try:
            return Response(await _encoded(answer), media_type="application/json")
        except Exception as error:
            raise TypeError(
                f"the answer can't go over HTTP ({said(error)}); have the last stage return what "
                "JSON has"
            ) from None
    except QuorumError as error:
        return await _without_quorum(error)
    except Exception as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        if status == 500:
            _serve_logger.exception("a query over HTTP has failed")
        return _refused(f"{said(error)}{_where(error)}", status)


def _refused(text: str, status: int, **more: Any) -> Response:
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate is no UTF-8
    body = orjson.dumps({"error": text, **more})
    return Response(body, status, media_type="application/json")


async def _without_quorum(error: QuorumError) -> Response:
    """Answer with the votes that JSON has, and name those that it has not."""
    text, partial = str(error), dict[str, Any]()
    for member, vote in error.partial.items():
        try:
            partial[member] = orjson.Fragment(await _encoded(vote))
        except Exception as why:
            text += f"; the vote of {member} can't go over HTTP ({said(why)})"
    return _refused(text, 503, partial=partial)


def _where(error: Exception) -> str:
    """Say which stage has raised it, by its note."""
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    line = next((note.partition("\n")[0] for note in notes if note.startswith("in stage ")), "")
    return f" ({line.rstrip(':')})" if line else ""


async def _encoded(value: Any) -> bytes:
    """Return a value as JSON, made in a thread: edges are served in this loop."""
    return await asyncio.to_thread(as_json, value)


def as_json(value: Any) -> bytes:
    """Return a value as JSON: arrays as lists, numpy's numbers as numbers, NaN as null.

    Raises:  TypeError, RecursionError or UnicodeEncodeError for what JSON has not.
    """
    try:
        return orjson.dumps(value, _as_list, _JSON)
    except orjson.JSONEncodeError:  # as keys that are no text, whole numbers above 64 bits
        plain = _plain(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def _as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value)} is no JSON")


def _plain(value: Any) -> Any:
    """Return a value as the standard library's JSON takes it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
