"""The standard health service, grpc.health.v1: Check, Watch and List, without a proof.

    ""                            the node: SERVING from its join to its end
    hoplite_ray.control.Control   the calls of control.proto; as the node
    hoplite_ray.placement         whether new objects belong here: as the node, but NOT_SERVING
                                  while it drains or is in a minority, where no view is committed

Such a node still answers gets, so only `hoplite_ray.placement` says NOT_SERVING then: use "" to
ask whether a node lives, and the other to ask whether to send it work.

Written here because the class that comes with grpcio-health-checking has no List, and lets
strangers watch until no call is left for the members.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hoplite_ray.control.methods import SERVICE

PLACEMENT = "hoplite_ray.placement"

_WATCHERS_MAX = 256  # a few per member of a usual cluster; the others' calls go on beside them

_Status = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """The health of the node, which any caller may ask for. One event loop owns it."""

    def __init__(self) -> None:
        self._statuses = dict.fromkeys(("", SERVICE, PLACEMENT), _Status.NOT_SERVING)
        self._changed = asyncio.Event()  # set once, then replaced, at each change
        self._watchers = 0
        self._is_draining = False
        self._is_short = False
        self._has_ended = False

    def open(self) -> None:
        """Report that the node is a member."""
        self._set(dict.fromkeys(self._statuses, _Status.SERVING))
        self._update_placement()

    def drain(self) -> None:
        """Report that new objects belong elsewhere."""
        self._is_draining = True
        self._update_placement()

    def set_shortage(self, why: str) -> None:
        """Report that new objects belong elsewhere while `why` is not empty."""
        self._is_short = bool(why)
        self._update_placement()

    def _update_placement(self) -> None:
        if self._statuses[SERVICE] != _Status.SERVING:
            return
        is_good = not (self._is_draining or self._is_short)
        self._set({PLACEMENT: _Status.SERVING if is_good else _Status.NOT_SERVING})

    def end(self) -> None:
        """Report that the node leaves; every watch ends with NOT_SERVING."""
        self._has_ended = True
        self._set(dict.fromkeys(self._statuses, _Status.NOT_SERVING))

    def add_to(self, service: grpc.aio.Server) -> None:
        """Answer on the same port as `service`."""
        health_pb2_grpc.add_HealthServicer_to_server(self, service)

    async def Check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """Answer with the status of one name."""
        status = self._statuses.get(request.service)
        if status is None:
            names = ", ".join(map(repr, self._statuses))
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service of that name; there are {names}"
            )
        return _Status(status=status)

    async def List(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        """Answer with the status of every name."""
        statuses = {name: _Status(status=status) for name, status in self._statuses.items()}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        """Yield the status of one name now and at each change; a name that is not there as such."""
        if self._watchers >= _WATCHERS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_WATCHERS_MAX} watch this node's health already; use Check",
            )
        self._watchers += 1
        last_status = None
        try:
            while True:
                changed, is_last = self._changed, self._has_ended
                status = self._statuses.get(request.service, _Status.SERVICE_UNKNOWN)
                if status != last_status:
                    last_status = status
                    yield _Status(status=status)
                if is_last:
                    return
                await changed.wait()
        finally:
            self._watchers -= 1

    def _set(self, statuses: dict[str, Any]) -> None:
        self._statuses |= statuses
        self._changed.set()
        self._changed = asyncio.Event()
