"""The control service of one node that has no others: health, and what no bytes may bring down."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray import _native
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import METADATA_KEY, NodeClock
from hoplite_ray.control.client import (
    ControlClient,
    NoQuorumError,
    OtherIncarnationError,
    RefusedError,
    UnlikeError,
)
from hoplite_ray.control.methods import METHODS, SERVICE, full_name
from hoplite_ray.control.service import health
from hoplite_ray.control.service.administration import Administration
from hoplite_ray.control.service.control_service import ControlService
from hoplite_ray.control.service.health import PLACEMENT
from hoplite_ray.control.view import Member, View
from hoplite_ray.control.views.membership import Membership
from hoplite_ray.control.voting import Ballot, VoteRequest
from hoplite_ray.errors import ControlError
from tests.signed import clock_of, signed_at

T = TypeVar("T")

SECRET = b"0123456789abcdef"
ARENA_BYTES = 1 << 20
SERVING, NOT_SERVING, SERVICE_UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)

# What a caller who is wrong may be told. UNKNOWN and INTERNAL would be faults of the service.
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Node:
    """A service with a native node behind it, in this process, and a loop that both live on."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner()
        self.native = _native.NativeNode(
            node_id=7,
            incarnation=1,
            socket_path=str(directory / "node.sock"),
            listen=["127.0.0.1:0"],
            arena_bytes=ARENA_BYTES,
            secret=SECRET,
            options={},
        )
        self.native.start()
        self.do(self._start(directory))

    async def _start(self, directory: Path) -> None:
        self.calls = ControlClient(SECRET)
        administration = Administration(
            self.native,
            directory=directory,
            arena_bytes=ARENA_BYTES,
            options={"trace": 0},
            calls=self.calls,
        )
        self.service = ControlService(secret=SECRET, administration=administration)
        self.address = await self.service.start("127.0.0.1:0")
        self.link = grpc.aio.insecure_channel(self.address)
        self.clock: NodeClock | None = None
        self.health: Any = health_pb2_grpc.HealthStub(self.link)

    async def introduce(self) -> Membership:
        own = Member(7, 1, self.address, tuple(self.native.rails()))
        membership = Membership(
            own,
            calls=self.calls,
            on_view=lambda view: None,
            on_shortage=self.service.set_shortage,
        )
        self.service.let_vote(membership)
        return membership

    async def join(self) -> Membership:
        membership = await self.introduce()
        await membership.join()
        self.service.accept_calls(membership)
        return membership

    async def check(self, name: str = "") -> Any:
        return (await self.health.Check(health_pb2.HealthCheckRequest(service=name))).status

    async def call(self, method: str, request: bytes, *metadata: tuple[str, Any]) -> Any:
        """Make one call with these bytes; returns the status that it ended with."""
        limit_s = 10.0 if metadata else 0.2  # a watch that is let in lasts until then
        if not metadata:
            self.clock = self.clock or await clock_of(self.link, SECRET)
            signed = signed_at(self.clock, SECRET, method, request, late_s=0.0)
            metadata = ((METADATA_KEY, signed),)
        if METHODS[method].streams:
            call = self.link.unary_stream(full_name(method))(
                request, timeout=limit_s, metadata=metadata
            )
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
        else:
            call = self.link.unary_unary(full_name(method))(request, timeout=2.0, metadata=metadata)
            with suppress(grpc.aio.AioRpcError):
                await call
        return await call.code()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def end(self) -> None:
        async def end() -> None:
            await self.link.close()
            await self.calls.close()
            await self.service.stop(0.1)

        self.do(end())
        self.native.stop()
        self._runner.close()


@pytest.fixture
def alone() -> Iterator[Node]:
    """A node that has not joined."""
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory))
        yield node
        node.end()


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    """A node that has, shared by tests whose calls all fail."""
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory))
        node.do(node.join())
        yield node
        node.end()


def test_health_from_before_the_join_to_the_end(alone: Node) -> None:
    async def walk() -> list[Any]:
        watch = alone.health.Watch(health_pb2.HealthCheckRequest())
        seen = [(await watch.read()).status]
        await alone.join()
        seen.append((await watch.read()).status)
        last = asyncio.ensure_future(watch.read())
        await alone.service.stop(1.0)
        seen.append((await last).status)
        assert await watch.read() is grpc.aio.EOF
        return seen

    assert alone.do(walk()) == [NOT_SERVING, SERVING, NOT_SERVING]


def test_every_name_is_listed_and_a_draining_node_still_serves_reads(alone: Node) -> None:
    async def walk() -> None:
        await alone.join()
        assert [await alone.check(name) for name in ("", SERVICE, PLACEMENT)] == [SERVING] * 3
        placement = alone.health.Watch(health_pb2.HealthCheckRequest(service=PLACEMENT))
        assert (await placement.read()).status == SERVING
        alone.service.drain()
        alone.service.drain()
        assert (await placement.read()).status == NOT_SERVING
        listed = await alone.health.List(health_pb2.HealthListRequest())
        assert {name: each.status for name, each in listed.statuses.items()} == {
            "": SERVING,
            SERVICE: SERVING,
            PLACEMENT: NOT_SERVING,
        }
        placement.cancel()

    alone.do(walk())


def test_a_node_in_a_minority_says_so(alone: Node) -> None:
    async def walk() -> None:
        membership = await alone.join()
        control = "127.0.0.1:1"  # nobody listens there, but others are members too
        others = [Member(id_, 1, control, (control,)) for id_ in (8, 9)]
        for other in others:
            await alone.calls.join(alone.address, other)
            await alone.calls.join(alone.address, other)  # asked again: nothing to do
        assert (await alone.calls.describe(alone.address)).shortage == ""
        membership.mark_dead(others[0].key)
        with pytest.raises(NoQuorumError, match="only 1 of the 3 members of view 3"):
            await alone.calls.join(alone.address, Member(10, 1, control, (control,)))
        assert "only 1 of the 3" in (await alone.calls.describe(alone.address)).shortage
        assert (await alone.calls.stats(alone.address))["has_quorum"] == 0
        assert [await alone.check(""), await alone.check(PLACEMENT)] == [SERVING, NOT_SERVING]

    alone.do(walk())


def test_a_joiner_that_could_never_be_met_is_refused_for_good(alone: Node) -> None:
    async def walk() -> None:
        await alone.introduce()
        await alone.join()
        with pytest.raises(UnlikeError, match="give all nodes the same data_tls"):
            await alone.calls.join(
                alone.address, Member(8, 1, "127.0.0.1:1", ("127.0.0.1:1",), data_tls=True)
            )

    alone.do(walk())


def test_a_joiner_may_ask_again_where_only_who_passes_it_on_is_refused(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def walk() -> None:
        membership = await alone.join()

        async def refused(joiner: Member, *, passed_on: bool) -> View:
            raise RefusedError("Join at the oldest: the proof is of another time")

        monkeypatch.setattr(membership, "admit", refused)
        joiner = Member(8, 1, "127.0.0.1:1", ("127.0.0.1:1",))
        with pytest.raises(ControlError, match="of another time") as raised:
            await alone.calls.join(alone.address, joiner)
        assert not isinstance(raised.value, RefusedError)

    alone.do(walk())


def test_whoever_asks_for_an_earlier_life_learns_of_this_one(alone: Node) -> None:
    async def walk() -> None:
        earlier = Member(7, 3, alone.address, (alone.address,))
        request = VoteRequest(View(4, (earlier,)), Ballot(1, 7))
        with pytest.raises(ControlError, match="has not joined yet"):
            await alone.calls.vote(earlier, request)
        await alone.introduce()  # it need not be a member for that
        with pytest.raises(OtherIncarnationError, match="node 7/1 answers there now"):
            await alone.calls.vote(earlier, request)
        assert not await alone.calls.has_ended(earlier)
        assert await alone.calls.has_ended(Member(7, 2, "127.0.0.1:1", ("127.0.0.1:1",)))

    alone.do(walk())


def test_a_link_to_who_is_gone_ends_with_its_last_call(alone: Node) -> None:
    async def walk() -> None:
        await alone.join()
        calls, watch = alone.calls, alone.calls.watch(alone.address, 0)
        assert (await anext(watch)).epoch == 1
        calls.keep_only({alone.address})
        await calls.describe(alone.address)
        calls.keep_only({"192.0.2.1:1"})
        await calls.describe(alone.address)
        assert len(calls._links) == 1  # for the watch, which goes on
        await watch.aclose()
        async with asyncio.timeout(5.0):
            while calls._links or calls._close_tasks:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.001)
        assert (await calls.describe(alone.address)).node_id == 7  # as on the first day
        calls.keep_only(())
        assert not calls._links

    alone.do(walk())


def test_a_name_that_is_not_there(shared: Node) -> None:
    async def walk() -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="there are ''") as refused:
            await shared.check("nothing")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watch = shared.health.Watch(health_pb2.HealthCheckRequest(service="nothing"))
        assert (await watch.read()).status == SERVICE_UNKNOWN
        watch.cancel()

    shared.do(walk())


def test_strangers_who_watch_leave_room_for_others(alone: Node) -> None:
    async def walk() -> None:
        await alone.join()
        request = health_pb2.HealthCheckRequest()
        watches = [alone.health.Watch(request) for _ in range(health._WATCHERS_MAX)]
        await asyncio.gather(*(watch.read() for watch in watches))
        one_more = alone.health.Watch(request)
        with pytest.raises(grpc.aio.AioRpcError, match="watch this node's health already"):
            await one_more.read()
        assert await alone.check() == SERVING
        assert (await alone.calls.describe(alone.address)).node_id == 7
        for watch in watches:
            watch.cancel()

    alone.do(walk())


def test_a_call_before_the_join_is_told_to_come_again(alone: Node) -> None:
    async def walk() -> None:
        for call in (
            alone.calls.describe(alone.address),
            alone.calls.drain(alone.address, (7, 1), timeout_s=1.0),
            alone.calls.view(alone.address),
        ):
            with pytest.raises(ControlError, match="has not joined yet; ask again"):
                await call

    alone.do(walk())


def test_it_describes_itself(shared: Node) -> None:
    before_s = time.time()
    told = shared.do(shared.calls.describe(shared.address))
    assert before_s <= told.clock_s <= time.time()
    assert (told.node_id, told.incarnation, told.arena_bytes) == (7, 1, ARENA_BYTES)
    assert (told.wire_version, dict(told.options)) == (_native.WIRE_VERSION, {"trace": 0})


texts = st.text(max_size=40)
numbers = st.integers(0, 2**64 - 1)
hostile = st.one_of(
    st.binary(max_size=200),
    st.builds(
        pb.JoinRequest,
        member=st.builds(
            pb.Member,
            node_id=numbers,
            incarnation=st.integers(0, 2**32 - 1),
            control=texts,
            rails=st.lists(texts, max_size=10),
        ),
        passed_on=st.booleans(),
    ).map(lambda message: message.SerializeToString()),
    st.builds(pb.DeathReport, node_id=numbers, incarnation=st.just(9), reporter=numbers).map(
        lambda message: message.SerializeToString()
    ),
    st.builds(
        pb.VoteRequest,
        node_id=st.just(7),
        incarnation=st.just(1),
        base=st.builds(pb.View, epoch=numbers),
        ballot=st.builds(pb.Ballot, round=numbers, node_id=numbers),
        proposal=st.none() | st.builds(pb.View, epoch=numbers),
    ).map(lambda message: message.SerializeToString()),
    st.builds(
        pb.ListObjectsRequest,
        limit=st.integers(0, 2**32 - 1),
        object_ids=st.lists(st.binary(max_size=30), max_size=3),
    ).map(lambda message: message.SerializeToString()),
)


@pytest.mark.timeout(60)  # 300 requests, and watches that are let in last until their limit
@settings(max_examples=300)
@given(method=st.sampled_from(sorted(METHODS)), request=hostile)
def test_no_request_of_a_member_brings_the_service_down(
    shared: Node, method: str, request: bytes
) -> None:
    assert shared.do(shared.call(method, request)) in ANSWERS
    assert shared.do(shared.check()) == SERVING


proofs = st.one_of(
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200),
    st.builds("{}:{}:{}".format, st.floats(), st.just("00"), st.just("ab" * 32)),
    st.builds("00:{}:{}:{}".format, st.floats(), st.just("00"), st.just("ab" * 32)),
)


@settings(max_examples=200)
@given(
    method=st.sampled_from(sorted(METHODS)),
    given_proof=proofs,
    extra=st.binary(max_size=100),
    request=st.binary(max_size=50),
)
def test_no_metadata_of_a_stranger_is_taken(
    shared: Node, method: str, given_proof: str, extra: bytes, request: bytes
) -> None:
    metadata = ((METADATA_KEY, given_proof), ("extra-bin", extra), (METADATA_KEY, given_proof))
    code = shared.do(shared.call(method, request, *metadata))
    assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "bytes_sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)), b"\0" * 9],
    ids=["another protocol", "a preface and noise", "zeros"],
)
def test_bytes_that_are_no_call_end_their_own_connection_only(
    shared: Node, bytes_sent: bytes
) -> None:
    address, _, port = shared.address.rpartition(":")
    with socket.create_connection((address, int(port))) as stranger:
        stranger.sendall(bytes_sent)
        assert shared.do(shared.check()) == SERVING
