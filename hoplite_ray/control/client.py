"""Calls to the control service of other nodes. Every call has a deadline and a proof."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import (
    CHALLENGE_KEY,
    METADATA_KEY,
    UNKNOWN_CLOCK,
    NodeClock,
    make_proof,
    read_challenge,
)
from hoplite_ray.control.methods import METHODS, full_name
from hoplite_ray.control.tls import Tls, advice, is_certificate_failure
from hoplite_ray.control.view import Member, NodeKey, View, member_to_proto
from hoplite_ray.control.voting import Vote, VoteRequest
from hoplite_ray.errors import ControlError, UnauthenticatedError

CALL_TIMEOUT_S = 5.0  # a view change is two round trips and one write to the GCS: milliseconds
_VOTE_S = 2.0  # a voter only writes down its answer; two rounds of it fit into CALL_TIMEOUT_S
_CONFIRM_S = 1.0  # a voter asks within the time that it has for its vote
KEEPALIVE_MS = 1000  # between two pings; every service must accept as many
_REPLY_S = 1.0  # for the way of an answer, when the node has used all of its own time limit
_SIGNATURES_MAX = 3  # of one call: its node may begin its next incarnation in between
WATCH_TIMEOUT_S = 30.0  # a watch is asked again after this, so that no stream outlives its reader

# No proxy: node addresses are the cluster's own. Quick redials: a node that starts answers soon.
# A cut cable ends no connection by itself: an idle one is asked every second whether it is there.
# gRPC's own threads answer, so a node that is only busy does; four seconds are for its machine.
_OPTIONS = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


_DIALLING = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


class UnreachableError(ControlError):
    """No process answered at that address in time."""

    silent_s = 0.0  # how long a connection was waited for


class NoQuorumError(ControlError):
    """Too few members answer to commit a new view."""


class OtherIncarnationError(ControlError):
    """Another node or incarnation answers at the address: the one that was asked has ended."""


class ControlClient:
    """Calls any node by its control address, with TLS where Ray's settings say so.

    One event loop owns it.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._tls = Tls.from_environment()
        self._links: dict[str, _Link] = {}
        self._close_tasks: set[asyncio.Task[None]] = set()

    async def join(self, address: str, member: Member, *, passed_on: bool = False) -> View:
        """Ask for a view that has `member` in it."""
        request = pb.JoinRequest(member=member_to_proto(member), passed_on=passed_on)
        return await self._call_for_view(address, "Join", request)

    async def leave(self, address: str, key: NodeKey) -> View:
        """Ask for a view without this incarnation of the node."""
        return await self._call_for_view(
            address, "Leave", pb.LeaveRequest(node_id=key[0], incarnation=key[1])
        )

    async def report_death(self, address: str, key: NodeKey, *, reporter: int) -> View:
        """Report that this incarnation of the node is over, as `reporter` has seen."""
        request = pb.DeathReport(node_id=key[0], incarnation=key[1], reporter=reporter)
        return await self._call_for_view(address, "ReportDeath", request)

    async def confirm_death(self, reporter: Member, key: NodeKey) -> bool:
        """Ask `reporter` itself whether this incarnation of a node is over."""
        request = pb.ConfirmRequest(node_id=key[0], incarnation=key[1])
        told = await self._unary(reporter.control, "Confirm", request, timeout_s=_CONFIRM_S)
        reply = cast(pb.Confirmation, told)
        return reply.confirmed and (reply.node_id, reply.incarnation) == reporter.key

    async def vote(self, voter: Member, request: VoteRequest) -> Vote:
        """Ask for the vote of this incarnation of the node.

        Raises:  AnotherLifeError if it has ended and another has its address.
        """
        encoded = request.to_proto(voter.key)
        reply = await self._unary(voter.control, "Vote", encoded, timeout_s=_VOTE_S)
        vote = cast(pb.VoteReply, reply)
        if (vote.node_id, vote.incarnation) != voter.key:
            raise OtherIncarnationError(
                f"node {vote.node_id:x}/{vote.incarnation} answers there now"
            )
        return Vote.from_proto(vote)

    async def has_ended(self, member: Member) -> bool:
        """Return True if the member's machine refuses connections: its process has ended.

        False proves nothing: the process may live, or its machine may be down or cut off.
        """
        address, _, port = member.control.rpartition(":")
        try:
            async with asyncio.timeout(_VOTE_S):
                _, writer = await asyncio.open_connection(address.strip("[]"), int(port))
        except ConnectionRefusedError:
            return True
        except OSError:  # and TimeoutError, which is one
            return False
        writer.close()
        return False

    async def stats(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, int]:
        """Read the counters of a node."""
        request = pb.StatsRequest()
        reply = await self._unary(address, "Stats", request, timeout_s=timeout_s)
        return dict(cast(pb.StatsReply, reply).counters)

    async def view(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> View:
        """Read the present view of a node."""
        async for view in self.watch(address, 0, timeout_s=timeout_s):
            return view
        raise UnreachableError(f"WatchView at {address}: no view within {timeout_s:g} s")

    async def describe(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> pb.Description:
        """Ask for the node's id, its options and its releases."""
        request = pb.DescribeRequest()
        reply = await self._unary(address, "Describe", request, timeout_s=timeout_s)
        return cast(pb.Description, reply)

    async def probe(self, address: str, *, timeout_s: float) -> list[pb.Probe]:
        """Have the node try all other members' addresses, for at most `timeout_s`."""
        request = pb.ProbeRequest(timeout_ms=int(timeout_s * 1000))
        reply = await self._unary(address, "Probe", request, timeout_s=timeout_s + _REPLY_S)
        return list(cast(pb.Probes, reply).probes)

    async def objects(
        self, address: str, *, limit: int, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[pb.Object]:
        """Read the `limit` largest objects of a node, largest first."""
        request = pb.ListObjectsRequest(limit=limit)
        pages = self._stream(address, "ListObjects", request, timeout_s)
        return [each async for page in pages for each in cast(pb.Objects, page).objects]

    async def find_objects(
        self, address: str, object_ids: Sequence[bytes], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[pb.Object]:
        """Read what a node knows of these objects, of one moment."""
        request = pb.ListObjectsRequest(limit=len(object_ids), object_ids=object_ids)
        pages = self._stream(address, "ListObjects", request, timeout_s)
        return [each async for page in pages for each in cast(pb.Objects, page).objects]

    async def transfers(
        self, address: str, *, limit: int, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[pb.Transfer]:
        """Read the `limit` largest stripes that come in to a node, largest first."""
        request = pb.ListTransfersRequest(limit=limit)
        pages = self._stream(address, "ListTransfers", request, timeout_s)
        return [each async for page in pages for each in cast(pb.Transfers, page).transfers]

    async def channels(
        self, address: str, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[pb.Channel]:
        """Read the version channels that a node knows, with their readers there."""
        pages = self._stream(address, "ListChannels", pb.ListChannelsRequest(), timeout_s)
        return [each async for page in pages for each in cast(pb.Channels, page).channels]

    async def trace(
        self, address: str, object_id: bytes, digits: int, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> pb.Traced:
        """Ask for the node's memory of the objects whose ids begin with these hex digits."""
        request = pb.TraceRequest(object_id=object_id, digits=digits)
        reply = await self._unary(address, "Trace", request, timeout_s=timeout_s)
        return cast(pb.Traced, reply)

    async def drain(self, address: str, key: NodeKey, *, timeout_s: float) -> pb.DrainReply:
        """Have this incarnation of the node move what it alone holds.

        Returns: when it has, or at `timeout_s`.
        """
        milliseconds = int(timeout_s * 1000)
        request = pb.DrainRequest(timeout_ms=milliseconds, node_id=key[0], incarnation=key[1])
        reply = await self._unary(address, "Drain", request, timeout_s=timeout_s + CALL_TIMEOUT_S)
        return cast(pb.DrainReply, reply)

    async def watch(
        self,
        address: str,
        known_epoch: int,
        *,
        timeout_s: float = WATCH_TIMEOUT_S,
        connect_s: float = WATCH_TIMEOUT_S,
    ) -> AsyncIterator[View]:
        """Yield every view newer than `known_epoch`, for at most `timeout_s`.

        Raises:  UnreachableError also if there is no connection within `connect_s` of that.
        """
        request = pb.WatchRequest(known_epoch=known_epoch)
        views = self._stream(address, "WatchView", request, timeout_s, connect_s=connect_s)
        try:
            async for message in views:
                yield View.from_proto(cast(pb.View, message))
        except _DeadlineError:
            return  # `timeout_s` is over

    async def is_healthy(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """Ask the standard health service."""
        with self._use_link(address, timeout_s) as link:
            stub = cast(Any, health_pb2_grpc.HealthStub)(link.channel)
            try:
                reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def keep_only(self, addresses: Collection[str]) -> None:
        """Close the links to all other addresses; a link with calls closes after its last call.

        A link takes some 20 KiB, and over months nodes come and go at ever new addresses.
        """
        for address, link in list(self._links.items()):
            link.is_kept = address in addresses
            self._close_unused(address, link)

    async def close(self) -> None:
        """Close all links."""
        for link in self._links.values():
            await link.channel.close()
        self._links.clear()
        await asyncio.gather(*self._close_tasks)

    @contextmanager
    def _use_link(self, address: str, connect_s: float) -> Iterator[_Link]:
        """Yield the link to `address` for one call, which waits at most `connect_s` for it."""
        link = self._links.get(address)
        if link is not None and link.connect_s < connect_s and not link.is_ready:
            self._drop_link(address, link)
            link = None
        if link is None:
            link = _Link(self._dial(address, connect_s), connect_s)
            self._links[address] = link
        link.calls += 1
        try:
            yield link
        finally:
            link.calls -= 1
            self._close_unused(address, link)

    async def _connect(self, link: _Link, address: str, method: str, limit_s: float) -> None:
        """Wait until the link is ready, or has failed: then the call raises the reason.

        Raises:  UnreachableError at the limit. The next call dials anew, because the kernel waits
                 longer and longer before it repeats a lost packet.
        """
        try:
            async with asyncio.timeout(limit_s):
                while (state := link.channel.get_state(try_to_connect=True)) in _DIALLING:
                    await link.channel.wait_for_state_change(state)
        except TimeoutError:
            self._drop_link(address, link)
            error = UnreachableError(
                f"{method} at {address}: no connection within {limit_s:.3g} s; look at its "
                "machine and the way to it, or wait longer if it is busy"
            )
            error.silent_s = limit_s
            raise error from None

    def _drop_link(self, address: str, link: _Link) -> None:
        """Have later calls dial anew; the link closes after its last call."""
        if self._links.get(address) is link:
            del self._links[address]
        link.is_kept = False
        self._close_unused(address, link)

    def _close_unused(self, address: str, link: _Link) -> None:
        if link.calls == 0 and not link.is_kept:
            if self._links.get(address) is link:
                del self._links[address]
            task = asyncio.get_running_loop().create_task(link.channel.close())
            self._close_tasks.add(task)
            task.add_done_callback(self._close_tasks.discard)

    def _dial(self, address: str, connect_s: float) -> grpc.aio.Channel:
        """Dial an address. gRPC's least backoff limits the connection and its handshake.

        The limit is a little longer than the callers' own waits. gRPC keeps a connection in its
        handshake until the limit, even when its channel is closed.
        """
        dial_ms = 1000 * (math.ceil(connect_s) + 1)
        options = (*_OPTIONS, ("grpc.min_reconnect_backoff_ms", dial_ms))
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        trust = self._tls.caller_credentials()
        return grpc.aio.secure_channel(address, trust, options=options)

    def _sign(self, link: _Link, method: str, request: bytes) -> str:
        now_s = time.monotonic()
        return make_proof(self._secret, method, request, clock=link.clock, now_s=now_s)

    def _take_challenge(self, link: _Link, signed: str, error: grpc.aio.AioRpcError) -> bool:
        """Take the node's clock from its challenge; return True if it has sent one."""
        for key, challenge in error.trailing_metadata() or ():
            if key == CHALLENGE_KEY:
                clock = read_challenge(self._secret, signed, challenge, now_s=time.monotonic())
                link.clock = clock or link.clock
                return clock is not None
        return False

    async def _call_for_view(self, address: str, method: str, request: Message) -> View:
        return View.from_proto(cast(pb.View, await self._unary(address, method, request)))

    async def _unary(
        self, address: str, method: str, request: Message, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Message:
        encoded = request.SerializeToString()
        ends_s = time.monotonic() + timeout_s
        with self._use_link(address, timeout_s) as link:
            await self._connect(link, address, method, timeout_s)
            call = link.channel.unary_unary(
                full_name(method), response_deserializer=METHODS[method].reply.FromString
            )
            for tries_left in reversed(range(_SIGNATURES_MAX)):
                signed = self._sign(link, method, encoded)
                left_s = max(0.0, ends_s - time.monotonic())
                try:
                    reply = await call(encoded, timeout=left_s, metadata=((METADATA_KEY, signed),))
                    return cast(Message, reply)
                except grpc.aio.AioRpcError as error:
                    if not (tries_left and self._take_challenge(link, signed, error)):
                        raise self._to_control_error(address, method, error) from None
        raise AssertionError("unreachable")

    async def _stream(
        self,
        address: str,
        method: str,
        request: Message,
        timeout_s: float,
        *,
        connect_s: float = math.inf,
    ) -> AsyncIterator[Message]:
        encoded = request.SerializeToString()
        ends_s = time.monotonic() + timeout_s
        connect_s = min(timeout_s, connect_s)
        with self._use_link(address, connect_s) as link:
            await self._connect(link, address, method, connect_s)
            stream = link.channel.unary_stream(
                full_name(method), response_deserializer=METHODS[method].reply.FromString
            )
            for tries_left in reversed(range(_SIGNATURES_MAX)):
                signed = self._sign(link, method, encoded)
                left_s = max(0.0, ends_s - time.monotonic())
                call = stream(encoded, timeout=left_s, metadata=((METADATA_KEY, signed),))
                try:
                    async for message in call:
                        yield message
                    return
                except grpc.aio.AioRpcError as error:
                    if not (tries_left and self._take_challenge(link, signed, error)):
                        raise self._to_control_error(address, method, error) from None
                finally:
                    call.cancel()

    def _to_control_error(
        self, address: str, method: str, error: grpc.aio.AioRpcError
    ) -> ControlError:
        details = error.details() or ""
        text = f"{method} at {address}: {details}"
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return _DeadlineError(text)
            case grpc.StatusCode.UNAVAILABLE:
                kind = RefusedError if is_certificate_failure(details) else UnreachableError
                return kind(text + advice(details, self._tls))
            case grpc.StatusCode.UNAUTHENTICATED:
                return RefusedError(text)
            case grpc.StatusCode.PERMISSION_DENIED:
                return UnlikeError(text)
            case grpc.StatusCode.ABORTED:
                return NoQuorumError(text)
        return ControlError(text)


@dataclass(slots=True)
class _Link:
    """A connection to one address, the clock of the node there, and the calls under way."""

    channel: grpc.aio.Channel
    connect_s: float  # how long it is dialled
    clock: NodeClock = UNKNOWN_CLOCK
    calls: int = 0
    is_kept: bool = True

    @property
    def is_ready(self) -> bool:
        """True if the connection is open."""
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.READY)


class _DeadlineError(UnreachableError):
    """The node did not answer in time, or a watch has reached its limit."""


class RefusedError(ControlError, UnauthenticatedError):
    """The node refuses this process's proof, or this process refuses the node's certificate."""


class UnlikeError(RefusedError):
    """One of the node and this process encrypts data, and the other does not."""
