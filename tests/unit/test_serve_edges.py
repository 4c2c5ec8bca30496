"""What an edge makes of errors that can't go, and of memory that isn't there."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest

from hoplite_ray import WorldError
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.edge import Edge
from hoplite_ray.serve.edge.failures import attach_note, pack_failure
from hoplite_ray.serve.edge.frames import Message, unpack_frame
from hoplite_ray.serve.edge.protocol import BEGUN, CALL_ALONE, FAILURE
from hoplite_ray.serve.errors import EdgeBrokenError
from hoplite_ray.worlds.core.waiting import Turn, Waits


class TextError(Exception):
    def __reduce__(self) -> Any:
        return str, ("a text",)


class DumbError(Exception):
    def __str__(self) -> str:
        raise KeyError


def test_an_error_that_reads_as_something_else_goes_as_its_text() -> None:
    read = pack_failure(FAILURE, 1, attach_note(TextError("mine"), "in stage a")).value()
    assert type(read) is RuntimeError and str(read) == "TextError: mine"
    assert read.__notes__ == ["in stage a"]
    dumb = DumbError(threading.Lock())
    assert str(pack_failure(FAILURE, 1, dumb).value()) == "DumbError: <its text can't be had>"


class OwnError(Exception):
    """Says itself how it is pickled."""

    def __reduce__(self) -> Any:
        return OwnError, self.args


def test_an_error_with_a_reduce_of_its_own_keeps_its_notes() -> None:
    read = pack_failure(FAILURE, 1, attach_note(OwnError("mine"), "in stage a")).value()
    assert (type(read), read.args, read.__notes__) == (OwnError, ("mine",), ["in stage a"])
    again = pack_failure(FAILURE, 1, read).value()
    assert again.__notes__ == ["in stage a"], "over the next edge, too"


class Exits(Exception):
    def __reduce__(self) -> Any:
        sys.exit(3)


class _World:
    """Where messages go, and no memory to share is left; `lacks` of any kind."""

    rank, device = 0, None

    def __init__(self, *, lacks: bool) -> None:
        self.frames: list[Any] = []
        self.aborted = ""
        self._lacks = lacks
        self.messages = self

    def send(self, frame: Any, dst: int, timeout_s: float | None) -> Waits[None]:
        self.frames.append(frame)
        yield from ()

    def receive_by_callback(self, src: int, came: Any) -> Any:
        return lambda: None

    def alloc(self, size_bytes: int, dtype: Any) -> Any:
        raise MemoryError if self._lacks else WorldError("there is no memory to share")

    def abort(self, why: str) -> None:
        self.aborted = why


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges count what they send by Ray's metrics, and no Ray runs here."""
    monkeypatch.setattr(metrics, "count", lambda *_, **__: None)


async def no_handler(request: Any, notify_running: Any) -> None:
    raise AssertionError("nobody calls")


@pytest.mark.parametrize("lacks", [False, True])
def test_an_edge_without_memory_copies_or_breaks_and_never_hangs(lacks: bool) -> None:
    async def run() -> None:
        world = _World(lacks=lacks)
        edge = Edge(world, no_handler)  # type: ignore[arg-type]  # what is called of a World
        calls = [asyncio.create_task(edge.call(each)) for each in (np.zeros(1 << 20), 1, 2)]
        await asyncio.sleep(0.1)
        if lacks:
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, EdgeBrokenError) for each in ended), ended
            assert "MemoryError" in world.aborted
        else:
            assert len(world.frames) == 2, "the large one, and the others together"
            assert not edge.is_broken and not any(each.done() for each in calls)
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(run())


def test_an_answer_that_exits_when_it_is_packed_ends_no_loop() -> None:
    async def run() -> None:
        edge = Edge(_World(lacks=False), no_handler, "the answer")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"the answer can't be sent \(SystemExit: 3\)"):
            await edge.call(Exits())

    asyncio.run(run())
    assert str(pack_failure(FAILURE, 1, Exits("no")).value()) == "Exits: no"


@pytest.mark.parametrize("at_once", [True, False], ids=["an idle replica", "a busy one"])
def test_the_caller_knows_whether_its_call_runs_alone(at_once: bool) -> None:
    async def run() -> None:
        world = _World(lacks=False)
        begins: asyncio.Queue[Any] = asyncio.Queue()

        def told() -> list[bool]:
            read = [each for frame in world.frames for each in unpack_frame(frame)]
            return [each.value() for each in read if (each.kind, each.number) == (BEGUN, 7)]

        async def handled() -> None:
            await asyncio.Event().wait()

        def handler(request: Any, notify_running: Any) -> Any:
            assert told() == [True], "before it is read"
            begins.put_nowait(notify_running)
            if at_once:
                notify_running(True)
            return handled()

        edge = Edge(world, handler)  # type: ignore[arg-type]  # what is called of a World
        edge._handle_message(Message.pack(CALL_ALONE, 7, "query"))
        notify_running = await begins.get()
        await edge._outbox.has_sent.wait()
        assert told()[-1] is at_once
        await notify_running(True).wait()  # now, or again
        assert told()[-1] is True
        await notify_running(False).wait()
        assert told()[-1] is False
        for each in edge._answer_tasks.values():
            each.cancel()

    asyncio.run(run())


def test_calls_that_may_kill_are_read_one_by_one() -> None:
    """Over two edges: while one is read, the other's caller is not told that its call begins."""

    async def run() -> None:
        worlds = [_World(lacks=False), _World(lacks=False)]
        known: asyncio.Queue[list[bool]] = asyncio.Queue()  # by the callers, as each is read

        def last_told(world: _World) -> bool:
            read = [each for frame in world.frames for each in unpack_frame(frame)]
            return [False, *(each.value() for each in read if each.kind == BEGUN)][-1]

        async def handled() -> None:
            await asyncio.Event().wait()

        def handler(request: Any, notify_running: Any) -> Any:
            known.put_nowait([last_told(world) for world in worlds])
            return handled()

        reading = asyncio.Lock()
        edges = [
            Edge(world, handler, reading_lock=reading)  # type: ignore[arg-type]  # as above
            for world in worlds
        ]
        for edge in edges:
            edge._handle_message(Message.pack(CALL_ALONE, 7, "query"))
        assert [await known.get(), await known.get()] == [[True, False], [False, True]]
        for edge in edges:
            for each in edge._answer_tasks.values():
                each.cancel()

    asyncio.run(run())


def test_only_a_call_that_went_counts_as_a_death() -> None:
    """Case review_16."""

    class StuckWorld(_World):
        """Its first send never ends."""

        def send(self, frame: Any, dst: int, timeout_s: float | None) -> Waits[None]:
            yield from super().send(frame, dst, timeout_s)
            yield Turn(), None

    async def run() -> None:
        world = StuckWorld(lacks=False)
        edge = Edge(world, no_handler)  # type: ignore[arg-type]  # what is called of a World
        calls = []
        for request in (0, np.zeros(65 << 20, np.uint8), "waits for room"):
            calls.append(asyncio.create_task(edge.call(request)))
            await asyncio.sleep(0)
        assert len(world.frames) == 1 and edge.calls_open == 3
        edge._break("rank 1 has died")
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, EdgeBrokenError) for each in ended), ended
        assert [each.was_sent for each in ended] == [True, False, False]  # type: ignore[union-attr]

    asyncio.run(run())
