"""Members that die, freeze or are busy: which members learn of it, and no value is ever wrong."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from tests.process.world_crew import Crew, Here, free_address, join

TRANSPORTS = ("tcp", "shared_memory")
OPERATIONS = ("short", "chain", "ring")  # the ways that collectives of 3 members go
STEPS = ((0, 0), (3, 1), (6, 2), (9, 5))  # rounds, and turns of an event loop after them


async def one_round(world: worlds.World, what: str, number: int) -> None:
    array = np.full({"short": 10, "chain": 100_000, "ring": 50_000}[what], world.rank + number)
    if what == "chain":
        await world.broadcast_async(array, src=0)
        expected = number
    else:
        await world.all_reduce_async(array)
        expected = sum(range(world.size)) + world.size * number
    assert array.min() == array.max() == expected


async def work_until_broken(here: Here, rank: int, size: int, what: str) -> tuple[int, str, int]:
    """A play: collectives without end; each value is checked. Returns rounds, cause and rank."""
    world, rounds = here.worlds["w"], 0
    try:
        while True:
            await one_round(world, what, rounds)
            rounds += 1
    except worlds.WorldBrokenError as error:
        await every_operation_raises(world)
        assert error.rank is not None and error.detected_at_ns <= time.monotonic_ns()
        return rounds, error.cause, error.rank


async def work_until_dead(here: Here, rounds: int, turns: int, what: str) -> None:
    """A play: some rounds, then a death after so many turns of the loop within the next one."""
    world = here.worlds["w"]
    for number in range(rounds):
        await one_round(world, what, number)
    last = asyncio.create_task(one_round(world, what, rounds))
    for _ in range(turns):
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
    await last


async def every_operation_raises(world: worlds.World) -> None:
    array, other = np.zeros(4), (world.rank + 1) % world.size
    for begin in (
        lambda: world.send_async(array, dst=other),
        lambda: world.recv_async(array, src=other),
        lambda: world.recv_async(src=other),
        lambda: world.all_reduce_async(array),
        lambda: world.all_gather_async(array),
        lambda: world.gather_async(array, dst=world.rank),
        lambda: world.scatter_async([array] * world.size, src=world.rank),
        lambda: world.barrier_async(),
        lambda: world.leave_async(),
    ):
        with pytest.raises(worlds.WorldBrokenError):
            await begin()
    assert world.state is worlds.State.BROKEN


async def beside(here: Here, rank: int, size: int, rounds: int) -> None:
    """A play: the world of the survivors loses no message."""
    world = here.worlds["beside"]
    for number in range(rounds):
        if rank == 0:
            await world.send_async(np.full(1000, number), dst=1)
        else:
            assert (await world.recv_async(src=0) == number).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("what", OPERATIONS)
def test_a_kill_at_any_step_is_raised_on_every_survivor(
    crew: Crew, what: str, transport: str
) -> None:
    address = free_address()
    survivors = crew.muster(2)
    crew.together(join, "beside", address)
    for number, (rounds, turns) in enumerate(STEPS):
        (victim,) = crew.muster(1)
        members = [survivors[0], victim, survivors[1]]
        assert (
            crew.together(partial(join, transport=transport), "w", address, members=members)
            == [number + 1] * 3
        )
        for rank, member in ((0, survivors[0]), (2, survivors[1])):
            member.tell(work_until_broken, rank, 3, what)
        victim.tell(work_until_dead, rounds, turns, what)
        for done, cause, rank in (member.answer() for member in survivors):
            assert (cause, rank) == ("PEER_DIED", 1)
            assert what == "chain" or done <= rounds + 1
    crew.together(beside, 200, members=survivors)


async def wait_in_vain(here: Here, rank: int, size: int) -> tuple[str, str]:
    """A play: a receive that is pending, and the world's event."""
    world = here.worlds["w"]
    events = world.events()
    try:
        await world.recv_async(src=1 - rank)
    except worlds.WorldBrokenError as error:
        kinds = [event.kind.name async for event in events]
        return error.cause, kinds[-1]
    raise AssertionError("a message came")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_sender_ends_a_pending_receive(crew: Crew, transport: str) -> None:
    survivor, victim = crew.muster(2)
    crew.together(partial(join, transport=transport), "w", free_address())
    survivor.tell(wait_in_vain, 0, 2)
    victim.kill()
    assert survivor.answer() == ("PEER_DIED", "BROKEN")


async def fork_a_child(here: Here) -> int:
    """A play: a forked child lives on, with copies of all descriptors, and can't use the world."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        world, refused = here.worlds["w"], b"no"
        try:
            world.send(np.zeros(1), dst=0)
        except worlds.WorldError:
            refused = b"other"
        except Exception as error:
            refused = type(error).__name__.encode()
        os.write(write, refused)
        signal.pause()
        os._exit(0)
    assert os.read(read, 100) == b"UnusableAfterForkError"
    os.close(read)
    os.close(write)
    return pid


def test_a_death_is_seen_although_a_forked_child_holds_its_descriptors(crew: Crew) -> None:
    survivor, victim = crew.muster(2)
    crew.together(join, "w", free_address())
    child = victim.ask(fork_a_child)
    try:
        survivor.tell(wait_in_vain, 0, 2)
        victim.kill()
        assert survivor.answer() == ("PEER_DIED", "BROKEN")
    finally:
        os.kill(child, signal.SIGKILL)


async def begin_to_watch(here: Here) -> None:
    """A play: no event is missed from now on, however late the next play begins."""
    here.kept["events"] = here.worlds["w"].events()


async def watch_others(here: Here, ends_with: str) -> list[tuple[str, int, str]]:
    """A play: what has happened and happens, until something does."""
    found = []
    async for event in here.kept["events"]:
        found.append((event.kind.name, event.rank, event.cause))
        if event.kind.name == ends_with:
            break
    return found


async def with_limits(here: Here, dead_after_s: float | None) -> None:
    here.manager.close()
    here.manager = worlds.WorldManager(suspect_after_s=0.3, dead_after_s=dead_after_s)


async def swap(here: Here, rank: int, size: int) -> float:
    world = here.worlds["w"]
    if rank == 0:
        await world.send_async(np.full(10, 5.0), dst=1)
        return float((await world.recv_async(src=1))[0])
    message = await world.recv_async(src=0)
    await world.send_async(message * 2, dst=0)
    return float(message[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stopped_member_is_suspected_and_recovers(crew: Crew, transport: str) -> None:
    here, there = crew.muster(2)
    here.ask(with_limits, None)
    crew.together(partial(join, transport=transport), "w", free_address())
    here.ask(begin_to_watch)
    there.signal(signal.SIGSTOP)
    try:
        assert here.ask(watch_others, "SUSPECT") == [("SUSPECT", 1, "")]
        here.tell(watch_others, "RECOVERED")
    finally:
        there.signal(signal.SIGCONT)
    assert here.answer()[-1] == ("RECOVERED", 1, "")
    assert crew.together(swap) == [10.0, 5.0]


def test_a_member_that_stays_stopped_is_given_up(crew: Crew) -> None:
    here, there = crew.muster(2)
    here.ask(with_limits, 1.0)
    crew.together(join, "w", free_address())
    here.ask(begin_to_watch)
    there.signal(signal.SIGSTOP)
    try:
        assert here.ask(watch_others, "BROKEN") == [("SUSPECT", 1, ""), ("BROKEN", 1, "FROZEN")]
    finally:
        there.signal(signal.SIGCONT)
    there.tell(work_until_broken, 1, 2, "short")
    assert there.answer()[0] == 0  # it was given up, and nothing of it succeeds


async def hold_the_gil(here: Here, seconds: int) -> str:
    """A play: nothing of Python runs in this process meanwhile."""
    ctypes.PyDLL(None).usleep(seconds * 1_000_000)
    return here.worlds["w"].state.name


def test_a_member_that_holds_its_gil_is_not_dead(crew: Crew) -> None:
    here, there = crew.muster(2)
    here.ask(with_limits, 1.0)
    there.ask(with_limits, 1.0)
    crew.together(join, "w", free_address())
    there.tell(hold_the_gil, 3)
    here.tell(swap, 0, 2)
    assert there.answer() == "READY"
    there.tell(swap, 1, 2)
    assert (here.answer(), there.answer()) == (10.0, 5.0)


async def end_of_program(here: Here, rank: int, leaves: bool) -> None:
    if leaves:
        await here.worlds["w"].leave_async()


@pytest.mark.parametrize(("leaves", "cause"), [(True, "PEER_LEFT"), (False, "ABORTED")])
def test_a_program_that_ends_is_no_death(crew: Crew, leaves: bool, cause: str) -> None:
    here, there = crew.muster(2)
    crew.together(join, "w", free_address())
    here.tell(wait_in_vain, 0, 2)
    there.ask(end_of_program, 1, leaves)
    assert there.leave() == 0
    assert here.answer() == (cause, "BROKEN")


async def abort_from_a_thread(here: Here, rank: int, size: int) -> Any:
    """A play: both have operations under way that nobody answers; rank 1 gives up."""
    world = here.worlds["w"]
    waits = [world.recv_async(src=1 - rank)] + ([world.barrier_async()] if rank == 0 else [])
    pending = asyncio.gather(*waits, return_exceptions=True)
    if rank == 1:
        await asyncio.sleep(0)
        await asyncio.to_thread(world.abort, "enough")
        await asyncio.to_thread(here.manager.abort, "w", "again")
    assert all("enough" in str(error) for error in await pending)
    return {(error.cause, error.rank) for error in await pending}


def test_an_abort_from_another_thread_ends_what_is_under_way(crew: Crew) -> None:
    crew.muster(2)
    crew.together(join, "w", free_address())
    assert crew.together(abort_from_a_thread) == [{("ABORTED", 1)}] * 2
