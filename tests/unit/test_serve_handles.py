"""Handles inside of values go beside a message, and its receiver asks for them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge import edge as edges_module
from hoplite_ray.serve.edge import handles
from hoplite_ray.serve.edge.edge import Edge
from hoplite_ray.serve.edge.frames import Message, Packed, pack_frame, unpack_frame
from hoplite_ray.serve.edge.handles import Lender
from hoplite_ray.serve.errors import EdgeBrokenError


class Ticket:
    """Stands for an ObjectRef: what pickles it by itself loses its owner."""

    def __reduce__(self) -> Any:
        raise AssertionError("it was pickled")


class World:
    """A world of two in one loop; frames reach the other side in a later turn."""

    device = None

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.peer: World | None = None
        self.is_lost = False
        self._frames: list[Any] = []
        self._handle_arrival: Any = None
        self.messages = self

    def send(self, frame: Any, dst: int, timeout_s: float | None) -> Iterator[Any]:
        assert self.peer is not None
        asyncio.get_running_loop().call_soon(self.peer._take, frame.copy())
        yield from ()

    def receive_by_callback(self, src: int, came: Any) -> Any:
        self._handle_arrival = came
        self._deliver()
        return lambda: self._frames.pop(0)

    def alloc(self, size_bytes: int, dtype: Any) -> Any:
        return np.empty(size_bytes, dtype)

    def abort(self, why: str) -> None:
        self.is_lost = True

    def _take(self, frame: Any) -> None:
        self._frames.append(frame)
        self._deliver()

    def _deliver(self) -> None:
        if self._frames and self._handle_arrival is not None:
            came, self._handle_arrival = self._handle_arrival, None
            asyncio.get_running_loop().call_soon(came)


class Actor:
    """This process as an actor, which is asked by a call of Ray."""

    asked = 0

    @property
    def __ray_call__(self) -> Any:
        return self

    def remote(self, function: Any, *args: Any) -> Any:
        Actor.asked += 1
        return SimpleNamespace(future=lambda: _call_user(function, *args))


def _call_user(function: Any, *args: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    try:
        future.set_result(function(None, *args))
    except Exception as error:
        future.set_exception(error)
    return future


@pytest.fixture(autouse=True)
def tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets are handles, and this process is an actor."""
    monkeypatch.setattr(metrics, "count", lambda *_, **__: None)
    monkeypatch.setattr(handles, "KINDS", (*handles.KINDS, Ticket))
    context = SimpleNamespace(current_actor=Actor())
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


@pytest.mark.parametrize("extra", [None, lambda: 7], ids=["by reference", "by value"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["a value", "an answer"])
def test_a_message_leaves_handles_out_and_has_them_in_their_places(
    extra: Any, is_packed: bool
) -> None:
    tickets = [Ticket(), Ticket()]
    value = {"a": tickets[0], "b": [tickets[1], tickets[0]], "array": np.arange(9), "extra": extra}
    message = Message.pack(0, 0, Packed(value) if is_packed else value)
    assert list(message.handles) == tickets
    message.set_lender(b"by whom")
    (came,) = unpack_frame(pack_frame([message], lambda size_bytes: np.empty(size_bytes, np.uint8)))
    assert bytes(came.lender or b"") == b"by whom"
    came.handles = tickets
    read = came.value()
    assert read["a"] is tickets[0] and read["b"] == tickets[::-1]
    np.testing.assert_array_equal(read["array"], np.arange(9))


def two_edges(handler: Any) -> tuple[Edge, Edge]:
    """Return an edge's ends: the caller's, and that of the replica with the `handler`."""
    up, down = World(0), World(1)
    up.peer, down.peer = down, up
    ends = [Edge(world, handler, "the query") for world in (up, down)]  # type: ignore[arg-type]
    return ends[0], ends[1]


def test_calls_and_answers_have_the_handles_themselves_and_nothing_is_kept_after() -> None:
    ticket, other = Ticket(), Ticket()

    async def answer(request: Any, notify_running: Any) -> Any:
        assert request["ticket"] is ticket
        return [other]

    async def run() -> None:
        upstream, downstream = two_edges(answer)
        for alone in (False, True):
            assert (await upstream.call({"ticket": ticket}, alone=alone))[0] is other
        assert not upstream._lender._kept and not downstream._lender._kept

    asyncio.run(run())


def test_an_error_with_a_handle_arrives_as_itself() -> None:
    ticket = Ticket()

    async def answer(request: Any, notify_running: Any) -> Any:
        raise KeyError(ticket)

    async def run() -> None:
        upstream, _ = two_edges(answer)
        with pytest.raises(KeyError) as raised:
            await upstream.call(1)
        assert raised.value.args[0] is ticket

    asyncio.run(run())


def test_an_answer_whose_lender_is_gone_goes_to_another_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(message: Message) -> Any:
        raise ray.exceptions.RayActorError

    async def answer(request: Any, notify_running: Any) -> Any:
        return [Ticket()]

    async def run() -> None:
        upstream, _ = two_edges(answer)
        monkeypatch.setattr(edges_module, "borrow", lost)
        with pytest.raises(EdgeBrokenError, match="the refs in a reply can't be had"):
            await upstream.call(1)

    asyncio.run(run())


def test_a_lender_lets_go_at_the_end_of_a_call_and_of_its_edge() -> None:
    lender = Lender()
    messages = [lender.lend(Message.pack(0, 0, Ticket())) for _ in range(3)]
    assert len(lender._kept) == 3
    lender.release(messages[0])
    assert len(lender._kept) == 2
    lender.close()
    assert not lender._kept
    identity = lender._id
    del lender
    gc.collect()
    assert identity not in handles._lenders


def test_what_is_no_handle_and_can_not_be_pickled_is_refused_with_its_name() -> None:
    async def run() -> None:
        upstream, _ = two_edges(None)
        with pytest.raises(TypeError, match=r"the query can't be sent \(TypeError: .*lock"):
            await upstream.call([Ticket(), threading.Lock()])
        assert not upstream._lender._kept

    asyncio.run(run())
