"""Several models that vote on each query, as one Serve application. A death costs one vote.

Source: Hoplite 5.4, 5.5 and Figure 12.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any

from ray import serve
from ray.serve import Application

from hoplite_ray.serve import metrics
from hoplite_ray.serve.errors import QuorumError
from hoplite_ray.serve.graph.http import answer_http, is_json
from hoplite_ray.serve.graph.ingress import (
    INGRESS,
    INGRESS_REPLICAS,
    QUERY,
    EdgesName,
    check_ingress,
    check_parking,
    in_seconds,
    ingress_options,
    merge_stages,
)
from hoplite_ray.serve.graph.votes import Answer, Combine, CombineName, Poll, Verdict
from hoplite_ray.serve.routing import handoff
from hoplite_ray.serve.routing.joint import wait_for_first
from hoplite_ray.serve.routing.keys import Rule
from hoplite_ray.serve.routing.outlet import close_all, open_outlets
from hoplite_ray.serve.routing.query import Query, take_cut
from hoplite_ray.serve.stages.declare import Stage, StageLike
from hoplite_ray.serve.stages.deploy import deployment, find_keys

_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log
_ALL_S = 30.0  # with a query's deadline, for all members to start; then a quorum is enough


def ensemble(
    *models: StageLike | Mapping[str, StageLike],
    combine: CombineName | Combine = "majority",
    quorum: int = 1,
    deadline_s: float = 10.0,
    deadline_ms: float | None = None,
    edges: EdgesName = "worlds",
    replicas: int = INGRESS_REPLICAS,
    **named: StageLike,
) -> Application:
    """Return a Serve application whose members, the models, all answer each query.

    `models` are called model0, model1 and so on, `named` by their keywords. A mapping may use any
    name: `ensemble({"edges": A, "replicas": B})`.
    `await handle.remote(x)` is an Answer. It comes when all living members have voted, when no vote
    can change a majority any more, or at the deadline.

    combine:      "majority", "mean", or a function of the list of votes.
    quorum:       of votes for an answer. With fewer, QuorumError has the votes that came.
    deadline_s:   of each query, from when it reaches the ingress.
    deadline_ms:  the same in milliseconds. Deprecated.
    edges:        "worlds"; "serve" runs the same over plain handles, for comparison.
    replicas:     of the ingress.

    Raises:  ValueError for a value that an argument can't have; TypeError for a name that is no
             text.
    """
    check_ingress(edges, replicas)
    deadline_s = in_seconds(deadline_s, deadline_ms)
    unnamed = [each for each in models if not isinstance(each, Mapping)]
    for each in models:
        if isinstance(each, Mapping):
            named = merge_stages(each, named)
    stages: dict[str, Any] = {f"model{number}": each for number, each in enumerate(unnamed)}
    if twice := stages.keys() & named.keys():
        raise ValueError(f"{min(twice)} is what one without a name is called; use another one")
    stages |= named
    if not stages:
        raise ValueError("an ensemble has at least one model: ensemble(Model, Other, ...)")
    if INGRESS in stages:
        raise ValueError(f"no member can be called {INGRESS!r}, as where queries come in is")
    for name, each in stages.items():
        if isinstance(each, list | tuple):
            raise ValueError("models are arguments of their own: ensemble(*models)")
        if not isinstance(each, Stage) or each.inputs:
            raise ValueError(f"{name}={each!r} is no stage that gets the query itself; use @stage")
    check_parking(stages, edges)
    Poll(list(stages), quorum=quorum, combine=combine)  # raises for a mistake now
    members = {name: deployment(each, name, {}) for name, each in stages.items()}
    options = ingress_options(replicas, deadline_s)
    bound = serve.deployment(**options)(EnsembleIngress)
    return bound.bind(members, quorum, combine, deadline_s, edges, keys=find_keys(stages))


class EnsembleIngress:
    """The ingress of an ensemble, which counts votes. Serve makes it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        members: dict[str, Any],
        quorum: int,
        combine: str | Combine,
        deadline_s: float,
        edges: str,
        keys: Mapping[str, Rule] | None = None,
    ) -> None:
        self._handles = members
        self._quorum = quorum
        self._combine = combine
        self._deadline_s = deadline_s
        self._outlets = await open_outlets(members, edges, QUERY, keys)
        if self._outlets:
            await self._wait_for_members(deadline_s + _ALL_S)

    async def _wait_for_members(self, limit_s: float) -> None:
        """Wait until all members have a replica, so that none is missing from the first answers.

        After `limit_s` a quorum is enough, for example when the ingress is started again and a
        member can't be. It waits for the quorum as long as Serve takes. Models may load slowly, and
        if the ingress gave up, Serve would give up the application.
        """
        ready = asyncio.gather(*(outlet.wait_ready() for outlet in self._outlets.values()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ready, limit_s)
            return
        lacking = [name for name, outlet in self._outlets.items() if not outlet.replicas]
        _serve_logger.warning(
            "after %g s %s have no replica; a quorum of %d is waited for",
            *(limit_s, ", ".join(lacking), self._quorum),
        )
        while not self._has_quorum():
            lacks = [outlet for outlet in self._outlets.values() if not outlet.replicas]
            await wait_for_first(*(outlet.wait_ready() for outlet in lacks))

    async def __call__(self, request: Any) -> Any:
        """Answer one query: an Answer by a handle, JSON over HTTP."""
        if not is_json(request):
            return await self.ask(request)
        return await answer_http(request, self._ask_as_dict)

    async def _ask_as_dict(self, query: Any) -> dict[str, Any]:
        return dataclasses.asdict(await self.ask(query))

    async def ask(
        self,
        value: Any,
        query_id: str | None = None,
        *,
        deadline_s: float | None = None,
        deadline_ms: float | None = None,
    ) -> Answer:
        """Have all members vote on one query. The arguments are those of `Ingress.ask`.

        Raises:  QuorumError with fewer votes than a quorum; ValueError for what is no deadline.
        """
        loop = asyncio.get_running_loop()
        asked_s = self._deadline_s if deadline_s is None else deadline_s
        limit_s = min(in_seconds(asked_s, deadline_ms), self._deadline_s)
        began_s = loop.time()
        poll = Poll(list(self._handles), quorum=self._quorum, combine=self._combine)
        try:
            answer = await self._poll_members(poll, query_id or uuid.uuid4().hex, value, limit_s)
        except BaseException:
            metrics.count("serve_queries", outcome="failed", pipeline="")
            raise
        finally:
            metrics.observe_query(loop.time() - began_s, self._deadline_s)
        is_partial = bool(answer.missing) or poll.is_due
        metrics.count("serve_queries", outcome="partial" if is_partial else "ok", pipeline="")
        metrics.count("serve_votes", missing=str(len(answer.missing)))
        return answer

    async def _poll_members(self, poll: Poll, query_id: str, value: Any, limit_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        sent = await handoff.share(value, len(self._outlets), QUERY, limit_s)
        left_s = max(deadline_s - loop.time(), 0.001)
        cut_s = take_cut(time.time())
        voting = {
            asyncio.ensure_future(
                self._ask_member(name, query_id, value, sent, left_s, cut_s)
            ): name
            for name in self._handles
        }
        waiting = set(voting)
        try:
            while poll.verdict is Verdict.OPEN:
                left_s = max(deadline_s - loop.time(), 0)
                done, waiting = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    poll.expire()
                for vote in done:
                    error = vote.exception()
                    if error is None:
                        poll.vote(voting[vote], vote.result())
                    else:
                        poll.mark_lost(voting[vote], f"{type(error).__name__}: {error}")
        finally:
            for vote in voting:
                vote.cancel()
        if poll.verdict is Verdict.FAILED:
            raise QuorumError(poll.failure(), dict(poll.partial))
        return poll.answer()

    async def _ask_member(
        self, name: str, query_id: str, value: Any, sent: Any, left_s: float, cut_s: float
    ) -> Any:
        """Ask a member for its vote: a value, which is sent as `sent`."""
        if not self._outlets:
            return await self._handles[name].remote(query_id, left_s, sent, cut_s=cut_s)
        query = Query(query_id, 1, "", sent, left_s, {}, cut_s=cut_s)
        outlet = self._outlets[name]
        key = outlet.derive_key(value)

        def should_wait() -> bool:  # an update may take all members' only replicas at once
            return outlet.is_replaced and not self._has_quorum()

        return await outlet.call(query, key=key, should_wait=should_wait)

    def _has_quorum(self) -> bool:
        return sum(bool(outlet.replicas) for outlet in self._outlets.values()) >= self._quorum

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits; None if there is nothing to close."""
        outlets, self._outlets = getattr(self, "_outlets", {}), {}
        return close_all(outlets) if outlets else None
