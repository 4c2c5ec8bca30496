"""Edges of Serve whose values hold arrays on GPUs, over the library that stands in for NCCL."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import numpy as np
import pytest

from hoplite_ray.serve.edge.edge import Edge
from hoplite_ray.serve.errors import EdgeBrokenError
from tests.process.fake_gpu import fake, numbers, ready, stand_in_for_cupy
from tests.process.world_crew import Crew, Here, Member

pytestmark = pytest.mark.timeout(240)  # of three steps, each with a limit of its own


def ready_to_serve(gpus: Crew) -> list[Member]:
    """Two members of world w. What they import counts for no play."""
    ready(gpus, 2, "w")
    gpus.import_first(__name__)
    return gpus.members


class Ours:
    """A class that the other process can import."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


async def answers(here: Here, rank: int, size: int, name: str, dies_at: int) -> None:
    """A play: answer what is asked over the edge, and die in the middle of an answer."""
    stand_in_for_cupy()

    async def doubled(request: Any, notify_running: Any) -> Any:
        if request["number"] == dies_at:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
        for each in request["arrays"]:
            each.array[...] *= 2
        again = request["arrays"][::-1]
        return {"host": request["host"] + 1, "again": Ours(again), "first": again[0]}

    await Edge(here.worlds[name], doubled).wait_closed()


async def asks(here: Here, rank: int, size: int, name: str, dies_at: int) -> int:
    """A play: ask, several at once, and look at every answer; how many were right."""
    cupy = stand_in_for_cupy()
    edge = Edge(here.worlds[name], answers)
    host = np.arange(50_000)

    async def ask(number: int) -> int:
        before = [numbers(number, count) for count in (1_000_000 + number, 0, 7, 300_001)]
        before.append(np.arange(24, dtype=np.int64).reshape(4, 6)[:, ::2])
        before.append(np.array(number, np.float32))
        arrays = [cupy.ndarray(each.copy("A")) for each in before]
        answer = await edge.call({"number": number, "host": host, "arrays": arrays})
        assert np.array_equal(answer["host"], host + 1)
        assert answer["again"].inside[0] is answer["first"], "one array stays one"
        for given, back in zip(before, answer["again"].inside[::-1], strict=True):
            assert type(back) is cupy.ndarray and back.array.dtype == given.dtype
            assert np.array_equal(back.array, given * 2)
        return 1

    asked = await asyncio.gather(*(ask(number) for number in range(12)), return_exceptions=True)
    failed = [each for each in asked if not isinstance(each, int)]
    assert all(isinstance(each, EdgeBrokenError) for each in failed), failed
    if dies_at < 0:
        await edge.close()
    else:
        assert failed, "who dies answers nothing more"
        assert isinstance(
            (await asyncio.gather(ask(99), return_exceptions=True))[0], EdgeBrokenError
        )
    return len(asked) - len(failed)


async def launches(here: Here) -> int:
    return int(fake().fake_launched())


def test_arrays_in_values_go_from_gpu_to_gpu(gpus: Crew) -> None:
    asking, answering = ready_to_serve(gpus)
    asking.tell(asks, 0, 2, "w", -1)
    answering.tell(answers, 1, 2, "w", -1)
    assert asking.answer() == 12
    answering.answer()
    # Of each call five arrays that are not empty, there and back.
    assert asking.ask(launches) == 12 * 5 * 2


@pytest.mark.parametrize("dies_at", [0, 5])
def test_a_death_amid_arrays_fails_the_calls_that_are_open(gpus: Crew, dies_at: int) -> None:
    asking, answering = ready_to_serve(gpus)
    asking.tell(asks, 0, 2, "w", dies_at)
    answering.tell(answers, 1, 2, "w", dies_at)
    assert asking.answer() < 12


async def answers_without_cupy(here: Here, rank: int, size: int) -> None:
    """A play: nothing here can have what comes."""

    async def never(request: Any, notify_running: Any) -> None:
        raise AssertionError("it came")

    sys.modules["cupy"] = None  # type: ignore[assignment]
    try:
        await Edge(here.worlds["w"], never).wait_closed()
    finally:
        del sys.modules["cupy"]


async def asks_once(here: Here, rank: int, size: int) -> str:
    """A play: ask with an array; how that ended."""
    edge = Edge(here.worlds["w"], answers)
    try:
        await edge.call(stand_in_for_cupy().empty(1000, np.float32))
    except EdgeBrokenError as error:
        return str(error)
    return "it was answered"


def test_what_cannot_be_received_ends_the_edge_for_both(gpus: Crew) -> None:
    asking, answering = ready_to_serve(gpus)
    asking.tell(asks_once, 0, 2)
    answering.tell(answers_without_cupy, 1, 2)
    assert "what came by it can't be had: ModuleNotFoundError" in asking.answer()
    answering.answer()
