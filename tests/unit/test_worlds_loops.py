"""Verbs that block, in a thread whose event loop runs: they work where blocking can work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import WorldError
from hoplite_ray.worlds import State, WorldManager
from tests.unit.test_worlds_fake import crew, in_a_loop


def until(is_so: Callable[[], Any]) -> None:
    """Wait until another thread has come so far."""
    deadline_s = time.monotonic() + 30.0
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert is_so()


@in_a_loop
async def test_a_verb_works_in_a_loop_if_the_other_member_is_elsewhere() -> None:
    """As in a cell of a notebook."""
    async with crew(2) as made:
        first, second = made.worlds
        answers = asyncio.create_task(asyncio.to_thread(second.recv, src=0))
        await asyncio.sleep(0)
        first.send(np.arange(3), dst=1)
        assert (await answers).tolist() == [0, 1, 2]
        others = asyncio.create_task(asyncio.to_thread(second.all_reduce, np.ones(3)))
        await asyncio.sleep(0)
        assert first.all_reduce(np.ones(3), timeout_s=30.0).tolist() == [2.0] * 3
        await others


@in_a_loop
async def test_a_collective_behind_one_of_a_task_of_the_loop_names_its_twin() -> None:
    async with crew(2) as made:
        first, second = made.worlds
        waits = asyncio.create_task(first.barrier_async())
        await asyncio.sleep(0)
        with pytest.raises(WorldError, match=r"all_reduce would wait .*; await all_reduce_async"):
            first.all_reduce(np.ones(3))
        await second.barrier_async()
        await waits
        assert first.state is State.READY, "nothing of it had moved"
        both = (world.all_reduce_async(np.ones(3)) for world in made.worlds)
        assert [each.tolist() for each in await asyncio.gather(*both)] == [[2.0] * 3] * 2


@in_a_loop
async def test_a_collective_behind_one_of_a_thread_waits() -> None:
    async with crew(2) as made:
        first, second = made.worlds
        before = asyncio.create_task(asyncio.to_thread(first.barrier))
        await asyncio.to_thread(until, lambda: first.membership._turns)
        others = asyncio.create_task(
            asyncio.to_thread(lambda: (second.barrier(), second.all_reduce(np.ones(3))))
        )
        await asyncio.sleep(0)
        assert first.all_reduce(np.ones(3), timeout_s=30.0).tolist() == [2.0] * 3
        await asyncio.gather(before, others)


@in_a_loop
async def test_a_send_behind_one_of_a_task_of_the_loop_names_its_twin() -> None:
    async with crew(2) as made:
        first, second = made.worlds
        array = np.ones(3)
        with first.membership.sending.queued(1):  # as a task that waits until its gift has gone
            with pytest.raises(WorldError, match=r"send would wait .*; await send_async"):
                first.send(array, dst=1)
            beside = asyncio.create_task(asyncio.to_thread(first.send, array, dst=1))
            await asyncio.to_thread(until, lambda: first.membership.sending._last[1].before)
            with pytest.raises(WorldError, match="await send_async"):  # behind the thread's send
                first.send(array, dst=1)
        await beside
        assert (await second.recv_async(src=0)).tolist() == [1.0] * 3


class Inside:
    """A rendezvous whose calls come back to the manager that awaits them."""

    def __init__(self, manager: WorldManager) -> None:
        self.manager = manager
        self.errors: list[str] = []

    async def set(self, key: str, value: bytes) -> None:
        for call in (lambda: self.manager.join("w", rank=0, size=1), self.manager.close):
            try:
                call()
            except WorldError as error:
                self.errors.append(str(error))

    async def get(self, key: str) -> bytes | None:
        return None


def test_a_join_inside_of_the_thread_of_meetings_names_its_twin() -> None:
    with WorldManager(listen="127.0.0.1:0") as manager:
        inside = Inside(manager)
        manager.join("outer", rank=0, size=1, rendezvous=inside).leave()
        assert [each.rpartition("; ")[2] for each in inside.errors] == [
            "await join_async",
            "await close_async",
        ]
