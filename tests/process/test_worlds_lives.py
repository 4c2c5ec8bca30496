"""Worlds leave nothing behind in a process; and a forked child's view of them."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
import weakref
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import InvalidArgumentError, UnusableAfterForkError
from tests.process.world_crew import JOIN_S, Crew, Here, free_address, join


async def fork_with_a_manager(here: Here) -> bytes:
    """A play: what a forked child hears of its parent's manager; it makes one of its own."""
    world = await here.join_async("alone", rank=0, size=1, rendezvous=free_address())
    mine = worlds.manager()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"nothing"
        try:
            here.manager.join("w", rank=0, size=1, rendezvous="tcp://127.0.0.1:1")
        except UnusableAfterForkError:
            said = b"own" if worlds.manager() is not mine and not worlds.manager().is_over else b"?"
        here.manager.close()
        os.write(write, said)
        os._exit(0)
    said = os.read(read, 20)
    await asyncio.to_thread(os.waitpid, pid, 0)
    await world.barrier_async()
    os.close(read)
    os.close(write)
    return said


def test_a_forked_child_is_told_and_may_have_its_own_manager(crew: Crew) -> None:
    (member,) = crew.muster(1)
    assert member.ask(fork_with_a_manager) == b"own"


NO_DESCRIPTORS = """
import os, resource
from hoplite_ray import worlds
used = len(os.listdir("/proc/self/fd"))
for spare in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, 4096))
    manager = worlds.WorldManager()
    try:
        manager.join("w", rank=0, size=1, rendezvous="tcp://127.0.0.1:1", timeout_s=0.2)
        print("joined")
    except Exception as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    manager.close()
"""


def test_a_join_without_descriptors_says_so() -> None:
    told = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS],
        capture_output=True,
        text=True,
        check=True,
    )
    words = told.stdout.split()
    assert len(words) == 12 and words[0] != "joined", told


async def counts(here: Here) -> tuple[int, int]:
    """A play: descriptors and threads of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


async def many_lives(here: Here, rank: int, size: int, address: str, count: int) -> None:
    """A play: worlds are joined, used, and end in one of three ways."""
    for number in range(count):
        world = await here.join_async("w", rank=rank, size=size, rendezvous=address)
        array = np.ones(10)
        await world.all_reduce_async(array)
        with pytest.raises(worlds.WorldTimeoutError):
            await world.recv_async(src=1 - rank, timeout_s=0.0)
        await world.barrier_async()
        assert array[0] == size
        if number % 3 == 0:
            await world.leave_async()
        elif number % 3 == 1 and rank == 0:
            world.abort("enough")
        elif number % 3 == 2:
            here.manager.remove_world("w")
        if number % 3 == 1:
            with pytest.raises(worlds.WorldBrokenError):
                await world.recv_async(src=1 - rank)
            here.manager.remove_world("w")


async def until_closed(here: Here, fewest: tuple[int, int]) -> None:
    """A play: the counts come down to what they were.

    But for a descriptor by which the manager's own loop waits, from the first time when it does.
    """
    limit = time.monotonic() + JOIN_S
    while True:
        descriptors, threads = await counts(here)
        if descriptors <= fewest[0] + 1 and threads <= fewest[1]:
            return
        assert time.monotonic() < limit, f"{descriptors}, {threads} are left, of {fewest}"
        await asyncio.sleep(0.02)


def test_a_hundred_worlds_leave_no_descriptor_and_no_thread(crew: Crew) -> None:
    both = crew.muster(2)
    address = free_address()
    crew.together(many_lives, address, 3)
    before = [member.ask(counts) for member in both]
    for _ in range(4):  # each within the limit of one play, also on busy cores
        crew.together(many_lives, address, 24)
    for rank, member in enumerate(both):
        member.ask(until_closed, before[rank])
    survivor = both[0]
    for _ in range(3):
        (victim,) = crew.muster(1)
        pair = [survivor, victim]
        crew.together(join, "killed", address, members=pair)
        victim.kill()
        survivor.ask(until_broken, "killed")
    survivor.ask(forget, "killed")
    survivor.ask(until_closed, before[0])


async def until_broken(here: Here, name: str) -> None:
    with pytest.raises(worlds.WorldBrokenError):
        await here.worlds[name].recv_async(src=1)


async def forget(here: Here, name: str) -> None:
    here.worlds.clear()
    here.manager.remove_world(name)


async def join_many(here: Here, count: int, kept: int) -> tuple[int, int]:
    """A play: join worlds of many names twice; how many are remembered, and the last epoch."""
    module: Any = sys.modules["hoplite_ray.worlds.manager"]
    module._EPOCHS_MAX, before = kept, module._EPOCHS_MAX
    try:
        for number in range(count):
            address = free_address()
            for _ in range(2):
                world = await here.join_async(f"w{number}", rank=0, size=1, rendezvous=address)
                await world.leave_async()
    finally:
        module._EPOCHS_MAX = before
    return len(here.manager._epochs), world.epoch


def test_a_manager_does_not_remember_names_for_ever(crew: Crew) -> None:
    (member,) = crew.muster(1)
    assert member.ask(join_many, 12, 5) == (5, 2)


async def break_many(here: Here, count: int, kept: int) -> None:
    """A play: worlds that break, and are dropped. The last ones are found by their names."""
    module: Any = sys.modules["hoplite_ray.worlds.manager"]
    manager, address = here.manager, free_address()
    module._BROKEN_MAX, before = kept, module._BROKEN_MAX
    try:
        for number in (*range(count), 0):
            world = await manager.join_async(f"w{number}", rank=0, size=1, rendezvous=address)
            manager.abort(f"w{number}", "enough")
            dropped = weakref.ref(world)
            del world
            manager.end(manager.world(f"w{number}"))  # as after its last words
            assert manager.communicator.is_broken(f"w{number}")
        assert list(manager._worlds) == [
            f"w{each}" for each in (*range(count - kept + 1, count), 0)
        ]
        with pytest.raises(InvalidArgumentError, match="in no world 'w1'"):
            manager.abort("w1", "again")
        manager.remove_world("w0")
        async with asyncio.timeout(JOIN_S):
            while dropped() is not None:
                gc.collect()
                await asyncio.sleep(0.01)
    finally:
        module._BROKEN_MAX = before


def test_a_manager_does_not_keep_broken_worlds_for_ever(crew: Crew) -> None:
    (member,) = crew.muster(1)
    member.ask(break_many, 9, 4)


async def join_and_sum(here: Here, rank: int, size: int, name: str, address: str) -> float:
    """A play: a world is of use."""
    world = await here.join_async(name, rank=rank, size=size, rendezvous=address)
    array = np.full(100_000, rank + 1.0)
    await world.all_reduce_async(array)
    await world.leave_async()
    return float(array.max())


async def set_default_timeout(here: Here, limit_s: float | None, is_debug: bool) -> None:
    """A play: as a program's own code, or its debugging, may have it."""
    socket.setdefaulttimeout(limit_s)
    os.environ["PYTHONASYNCIODEBUG"] = "1" if is_debug else ""
    here.manager.close()
    here.manager = worlds.WorldManager()  # with a loop that knows


@pytest.mark.parametrize(("limit_s", "is_debug"), [(3.0, False), (None, True)])
def test_worlds_are_joined_whatever_the_sockets_of_a_program_are(
    crew: Crew, limit_s: float | None, is_debug: bool
) -> None:
    members = crew.muster(3)
    for member in members:
        member.ask(set_default_timeout, limit_s, is_debug)
    assert crew.together(join_and_sum, "w", free_address()) == [6.0] * 3
    for member in members:
        member.ask(set_default_timeout, None, False)


async def leave_what_breaks(here: Here, rank: int, size: int, addresses: list[str]) -> list[str]:
    """A play: one aborts, the other leaves at once; which events its manager has told."""
    events = here.manager.events()
    for number, address in enumerate(addresses):
        world = await here.join_async(f"w{number}", rank=rank, size=size, rendezvous=address)
        if rank == 1:
            world.abort("enough")
        else:
            with pytest.raises(worlds.WorldBrokenError):
                await world.recv_async(src=1)
        with pytest.raises(worlds.WorldBrokenError):
            await world.leave_async()
        with pytest.raises(InvalidArgumentError, match="join it first"):
            here.manager.world(f"w{number}")
    return [(await asyncio.wait_for(anext(events), JOIN_S)).kind.name for _ in addresses]


def test_who_leaves_a_broken_world_still_hears_that_it_broke(crew: Crew) -> None:
    crew.muster(2)
    addresses = [free_address() for _ in range(20)]
    assert crew.together(leave_what_breaks, addresses) == [["BROKEN"] * 20] * 2


async def wait_in_loops(here: Here, times: int) -> int:
    """A play: event loops are closed amid a receive; how many descriptors that costs."""
    world = await here.join_async("alone", rank=0, size=1, rendezvous=free_address())
    await world.barrier_async()

    def wait_and_close() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(other.recv_async(src=1))
        loop.run_until_complete(asyncio.sleep(0.02))
        loop.close()
        del task

    other = here.worlds["w"]
    counts = []
    for _ in range(times):
        await asyncio.to_thread(wait_and_close)
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts[-1] - counts[1]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_is_closed_amid_a_receive_costs_nothing_for_ever(crew: Crew) -> None:
    waiting, _ = crew.muster(2)
    address = free_address()
    crew.together(join, "w", address)
    assert waiting.ask(wait_in_loops, 8) <= 1
