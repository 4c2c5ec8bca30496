"""The edges from this replica to all replicas of one stage, and the calls over them.

A call goes to the replica with the fewest open calls of this process. A call that its caller gave
up counts as open until that replica answers another one, because a replica that hangs would look
idle. A stage with `key` or `near` has rules of its own (affinity.py, nearness.py).
A parked replica gets a query only if no replica is active, and is active from then on.

When an edge breaks, its calls go to another replica. So a death costs its callers a repetition and
no answer, and user code runs at least once.

A query over which several replicas have died is given up, because it would kill the others as well.
Before the last of them it runs alone, and that death counts only if its work had begun, or it was
being unpickled. So queries that were in its batches are not given up with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hoplite_ray import WorldError
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.door import open_edge
from hoplite_ray.serve.edge.edge import Edge, NotifyRunning
from hoplite_ray.serve.edge.failures import describe_error
from hoplite_ray.serve.errors import (
    EdgeBrokenError,
    JoinLostError,
    NoReplicaError,
    PoisonousQueryError,
    StoredLostError,
)
from hoplite_ray.serve.routing import discovery
from hoplite_ray.serve.routing.affinity import Calls
from hoplite_ray.serve.routing.choice import (
    OPEN_S,
    Decision,
    ReplicaStatus,
    decide,
    find_candidates,
    least_loaded,
)
from hoplite_ray.serve.routing.handoff import Stored
from hoplite_ray.serve.routing.joint import wait_for_first
from hoplite_ray.serve.routing.keys import Key, NearRule, Rule
from hoplite_ray.serve.routing.query import Query
from hoplite_ray.serve.seams import begin_routing
from hoplite_ray.worlds.handshake.errors import RefusedError

logger = logging.getLogger("hoplite_ray.serve")
_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log

DEATHS_MAX = 3  # of replicas that held one query; then the query is given up
_AGAIN_S = 0.1  # before an edge is tried again; Serve takes longer to say that a replica is gone
_UNEXPECTED_S = 1.0  # before an edge is tried again after an error that is not the network's
_WHY = {Decision.GONE: "had gone before this one came", Decision.UNREACHABLE: "can't be reached"}
_TELL_S = 5.0  # between two values of a gauge, since Ray's agent forgets older ones


async def open_outlets(
    handles: Mapping[str, Any], edges: str, what: str, keys: Mapping[str, Rule] | None = None
) -> dict[str, Outlet]:
    """Open an ingress's outlets by stage; none if Serve's own handles carry its queries.

    keys:  the rules of the stages that have one, by name.
    """
    rules = keys or {}
    if edges != "worlds":
        return {}
    return {name: Outlet(handle, what, rules.get(name)) for name, handle in handles.items()}


class Outlet:
    """The edges from one replica to one downstream stage. Made in the event loop that uses it."""

    def __init__(self, handle: Any, what: str, rule: Rule | None = None) -> None:
        """Begin to open edges.

        what:  names the requests in errors.
        rule:  of the stage, by which its replicas are chosen; None: by load.
        """
        self._what = what
        self.stage = handle.deployment_name
        self._deployment = (handle.app_name, handle.deployment_name)
        self._caller = uuid.uuid4().hex[:12]
        self._handle = handle
        self._listed: dict[str, asyncio.Event] = {}  # set when Serve removes that replica
        self._ever_listed: set[str] = set()  # all replicas that Serve has ever listed
        self._keep_tasks: set[asyncio.Task[None]] = set()
        self._edges: dict[str, Edge] = {}
        self._opening: set[str] = set()  # replicas whose first edge is being opened
        self._abandoned_calls: Counter[Edge] = Counter()  # cancelled since the edge's last answer
        self._rule = rule
        self._nodes: dict[str, str] = {}  # the Ray node of each replica that is listed
        self._chooser = None if rule is None else rule.make_chooser(self._nodes, random.random)
        self._draining: dict[str, Edge] = {}  # for queries whose other inputs are there
        self._dead: set[str] = set()  # replicas whose doors refuse connections
        self.is_replaced = False  # True if Serve has removed the last replica, as in an update
        self._changed = asyncio.Event()
        self._metrics_task = asyncio.create_task(self._publish_metrics())
        begin_routing(handle)
        discovery.watch(self._deployment, self._update_replicas)

    @property
    def replicas(self) -> list[str]:
        """The ids of the replicas that can be called, in order."""
        return sorted(self._edges)

    def derive_key(self, value: Any) -> Key | None:
        """Return the key of a query by the stage's rule; None if the stage or the query has none.

        Raises:  what the stage's function of keys raises, with the stage's name as its note.
        """
        return None if self._rule is None else self._rule.derive(value)

    def rank_replicas(self, key: Key | None = None) -> tuple[str, ...]:
        """Return the replicas for a join, best first: by a query's key, or else by chance.

        Parked ones come last, for a query that survives all active ones.
        """
        candidates = self._find_candidates()
        ranked = tuple(candidates)
        if candidates and not self._edges[candidates[0]].is_parked:
            if self._chooser is not None and key is not None:
                ranked = self._chooser.rank(key, self._count_calls(candidates))
            else:
                ranked = tuple(random.sample(candidates, len(candidates)))
        return (*ranked, *sorted(self._edges.keys() - set(ranked)))

    async def wait_ready(self) -> None:
        """Return when there is a replica that may get a query."""
        while not self._find_candidates():
            changed = self._changed
            await changed.wait()

    async def call(
        self,
        query: Query,
        *,
        key: Key | None = None,
        preferred: Sequence[str] = (),
        should_wait: Callable[[], bool] = lambda: True,
    ) -> Any:
        """Have a replica of the stage answer `query`, which no other call may use.

        key:          by `derive_key`; None: any replica is as good.
        preferred:    for a join: the ids of the replicas that may answer, best first.
        should_wait:  returns True if the call is to wait while the stage has no replica.

        Raises:  what the stage raised; PoisonousQueryError; NoReplicaError if it does not wait;
                 JoinLostError when all of `preferred` are dead, or one can't be reached.
        """
        if isinstance(self._rule, NearRule) and isinstance(query.value, Stored):
            key = self._rule.derive(query.value)
        deaths = query.deaths
        deadline_s = _now() + query.left_s
        while True:
            edge = (
                await self._choose_preferred(preferred, deaths) if preferred else self._choose(key)
            )
            if edge is None:
                if not self._edges and not should_wait():
                    raise NoReplicaError(f"stage {self.stage} has no replica now")
                await self.wait_ready()
                continue
            try:
                query.runs_alone = alone = deaths >= DEATHS_MAX - 1
                query.left_s = max(deadline_s - _now(), 0.001)
                query.sent_s = time.time()
                return await self._call_edge(edge, query, alone=alone)
            except StoredLostError as error:
                logger.debug("stage %s can't have it by its id: %s", self.stage, error)
                query = query.by_value()
            except EdgeBrokenError as error:
                self._forget_edge(edge)
                deaths += error.has_begun if alone else error.was_sent
                metrics.count("serve_reissues", stage=self.stage)
                if deaths >= DEATHS_MAX:
                    raise PoisonousQueryError(
                        f"{deaths} replicas of stage {self.stage} have died, one after the other, "
                        "while they held this query"
                    ) from error

    async def _call_edge(self, edge: Edge, query: Query, *, alone: bool) -> Any:
        """Call over an edge. An answer or error proves that its replica does not hang."""
        try:
            answer = await edge.call(query.fields, alone=alone)
        except asyncio.CancelledError:
            self._abandoned_calls[edge] += 1
            raise
        except EdgeBrokenError:
            raise
        except Exception:
            del self._abandoned_calls[edge]
            raise
        del self._abandoned_calls[edge]
        return answer

    async def close(self) -> None:
        """Leave all edges."""
        discovery.unwatch(self._deployment, self._update_replicas)
        self._metrics_task.cancel()
        for task in self._keep_tasks:
            task.cancel()
        await asyncio.gather(*self._keep_tasks, return_exceptions=True)

    def _find_candidates(self) -> Sequence[str]:
        parked = {replica: edge.is_parked for replica, edge in self._edges.items()}
        return find_candidates(parked, is_opening=bool(self._opening))

    def _choose(self, key: Key | None = None) -> Edge | None:
        """Return the edge for a query; None if it is to wait.

        It is that of the key's replica. Without a key, it has the fewest calls open or given up.
        A key chooses no parked replica, because the keys together would make all of them active.
        """
        candidates = self._find_candidates()
        if not candidates:
            return None
        is_parked = self._edges[candidates[0]].is_parked  # then all of them are
        if self._chooser is not None and key is not None and not is_parked:
            return self._edges[self._chooser.choose(key, self._count_calls(candidates))]
        edges = [self._edges[each] for each in candidates]
        if len(edges) == 1:
            return edges[0]
        loads = {each: each.calls_open + self._abandoned_calls[each] for each in edges}
        return least_loaded(loads, _draw_first if is_parked else random.random)

    def _count_calls(self, replicas: Sequence[str]) -> dict[str, Calls]:
        edges = {replica: self._edges[replica] for replica in replicas}
        return {
            replica: Calls(edge.calls_open, self._abandoned_calls[edge])
            for replica, edge in edges.items()
        }

    async def _choose_preferred(self, preferred: Sequence[str], deaths: int) -> Edge:
        """Return the edge to the first of these that is not dead: all senders of a query agree.

        Raises:  JoinLostError when all are, or when that one can't be reached.
        """
        for replica in preferred:
            began_s = _now()
            while (
                choice := decide(self._status_of(replica), _now() - began_s)
            ) is not Decision.NEXT:
                if choice is Decision.TAKE:
                    return self._edges.get(replica) or self._draining[replica]
                if choice in _WHY:
                    why = f"replica {replica} of stage {self.stage} {_WHY[choice]}"
                    raise JoinLostError(why, deaths)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _AGAIN_S)
        why = f"all replicas of stage {self.stage} that could join it are dead"
        raise JoinLostError(why, deaths)

    def _status_of(self, replica: str) -> ReplicaStatus:
        return ReplicaStatus(
            is_dead=replica in self._dead,
            has_edge=replica in self._edges or replica in self._draining,
            is_listed=replica in self._listed,
            was_listed=replica in self._ever_listed,
        )

    def _forget_edge(self, edge: Edge) -> None:
        for edges in (self._edges, self._draining):
            for replica, known in list(edges.items()):
                if known is edge:
                    del edges[replica]
        del self._abandoned_calls[edge]
        if edge.has_left and not self._edges:  # Serve may say so later
            self.is_replaced = True

    def _update_replicas(self, doors: discovery.Doors) -> None:
        self._ever_listed |= doors.keys()
        for replica, door in doors.items():
            self._nodes[replica] = door.get("node", "")
            if replica not in self._listed:
                gone = self._listed[replica] = asyncio.Event()
                self._begin_opening(replica)
                task = asyncio.create_task(self._keep_connected(replica, door, gone))
                self._keep_tasks.add(task)
                task.add_done_callback(self._keep_tasks.discard)
        for replica in self._listed.keys() - doors.keys():
            self._listed.pop(replica).set()
            self._dead.discard(replica)
            del self._nodes[replica]
            self._end_opening(replica)

    def _begin_opening(self, replica: str) -> None:
        self._opening.add(replica)
        asyncio.get_running_loop().call_later(OPEN_S, self._end_opening, replica)

    def _end_opening(self, replica: str) -> None:
        """Wait for this replica no longer, if a parked one could take a query."""
        if replica in self._opening:
            self._opening.discard(replica)
            self._notify_change()

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _publish_metrics(self) -> None:
        while True:
            parked = sum(edge.is_parked for edge in self._edges.values())
            active = len(self._edges) - parked
            metrics.set_gauge("serve_parked", parked, stage=self.stage)
            metrics.set_gauge("serve_active", active, stage=self.stage)
            metrics.set_gauge("serve_edges", len(self._edges), stage=self.stage)
            metrics.set_gauge("serve_replicas", len(self._listed), stage=self.stage)
            await asyncio.sleep(_TELL_S)

    async def _keep_connected(
        self, replica: str, door: dict[str, Any], gone: asyncio.Event
    ) -> None:
        """Keep an edge to a replica open while Serve lists that replica."""
        is_logged = False
        while not gone.is_set():
            try:
                await self._run_edge(replica, door, gone)
                is_logged = False
            except (OSError, TimeoutError, WorldError) as error:
                if isinstance(error, RefusedError) and error.reason == "tls":
                    self._warn(replica, error, is_logged=is_logged)
                    is_logged = True
                logger.debug("no edge to %s: %s", replica, error)
                if isinstance(
                    error, ConnectionRefusedError
                ):  # no process listens: the replica is dead
                    self._dead.add(replica)
                    self._notify_change()
                await asyncio.sleep(_AGAIN_S)
            except Exception as error:  # for example no file descriptors, which may come back
                self._warn(replica, error, is_logged=is_logged)
                is_logged = True
                await asyncio.sleep(_UNEXPECTED_S)

    def _warn(self, replica: str, error: Exception, *, is_logged: bool) -> None:
        level = logging.DEBUG if is_logged else logging.WARNING
        where = f"replica {replica} of stage {self.stage}"
        _serve_logger.log(level, "there is no edge to %s now: %s", where, describe_error(error))

    async def _run_edge(self, replica: str, door: dict[str, Any], gone: asyncio.Event) -> None:
        """Open an edge to a replica; return when it has ended."""
        try:
            name = f"{self._caller}>{replica}"
            edge = await open_edge(door, name, self._refuse_call, self._what, self._notify_change)
        finally:
            self._end_opening(replica)
        self._dead.discard(replica)
        self._edges[replica] = edge
        self.is_replaced = False
        self._notify_change()
        try:
            await wait_for_first(edge.wait_closed(), gone.wait())
            if gone.is_set() and self._edges.pop(replica, None) is edge:
                self._draining[replica] = edge  # until it has answered what it has
                self.is_replaced = not self._edges
                await edge.wait_closed()
            else:
                metrics.count("serve_edges_broken", stage=self.stage)
                if edge.calls_broken:
                    _serve_logger.warning(
                        "replica %s of stage %s is gone; %d queries that it had go to others",
                        *(replica, self.stage, edge.calls_broken),
                    )
        finally:
            self._forget_edge(edge)
            self._notify_change()
            await edge.close()

    async def _refuse_call(self, request: Any, notify_running: NotifyRunning) -> Any:
        raise TypeError("a stage does not call its callers; this one has asked something")


async def close_all(outlets: Mapping[str, Outlet]) -> None:
    """Leave the edges of all outlets."""
    await asyncio.gather(*(outlet.close() for outlet in outlets.values()))


def _draw_first() -> float:
    """Decide for the first of equals, as all senders do."""
    return 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()
