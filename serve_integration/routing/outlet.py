"""The edges from this replica to all replicas of one stage, and the calls over them.

A call goes to the replica with the fewest open calls of this process. A call that its caller gave
up counts as open until that replica answers another one, because a replica that hangs would look
idle.

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
from hoplite_ray.serve.routing.choice import Known, Look, least_loaded, look
from hoplite_ray.serve.routing.joint import first
from hoplite_ray.serve.routing.query import Query
from hoplite_ray.serve.seams import begin_routing
from hoplite_ray.worlds.handshake.errors import RefusedError

logger = logging.getLogger("hoplite_ray.serve")
_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log

DEATHS_MAX = 3  # of replicas that held one query; then the query is given up
_AGAIN_S = 0.1  # before an edge is tried again; Serve takes longer to say that a replica is gone
_UNEXPECTED_S = 1.0  # before an edge is tried again after an error that is not the network's
_WHY = {Look.GONE: "had gone before this one came", Look.UNREACHABLE: "can't be reached"}
_TELL_S = 5.0  # between two values of a gauge, since Ray's agent forgets older ones


async def outlets_of(handles: Mapping[str, Any], edges: str, what: str) -> dict[str, Outlet]:
    """Return an ingress's outlets by stage; none if Serve's own handles carry its queries."""
    if edges != "worlds":
        return {}
    return {name: Outlet(handle, what) for name, handle in handles.items()}


class Outlet:
    """The edges from one replica to one downstream stage. Made in the event loop that uses it."""

    def __init__(self, handle: Any, what: str) -> None:
        """Begin to open edges; `what` names the requests in errors."""
        self._what = what
        self.stage = handle.deployment_name
        self._deployment = (handle.app_name, handle.deployment_name)
        self._caller = uuid.uuid4().hex[:12]
        self._handle = handle
        self._kept: dict[str, asyncio.Event] = {}  # set when Serve takes that replica away
        self._known: set[str] = set()  # all replicas that Serve has ever listed
        self._keeping: set[asyncio.Task[None]] = set()
        self._edges: dict[str, Edge] = {}
        self._given_up: Counter[Edge] = (
            Counter()
        )  # calls that were cancelled, since its last answer
        self._leaving: dict[str, Edge] = {}  # for queries whose other inputs are there
        self._dead: set[str] = set()  # replicas whose doors refuse connections
        self.is_replaced = False  # True if Serve has taken the last replica away, as in an update
        self._changed = asyncio.Event()
        self._telling = asyncio.create_task(self._tell_metrics())
        begin_routing(handle)
        discovery.watch(self._deployment, self._told)

    @property
    def replicas(self) -> list[str]:
        """The ids of the replicas that can be called, in order."""
        return sorted(self._edges)

    async def ready(self) -> None:
        """Return when there is a replica that can be called."""
        while not self._edges:
            changed = self._changed
            await changed.wait()

    async def call(
        self,
        query: Query,
        *,
        preferred: Sequence[str] = (),
        waits: Callable[[], bool] = lambda: True,
    ) -> Any:
        """Have a replica of the stage answer `query`, which no other call may use.

        preferred:  for a join: the ids of the replicas that may answer, best first.
        waits:      returns True if the call is to wait while the stage has no replica.

        Raises:  what the stage raised; PoisonousQueryError; NoReplicaError if it does not wait;
                 JoinLostError when all of `preferred` are dead, or one can't be reached.
        """
        deaths = query.deaths
        deadline_s = _now() + query.left_s
        while True:
            edge = await self._pinned(preferred, deaths) if preferred else self._chosen()
            if edge is None:
                if not waits():
                    raise NoReplicaError(f"stage {self.stage} has no replica now")
                await self.ready()
                continue
            try:
                query.alone = alone = deaths >= DEATHS_MAX - 1
                query.left_s = max(deadline_s - _now(), 0.001)
                query.sent_s = time.time()
                return await self._answer_of(edge, query, alone=alone)
            except StoredLostError as error:
                logger.debug("stage %s can't have it by its id: %s", self.stage, error)
                query = query.by_value()
            except EdgeBrokenError as error:
                self._forget(edge)
                deaths += error.has_begun if alone else error.was_sent
                metrics.count("serve_reissues", stage=self.stage)
                if deaths >= DEATHS_MAX:
                    raise PoisonousQueryError(
                        f"{deaths} replicas of stage {self.stage} have died, one after the other, "
                        "while they held this query"
                    ) from error

    async def _answer_of(self, edge: Edge, query: Query, *, alone: bool) -> Any:
        """Call over an edge, and note whether its replica answers; an error is an answer."""
        try:
            answer = await edge.call(query.told, alone=alone)
        except asyncio.CancelledError:
            self._given_up[edge] += 1
            raise
        except EdgeBrokenError:
            raise
        except Exception:
            del self._given_up[edge]
            raise
        del self._given_up[edge]
        return answer

    async def close(self) -> None:
        """Leave all edges."""
        discovery.unwatch(self._deployment, self._told)
        self._telling.cancel()
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    def _chosen(self) -> Edge | None:
        """Return the edge with the fewest calls open or given up; None if there is no edge."""
        if len(self._edges) == 1:
            return next(iter(self._edges.values()))

        loads = {each: each.calls_open + self._given_up[each] for each in self._edges.values()}
        return least_loaded(loads, random.random)

    async def _pinned(self, preferred: Sequence[str], deaths: int) -> Edge:
        """Return the edge to the first of these that is not dead: all senders of a query agree.

        Raises:  JoinLostError when all are, or when that one can't be reached.
        """
        for replica in preferred:
            began_s = _now()
            while (choice := look(self._known_of(replica), _now() - began_s)) is not Look.NEXT:
                if choice is Look.TAKE:
                    return self._edges.get(replica) or self._leaving[replica]
                if choice in _WHY:
                    why = f"replica {replica} of stage {self.stage} {_WHY[choice]}"
                    raise JoinLostError(why, deaths)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _AGAIN_S)
        why = f"all replicas of stage {self.stage} that could join it are dead"
        raise JoinLostError(why, deaths)

    def _known_of(self, replica: str) -> Known:
        return Known(
            is_dead=replica in self._dead,
            has_edge=replica in self._edges or replica in self._leaving,
            is_listed=replica in self._kept,
            was_listed=replica in self._known,
        )

    def _forget(self, edge: Edge) -> None:
        for edges in (self._edges, self._leaving):
            for replica, known in list(edges.items()):
                if known is edge:
                    del edges[replica]
        del self._given_up[edge]
        if edge.has_left and not self._edges:  # Serve may say so later
            self.is_replaced = True

    def _told(self, doors: discovery.Doors) -> None:
        self._known |= doors.keys()
        for replica, door in doors.items():
            if replica not in self._kept:
                gone = self._kept[replica] = asyncio.Event()
                task = asyncio.create_task(self._keep(replica, door, gone))
                self._keeping.add(task)
                task.add_done_callback(self._keeping.discard)
        for replica in self._kept.keys() - doors.keys():
            self._kept.pop(replica).set()
            self._dead.discard(replica)

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _tell_metrics(self) -> None:
        while True:
            metrics.show("serve_edges", len(self._edges), stage=self.stage)
            metrics.show("serve_replicas", len(self._kept), stage=self.stage)
            await asyncio.sleep(_TELL_S)

    async def _keep(self, replica: str, door: dict[str, Any], gone: asyncio.Event) -> None:
        """Keep an edge to a replica open while Serve lists that replica."""
        is_told = False
        while not gone.is_set():
            try:
                await self._keep_one(replica, door, gone)
                is_told = False
            except (OSError, TimeoutError, WorldError) as error:
                if isinstance(error, RefusedError) and error.reason == "tls":
                    self._warn(replica, error, is_told=is_told)
                    is_told = True
                logger.debug("no edge to %s: %s", replica, error)
                if isinstance(error, ConnectionRefusedError):  # no process listens: it is dead
                    self._dead.add(replica)
                    self._tell_change()
                await asyncio.sleep(_AGAIN_S)
            except Exception as error:  # for example no file descriptors, which may come back
                self._warn(replica, error, is_told=is_told)
                is_told = True
                await asyncio.sleep(_UNEXPECTED_S)

    def _warn(self, replica: str, error: Exception, *, is_told: bool) -> None:
        level = logging.DEBUG if is_told else logging.WARNING
        where = f"replica {replica} of stage {self.stage}"
        _serve_logger.log(level, "there is no edge to %s now: %s", where, describe_error(error))

    async def _keep_one(self, replica: str, door: dict[str, Any], gone: asyncio.Event) -> None:
        """Open an edge to a replica; return when it has ended."""
        edge = await open_edge(door, f"{self._caller}>{replica}", self._nothing, self._what)
        self._dead.discard(replica)
        self._edges[replica] = edge
        self.is_replaced = False
        self._tell_change()
        try:
            await first(edge.wait_closed(), gone.wait())
            if gone.is_set() and self._edges.pop(replica, None) is edge:
                self._leaving[replica] = edge  # until it has answered what it has
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
            self._forget(edge)
            self._tell_change()
            await edge.close()

    async def _nothing(self, request: Any, notify_running: NotifyRunning) -> Any:
        raise TypeError("a stage does not call its callers; this one has asked something")


async def close_all(outlets: Mapping[str, Outlet]) -> None:
    """Leave the edges of all outlets."""
    await asyncio.gather(*(outlet.close() for outlet in outlets.values()))


def _now() -> float:
    return asyncio.get_running_loop().time()
