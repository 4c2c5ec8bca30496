"""`with` and `async with`: a world is left at the end of the block, however that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from hoplite_ray.worlds import State, World, WorldBrokenError, WorldTimeoutError
from hoplite_ray.worlds import world as world_module
from tests.unit.test_worlds_fake import crew, in_a_loop

Body = Callable[[], Coroutine[Any, Any, None]]


async def nothing() -> None:
    """A body that has nothing to do."""


async def by_async_with(world: World, body: Body) -> None:
    async with world as entered:
        assert entered is world
        await body()


async def by_with(world: World, body: Body) -> None:
    """In a thread of its own, as a program without an event loop."""

    def run() -> None:
        with world as entered:
            assert entered is world
            asyncio.run(body())

    await asyncio.to_thread(run)


WAYS = pytest.mark.parametrize("enter", [by_with, by_async_with])
Enter = Callable[[World, Body], Coroutine[Any, Any, None]]


@WAYS
@in_a_loop
async def test_the_end_of_the_block_leaves_and_what_was_sent_arrives(enter: Enter) -> None:
    async with crew(2) as made:
        first, second = made.worlds

        async def send() -> None:
            await first.send_async(np.arange(5.0), dst=1)

        await enter(first, send)
        assert first.state is State.CLOSED
        assert (await second.recv_async(src=0)).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        await second.leave_async()
        assert second.state is State.CLOSED, "the end of the block is no death"


@WAYS
@in_a_loop
async def test_the_error_of_a_body_is_raised_once_the_world_is_left(enter: Enter) -> None:
    async with crew(2) as made:
        first, second = made.worlds

        async def fail() -> None:
            await first.send_async(np.ones(3), dst=1)
            raise KeyError("of the body")

        with pytest.raises(KeyError, match="of the body"):
            await enter(first, fail)
        assert first.state is State.CLOSED
        assert (await second.recv_async(src=0)).tolist() == [1.0] * 3


@WAYS
@in_a_loop
async def test_an_error_of_leaving_does_not_hide_that_of_the_body(enter: Enter) -> None:
    async with crew(2) as made:
        first, second = made.worlds

        async def fail() -> None:
            second.abort("enough")
            with pytest.raises(WorldBrokenError):
                await first.recv_async(src=1)
            raise KeyError("of the body")

        with pytest.raises(KeyError, match="of the body"):
            await enter(first, fail)


@WAYS
@in_a_loop
async def test_a_body_that_ends_in_a_broken_world_is_told(enter: Enter) -> None:
    async with crew(2) as made:
        first, second = made.worlds

        async def break_it() -> None:
            second.abort("enough")

        with pytest.raises(WorldBrokenError, match="enough"):
            await enter(first, break_it)


@WAYS
@in_a_loop
async def test_a_receiver_that_takes_nothing_ends_the_block_in_time(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_module.World.leave_async, "__kwdefaults__", {"timeout_s": 0.05})
    monkeypatch.setattr(world_module.World.leave, "__kwdefaults__", {"timeout_s": 0.05})
    async with crew(2) as made:
        first = made.worlds[0]
        made.hold()

        async def send() -> None:
            with pytest.raises(WorldTimeoutError):  # what had begun to go still goes
                await first.send_async(np.ones(1 << 20), dst=1, timeout_s=0.01)

        with pytest.raises(WorldTimeoutError, match="not all that was sent was taken"):
            await enter(first, send)
        made.release()


@WAYS
@in_a_loop
async def test_a_receive_that_another_task_waits_in_raises(enter: Enter) -> None:
    async with crew(2) as made:
        first = made.worlds[0]
        waits = asyncio.create_task(first.recv_async(src=1))
        await asyncio.sleep(0)
        await enter(first, nothing)
        with pytest.raises(WorldBrokenError, match="was left"):
            await waits


@WAYS
@in_a_loop
async def test_a_body_may_leave_by_itself(enter: Enter) -> None:
    async with crew(2) as made:
        first = made.worlds[0]
        await enter(first, first.leave_async)
        assert first.state is State.CLOSED


@in_a_loop
async def test_a_body_that_is_cancelled_leaves() -> None:
    async with crew(2) as made:
        first, second = made.worlds

        async def wait() -> None:
            await first.recv_async(src=1)

        waits = asyncio.create_task(by_async_with(first, wait))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert first.state is State.CLOSED
        await second.leave_async()
