"""The control service of one node: it checks proofs, makes calls, and maps errors."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import AsyncIterator
from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import CHALLENGE_KEY, METADATA_KEY, StaleProofError, Verifier
from hoplite_ray.control.client import KEEPALIVE_MS, NoQuorumError, UnlikeError
from hoplite_ray.control.methods import METHODS, SERVICE
from hoplite_ray.control.service.administration import Administration
from hoplite_ray.control.service.health import Health
from hoplite_ray.control.service.request_timeout import RequestTimeout
from hoplite_ray.control.tls import Tls
from hoplite_ray.control.view import NodeKey, member_from_proto
from hoplite_ray.control.views.membership import Membership
from hoplite_ray.control.voting import Vote, VoteRequest
from hoplite_ray.errors import ControlError, SystemFailureError, UnauthenticatedError

_CONCURRENT_CALLS_MAX = 4096  # four per member of the largest view (kViewMembersMax)
_CONNECTIONS_MAX = 2048  # two per member of the largest view
_GREETING_MS = 5000  # from the first byte to the last of TLS and HTTP/2, as on data connections
_IDLE_MS = 30_000  # without a call; then the connection closes, and gRPC makes a new one


class ControlService:
    """Answers the calls of control.proto and of the standard health service."""

    def __init__(self, *, secret: bytes, administration: Administration) -> None:
        self._verifier = Verifier(secret, now_s=time.monotonic())
        self._tls = Tls.from_environment()
        self._administration = administration
        self._voting_membership: Membership | None = None
        self._membership: Membership | None = None
        self._health = Health()
        # One port is one node's: without this, two processes may share it and split its calls.
        self._grpc = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
                ("grpc.max_allowed_incoming_connections", _connections_max()),
                ("grpc.server_handshake_timeout_ms", _GREETING_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ),
            interceptors=(RequestTimeout(),),
            maximum_concurrent_rpcs=_CONCURRENT_CALLS_MAX,
        )

    async def start(self, listen: str) -> str:
        """Listen on `listen` ("ip:port", port 0: any); return the address with its port.

        Raises:  SystemFailureError if the address can't be had.
        """
        handlers = {name: self._handler(name) for name in METHODS}
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        self._health.add_to(self._grpc)
        _check_free(listen)
        if self._tls is None:
            port = self._grpc.add_insecure_port(listen)
        else:
            port = self._grpc.add_secure_port(listen, self._tls.node_credentials())
        await self._grpc.start()
        return f"{listen.rpartition(':')[0]}:{port}"

    def let_vote(self, membership: Membership) -> None:
        """Let the member vote. A caller that asks for an earlier incarnation learns of this one."""
        self._voting_membership = membership

    def accept_calls(self, membership: Membership) -> None:
        """Answer all calls. Before this, calls other than votes get an error: ask again."""
        self._voting_membership = self._membership = membership
        self._health.open()

    def set_shortage(self, why: str) -> None:
        """Report why views can't be committed; "" if they can. New work may wait for a view."""
        self._health.set_shortage(why)

    def drain(self) -> None:
        """Drain this incarnation of the node, as an operator has asked an earlier one."""
        self._health.drain()
        self._administration.begin_drain()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and end the others after `grace_s`."""
        self._health.end()
        await self._grpc.stop(grace_s)

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        method = METHODS[name]
        encode = method.reply.SerializeToString
        act = getattr(self, f"_{name}")

        async def answer(encoded: bytes, context: grpc.aio.ServicerContext) -> Message:
            try:
                reply: Message = await act(self._verify(name, encoded, context))
            except ControlError as error:
                await _refuse(context, error)
            return reply

        async def stream_answers(
            encoded: bytes, context: grpc.aio.ServicerContext
        ) -> AsyncIterator[Message]:
            try:
                async for reply in act(self._verify(name, encoded, context)):
                    yield reply
            except ControlError as error:
                await _refuse(context, error)

        if method.streams:
            return grpc.unary_stream_rpc_method_handler(stream_answers, response_serializer=encode)
        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=encode)

    def _verify(self, name: str, encoded: bytes, context: grpc.aio.ServicerContext) -> Message:
        """Return the request once its proof holds."""
        metadata = dict(context.invocation_metadata() or ())
        given = metadata.get(METADATA_KEY)
        try:
            self._verifier.check(name, encoded, given, now_s=time.monotonic())
        except StaleProofError as error:
            raise _UnprovenError(str(error), challenge=error.challenge) from None
        except UnauthenticatedError as error:
            raise _UnprovenError(str(error)) from None
        try:
            return METHODS[name].request.FromString(encoded)
        except DecodeError as error:
            raise ControlError(f"{name}: the request can't be decoded: {error}") from None

    @property
    def _joined_membership(self) -> Membership:
        if self._membership is None:
            raise ControlError("this node has not joined yet; ask again")
        return self._membership

    async def _Join(self, request: pb.JoinRequest) -> pb.View:
        joiner = member_from_proto(request.member)
        view = await self._joined_membership.admit(joiner, passed_on=request.passed_on)
        return view.to_proto()

    async def _Leave(self, request: pb.LeaveRequest) -> pb.View:
        return (await self._joined_membership.dismiss(_key(request))).to_proto()

    async def _ReportDeath(self, request: pb.DeathReport) -> pb.View:
        view = await self._joined_membership.handle_death_report(
            _key(request), reporter=request.reporter
        )
        return view.to_proto()

    async def _Confirm(self, request: pb.ConfirmRequest) -> pb.Confirmation:
        membership = self._voting_membership or self._joined_membership
        node_id, incarnation = membership.own.key
        confirmed = membership.is_over(_key(request))
        return pb.Confirmation(node_id=node_id, incarnation=incarnation, confirmed=confirmed)

    async def _Vote(self, request: pb.VoteRequest) -> pb.VoteReply:
        membership = self._voting_membership or self._joined_membership
        own = membership.own.key
        if own != _key(request):
            return Vote().to_proto(own)
        return (await membership.vote(VoteRequest.from_proto(request))).to_proto(own)

    async def _WatchView(self, request: pb.WatchRequest) -> AsyncIterator[pb.View]:
        async for view in self._joined_membership.views(request.known_epoch):
            yield view.to_proto()

    async def _Stats(self, request: pb.StatsRequest) -> pb.StatsReply:
        node_id, incarnation = self._joined_membership.own.key
        counters = self._administration.counters()
        counters["has_quorum"] = int(not self._joined_membership.shortage)
        return pb.StatsReply(node_id=node_id, incarnation=incarnation, counters=counters)

    async def _Describe(self, request: pb.DescribeRequest) -> pb.Description:
        description = self._administration.describe(self._joined_membership.own)
        description.shortage = self._joined_membership.shortage
        return description

    async def _Probe(self, request: pb.ProbeRequest) -> pb.Probes:
        own, members = self._joined_membership.own, self._joined_membership.view.members
        others = [member for member in members if member != own]
        return await self._administration.probe(others, request.timeout_ms / 1000)

    async def _ListObjects(self, request: pb.ListObjectsRequest) -> AsyncIterator[pb.Objects]:
        async for page in self._administration.objects(request.limit, request.object_ids):
            yield page

    async def _ListTransfers(self, request: pb.ListTransfersRequest) -> AsyncIterator[pb.Transfers]:
        async for page in self._administration.transfers(request.limit):
            yield page

    async def _ListChannels(self, request: pb.ListChannelsRequest) -> AsyncIterator[pb.Channels]:
        async for page in self._administration.channels():
            yield page

    async def _Trace(self, request: pb.TraceRequest) -> pb.Traced:
        return await self._administration.trace(request.object_id, request.digits)

    async def _Drain(self, request: pb.DrainRequest) -> pb.DrainReply:
        own, asked = self._joined_membership.own.key, _key(request)
        if asked != own:
            raise ControlError(
                f"Drain is for node {asked[0]:x}/{asked[1]}, and {own[0]:x}/{own[1]} answers here; "
                "look who is there, and ask again"
            )
        self.drain()
        return await self._administration.drain(request.timeout_ms / 1000)


def _connections_max() -> int:
    """Leave half of the descriptors to clients and data, even when this port is flooded."""
    return min(_CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _check_free(listen: str) -> None:
    """Raise the kernel's reason if an address can't be had: gRPC writes it to its log only."""
    address, _, port = listen.rpartition(":")
    try:
        [(family, kind, protocol, _, name), *_] = socket.getaddrinfo(
            address.strip("[]"), int(port), type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(name)
    except OSError as error:
        raise SystemFailureError(
            f"can't listen on {listen} for control calls ({error.strerror}); "
            "choose another --control address, or port 0"
        ) from None


class _UnprovenError(ControlError):
    def __init__(self, message: str, *, challenge: str | None = None) -> None:
        super().__init__(message)
        self.answer = () if challenge is None else ((CHALLENGE_KEY, challenge),)


_Keyed = pb.LeaveRequest | pb.DeathReport | pb.ConfirmRequest | pb.VoteRequest | pb.DrainRequest


def _key(request: _Keyed) -> NodeKey:
    return (request.node_id, request.incarnation)


async def _refuse(context: grpc.aio.ServicerContext, error: ControlError) -> NoReturn:
    code = grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, _UnprovenError):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error), error.answer)
    if isinstance(error, UnlikeError):
        code = grpc.StatusCode.PERMISSION_DENIED
    elif isinstance(error, NoQuorumError):
        code = grpc.StatusCode.ABORTED
    await context.abort(code, str(error))
    raise AssertionError("abort() always raises")
