"""Calls to the control service of other nodes. Every call has a deadline and a proof."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import METADATA_KEY, proof
from hoplite_ray.control.methods import METHODS, full_name
from hoplite_ray.control.view import Member, NodeKey, View, member_to_proto
from hoplite_ray.errors import ControlError, UnauthenticatedError

CALL_TIMEOUT_S = 5.0  # a view change is two round trips and one write to the GCS: milliseconds
WATCH_TIMEOUT_S = 30.0  # a watch is asked again after this, so that no stream outlives its reader

# No proxy: node addresses are the cluster's own. Quick redials: a node that starts answers soon.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


class UnreachableError(ControlError):
    """Nobody answered at that address in time."""


class ControlClient:
    """Calls any node by its control address. One event loop owns it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._links: dict[str, grpc.aio.Channel] = {}

    async def join(self, address: str, member: Member, *, passed_on: bool = False) -> View:
        """Ask for a view that has `member` in it."""
        request = pb.JoinRequest(member=member_to_proto(member), passed_on=passed_on)
        return await self._view(address, "Join", request)

    async def leave(self, address: str, key: NodeKey) -> View:
        """Ask for a view without this life of the node."""
        return await self._view(
            address, "Leave", pb.LeaveRequest(node_id=key[0], incarnation=key[1])
        )

    async def report_death(
        self, address: str, key: NodeKey, *, reporter: int, known_epoch: int
    ) -> View:
        """Say that this life of the node is over, as `reporter` has seen."""
        request = pb.DeathReport(
            node_id=key[0], incarnation=key[1], reporter=reporter, known_epoch=known_epoch
        )
        return await self._view(address, "ReportDeath", request)

    async def stats(self, address: str) -> dict[str, int]:
        """Read the counters of a node."""
        reply = cast(pb.StatsReply, await self._unary(address, "Stats", pb.StatsRequest()))
        return dict(reply.counters)

    async def watch(self, address: str, known_epoch: int) -> AsyncIterator[View]:
        """Yield every view newer than `known_epoch`, for at most WATCH_TIMEOUT_S."""
        request = pb.WatchRequest(known_epoch=known_epoch).SerializeToString()
        call = self._link(address).unary_stream(
            full_name("WatchView"), response_deserializer=pb.View.FromString
        )(request, timeout=WATCH_TIMEOUT_S, metadata=self._metadata("WatchView", request))
        try:
            async for message in call:
                yield View.from_proto(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise _as_ours(address, "WatchView", error) from None
        finally:
            call.cancel()

    async def is_healthy(self, address: str) -> bool:
        """Ask the standard health service."""
        stub = cast(Any, health_pb2_grpc.HealthStub)(self._link(address))
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Hang up everywhere."""
        for link in self._links.values():
            await link.close()
        self._links.clear()

    def _link(self, address: str) -> grpc.aio.Channel:
        if address not in self._links:
            self._links[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._links[address]

    def _metadata(self, method: str, request: bytes) -> tuple[tuple[str, str], ...]:
        return ((METADATA_KEY, proof(self._secret, method, request, now_s=time.time())),)

    async def _view(self, address: str, method: str, request: Message) -> View:
        return View.from_proto(cast(pb.View, await self._unary(address, method, request)))

    async def _unary(self, address: str, method: str, request: Message) -> Message:
        encoded = request.SerializeToString()
        call = self._link(address).unary_unary(
            full_name(method), response_deserializer=METHODS[method].reply.FromString
        )
        try:
            reply = await call(
                encoded, timeout=CALL_TIMEOUT_S, metadata=self._metadata(method, encoded)
            )
        except grpc.aio.AioRpcError as error:
            raise _as_ours(address, method, error) from None
        return cast(Message, reply)


def _as_ours(address: str, method: str, error: grpc.aio.AioRpcError) -> ControlError:
    text = f"{method} at {address}: {error.details()}"
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(text)
        case grpc.StatusCode.UNAUTHENTICATED:
            return RefusedError(text)
    return ControlError(text)


class RefusedError(ControlError, UnauthenticatedError):
    """The node at that address does not accept our proof."""
