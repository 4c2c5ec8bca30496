"""Time limits and cancelled tasks: what is taken back, what that costs, and who hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from tests.process.world_crew import Crew, Here, free_address, join

TRANSPORTS = ("tcp", "shared_memory")
SOON_S = 0.05
BIG = 3_000_000  # float64: more than is in flight before the peer receives


async def expect_timeout(awaited: Any, words: str) -> None:
    with pytest.raises(worlds.WorldTimeoutError, match=words):
        await awaited


async def time_out_first(here: Here, rank: int, size: int) -> None:
    """A play: rank 1 waits too short, in every way; then all is as if it had not."""
    world = here.worlds["w"]
    if rank == 1:
        into = np.zeros(4)
        await expect_timeout(world.recv_async(src=0, timeout_s=SOON_S), "stays usable")
        await expect_timeout(world.recv_async(into, src=0, timeout_s=0.0), "stays usable")
        with pytest.raises(worlds.WorldTimeoutError):
            world.recv(into, src=0, timeout_s=SOON_S)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(world.recv_async(into, src=0), SOON_S)
        await expect_timeout(
            world.broadcast_async(into, src=0, timeout_s=SOON_S), "nothing of it had"
        )
        assert world.state is worlds.State.READY
        await world.send_async(np.zeros(1), dst=0)
    else:
        await world.recv_async(src=1)
    array = np.full(4, 7.0 * (rank == 0))
    await world.broadcast_async(array, src=0)
    assert array[0] == 7.0
    if rank == 0:
        await world.send_async(np.full(4, 8.0), dst=1)
    else:
        assert (await world.recv_async(src=0))[0] == 8.0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_was_taken_back_leaves_nothing_behind(crew: Crew, transport: str) -> None:
    crew.muster(2)
    address = free_address()
    crew.together(join_by, "w", address, transport)
    crew.together(time_out_first)


async def look_for_a_message(here: Here, rank: int, size: int) -> None:
    """A play: rank 1 takes by a limit of 0 what has come, awaiting and blocking."""
    world = here.worlds["w"]
    if rank == 0:
        for number in range(2):
            await world.send_async(np.full(4, number), dst=1)
        return
    for number in range(2):
        while True:  # ends at the runner's limit
            try:
                if number == 0:
                    message = await world.recv_async(src=0, timeout_s=0)
                else:
                    message = world.recv(src=0, timeout_s=0)
                break
            except worlds.WorldTimeoutError:
                await asyncio.sleep(0.001)
        assert message[0] == number


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_limit_of_0_takes_what_has_come(crew: Crew, transport: str) -> None:
    crew.muster(2)
    address = free_address()
    crew.together(join_by, "w", address, transport)
    crew.together(look_for_a_message)


async def join_by(
    here: Here, rank: int, size: int, name: str, address: str, transport: str
) -> None:
    await join(here, rank, size, name, address, transport=transport)


async def take_back_a_send(here: Here, rank: int, size: int) -> None:
    """A play: a send whose beginning is under way is taken back; its array may be written to."""
    world, other = here.worlds["w"], here.worlds["other"]
    if rank == 0:
        array = np.full(BIG, 3.0)
        await expect_timeout(world.send_async(array, dst=1, timeout_s=SOON_S), "still arrives")
        array[:] = 4.0
        await other.send_async(array[:1], dst=1)
        await world.send_async(array[:5], dst=1)
        await world.recv_async(src=1)
        return
    await other.recv_async(src=0)
    found = [await world.recv_async(src=0)]
    if found[0].size == BIG:  # it had begun, so it came from a copy
        assert (found[0] == 3.0).all()
        found.append(await world.recv_async(src=0))
    assert (found[-1] == 4.0).all() and found[-1].size == 5
    await world.send_async(found[-1], dst=0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_send_that_was_taken_back_is_whole_or_not_there(crew: Crew, transport: str) -> None:
    crew.muster(2)
    address = free_address()
    for name in ("w", "other"):
        crew.together(join_by, name, address, transport)
    crew.together(take_back_a_send)


async def cancel_at_every_point(here: Here, rank: int, size: int) -> int:
    """A play: receives are cancelled after each number of turns of the loop; none tears a message.

    What a cancelled receive had begun is left to the next one; whatever comes is whole.
    """
    world, taken = here.worlds["w"], 0
    if rank == 0:
        for number in range(200):
            await world.send_async(np.full(20_000 + number, number), dst=1)
        await world.send_async(np.empty(0), dst=1)
        await world.recv_async(src=1)
        return 0
    turns = 0
    while True:
        task = asyncio.create_task(world.recv_async(src=0))
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        turns += 1
        if turns % 2 and not task.done():
            task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, asyncio.CancelledError):
            continue
        if not found.size:
            break
        assert (found == found.size - 20_000).all()
        taken += 1
    await world.send_async(np.empty(0), dst=0)
    return taken


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cancelled_receives_tear_no_message(crew: Crew, transport: str) -> None:
    crew.muster(2)
    crew.together(join_by, "w", free_address(), transport)
    assert 0 < crew.together(cancel_at_every_point)[1] <= 200


async def give_up_a_collective(here: Here, rank: int, size: int, by: str) -> tuple[str, str]:
    """A play: rank 0 gives up one that had begun, because rank 2 doesn't come."""
    world = here.worlds["w"]
    if rank == 2:
        with pytest.raises(worlds.WorldBrokenError) as ended:
            await world.recv_async(src=0)
        return ended.value.cause, world.state.name
    array = np.zeros(10)
    if rank == 1:
        with pytest.raises(worlds.WorldBrokenError) as ended:
            await world.all_reduce_async(array)
        return ended.value.cause, world.state.name
    if by == "timeout":
        await expect_timeout(
            world.all_reduce_async(array, timeout_s=SOON_S), "the world was aborted"
        )
    else:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(world.all_reduce_async(array), SOON_S)
    return "gave up", world.state.name


@pytest.mark.parametrize("by", ["timeout", "cancel"])
def test_a_collective_that_had_begun_is_given_up_for_all(crew: Crew, by: str) -> None:
    crew.muster(3)
    crew.together(join, "w", free_address())
    assert crew.together(give_up_a_collective, by) == [
        ("gave up", "BROKEN"),
        ("ABORTED", "BROKEN"),
        ("ABORTED", "BROKEN"),
    ]


async def interrupt(here: Here, rank: int, size: int) -> None:
    """A play: Ctrl-C ends a blocking receive, and the world carries on."""
    world = here.worlds["w"]
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        press = threading.Timer(SOON_S, os.kill, (os.getpid(), signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt):
                press.start()
                world.recv(src=0)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        press.join()
    await world.barrier_async()


def test_ctrl_c_takes_a_blocking_receive_back(crew: Crew) -> None:
    crew.muster(2)
    crew.together(join, "w", free_address())
    crew.together(interrupt)


async def wait_idly(here: Here, rank: int, size: int) -> float:
    """A play: rank 1 waits for a message; how much processor time that takes, per second."""
    world = here.worlds["w"]
    if rank == 1:
        begun, used = time.monotonic(), time.process_time()
        await world.recv_async(src=0)
        return (time.process_time() - used) / (time.monotonic() - begun)
    await expect_timeout(world.recv_async(src=1, timeout_s=1.0), "did not finish")
    await world.send_async(np.zeros(1), dst=1)
    return 0.0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_waits_sleeps(crew: Crew, transport: str) -> None:
    crew.muster(2)
    crew.together(join_by, "w", free_address(), transport)
    assert crew.together(wait_idly)[1] < 0.05


async def leave_with_much_under_way(here: Here, rank: int, size: int) -> None:
    """A play: what rank 0 has sent before it left arrives; then it is said to have left."""
    world = here.worlds["w"]
    if rank == 0:
        for number in range(50):
            await world.send_async(np.full(10_000, number), dst=1)
        await world.leave_async()
        assert world.state is worlds.State.CLOSED
        return
    events = world.events()
    for number in range(50):
        assert (await world.recv_async(src=0) == number).all()
    assert (await anext(events)).kind is worlds.EventKind.PEER_LEFT
    assert world.state is worlds.State.READY
    with pytest.raises(worlds.WorldBrokenError) as ended:
        await world.recv_async(src=0)
    assert (ended.value.cause, ended.value.rank) == ("PEER_LEFT", 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_that_was_sent_before_leaving_arrives(crew: Crew, transport: str) -> None:
    crew.muster(2)
    crew.together(join_by, "w", free_address(), transport)
    crew.together(leave_with_much_under_way)
