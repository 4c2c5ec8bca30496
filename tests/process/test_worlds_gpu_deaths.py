"""Worlds of GPUs whose members die, whose NCCL fails, and joins and aborts that never end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import HopliteError, WrongTypeError
from tests.process.fake_gpu import OnFake, equip, fake, join, ready, zeros
from tests.process.world_crew import JOIN_S, Crew, Here, free_address

ABORT_S = 5.0  # how long a communicator may take to be ended


async def broken(here: Here, what: str) -> tuple[str, float]:
    """A play: what is pending raises, and so does all that comes later; returns how long it took.

    Of the call that raises: how fast those before it are is no matter.
    """
    world, rank = here.worlds["w"], here.worlds["w"].rank
    other = 1 - rank
    array = zeros(3_000_000)
    with pytest.raises(worlds.WorldBrokenError) as ended:
        while True:
            begun = time.monotonic()
            if what == "recv":
                await world.recv_async(array, src=other)
            elif what == "send":
                await world.send_async(array, dst=other)
            else:
                await world.all_reduce_async(array)
    took_s = time.monotonic() - begun
    for call in (
        lambda: world.send_async(array, dst=other),
        lambda: world.recv_async(array, src=other),
        lambda: world.all_reduce_async(array),
        lambda: world.gather_async(array, dst=other),
    ):
        with pytest.raises(worlds.WorldBrokenError):
            await call()
    return ended.value.cause, took_s


async def do_until(here: Here, what: str, rounds: int, turns: int) -> None:
    """A play: so many rounds, then some turns of the loop, then a death."""
    world, array = here.worlds["w"], zeros(3_000_000)

    async def one_round() -> None:
        if what == "recv":
            await world.send_async(array, dst=1 - world.rank)
        elif what == "send":
            await world.recv_async(array, src=1 - world.rank)
        else:
            await world.all_reduce_async(array)

    for _ in range(rounds):
        await one_round()
    task = asyncio.create_task(one_round())
    for _ in range(turns):
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
    await task


async def one_sum(here: Here, rank: int, size: int, name: str) -> float:
    array = OnFake(np.ones(3))
    await here.worlds[name].all_reduce_async(array)
    return float(array.array.sum())


@pytest.mark.parametrize("what", ["recv", "send", "all_reduce"])
def test_a_kill_at_any_step_is_raised_on_the_survivor(gpus: Crew, what: str) -> None:
    address = free_address()
    survivor, third = gpus.muster(2)
    for member in (survivor, third):
        member.ask(equip)
    gpus.together(join, "beside", address, {})
    for victim, rounds, turns in ((0, 0, 0), (1, 1, 3), (0, 2, 12), (1, 1, 40)):
        (doomed,) = gpus.muster(1)
        doomed.ask(equip)
        pair = [survivor, doomed] if victim else [doomed, survivor]
        gpus.together(join, "w", free_address(), {}, members=pair)
        survivor.tell(broken, what)
        doomed.tell(do_until, what, rounds, turns)
        assert survivor.answer()[0] == "PEER_DIED"
    sums = gpus.together(one_sum, "beside", members=[survivor, third])
    assert sums == [6.0] * 2


def test_a_sender_that_dies_amid_a_kernel_ends_it(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    survivor, doomed = gpus.members
    doomed.ask(equip, "send_dies")
    survivor.tell(broken, "recv")
    doomed.tell(do_until, "recv", 9, 0)
    assert survivor.answer()[0] == "PEER_DIED"
    assert survivor.ask(aborts) == 1


async def aborts(here: Here) -> int:
    return int(fake().fake_aborted())


async def say_into(here: Here, path: Path) -> None:
    """A play: what the process says to its standard error stream goes into a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 2)


def until_it_says(path: Path, text: str) -> None:
    """Returns when that is in the file: what was under way has raised just before it is said."""
    while text not in path.read_text():  # the test's limit ends it else
        time.sleep(0.01)


@pytest.mark.wall_clock
def test_an_abort_that_hangs_is_left_and_life_goes_on(gpus: Crew, tmp_path: Path) -> None:
    address = free_address()
    survivor, third = gpus.muster(2)
    for member in (survivor, third):
        member.ask(equip)
    gpus.together(join, "beside", address, {})
    (doomed,) = gpus.muster(1)
    doomed.ask(equip, "send_dies")
    gpus.together(join, "w", free_address(), {}, members=[survivor, doomed])
    survivor.ask(equip, "abort_hangs")
    survivor.ask(say_into, tmp_path / "said")
    survivor.tell(broken, "recv")
    doomed.tell(do_until, "recv", 9, 0)
    cause, took_s = survivor.answer()
    assert cause == "PEER_DIED" and took_s < ABORT_S + 3
    until_it_says(tmp_path / "said", "was not aborted within 5 s")
    assert gpus.together(one_sum, "beside", members=[survivor, third]) == [6.0] * 2
    survivor.ask(equip)
    assert survivor.ask(close) < 2.0


@pytest.mark.wall_clock
@pytest.mark.parametrize("what", ["recv", "send", "all_reduce"])
def test_what_was_under_way_raises_when_its_kernel_has_ended(gpus: Crew, what: str) -> None:
    ready(gpus, 1)
    survivor, doomed = gpus.members[0], *gpus.muster(1)
    doomed.ask(equip)
    gpus.together(join, "w", free_address(), {}, members=[survivor, doomed])
    survivor.ask(equip, "abort_lingers")
    survivor.tell(broken, what)
    doomed.tell(do_until, what, 9, 3)
    cause, took_s = survivor.answer()
    assert cause == "PEER_DIED" and took_s < ABORT_S, "the abort has not returned yet"
    survivor.ask(equip)


async def abort_often(here: Here, times: int) -> int:
    """A play: worlds of two managers here, aborted while an array goes; how many calls raised."""
    with worlds.WorldManager() as other:
        return await asyncio.to_thread(_abort_often, here, other, times)


def _abort_often(here: Here, other: worlds.WorldManager, times: int) -> int:
    raised = []

    def over_and_over(call: Any) -> None:
        with contextlib.suppress(worlds.WorldBrokenError):
            while True:
                call()
        raised.append(call)

    for number in range(times):
        how: dict[str, Any] = {"size": 2, "rendezvous": free_address(), "transport": "nccl"}
        with ThreadPoolExecutor(2) as pool:
            pair = [
                pool.submit(each.join, f"w{number}", rank=rank, **how)
                for rank, each in enumerate((here.manager, other))
            ]
            first, second = (each.result() for each in pair)
            pool.submit(over_and_over, functools.partial(first.send, zeros(4), dst=1))
            pool.submit(over_and_over, functools.partial(second.recv, zeros(4), src=0))
            time.sleep(random.uniform(0.003, 0.006))
            (first, second)[number % 2].abort("enough")
    return len(raised)


def test_an_abort_at_any_moment_ends_what_is_under_way(gpus: Crew) -> None:
    (member,) = gpus.muster(1)
    member.ask(equip)
    for _ in range(3):  # an answer may take 15 s, also on a full machine
        assert member.ask(abort_often, 50) == 100


async def close(here: Here) -> float:
    begun = time.monotonic()
    await asyncio.to_thread(here.manager.close)
    return time.monotonic() - begun


async def failing_join(here: Here, rank: int, size: int, address: str, how: Any) -> str:
    try:
        await join(here, rank, size, "w", address, how)
    except HopliteError as error:
        return f"{type(error).__name__} {error}"
    return "joined"


@pytest.mark.wall_clock
def test_a_join_whose_nccl_never_comes_ends_at_its_timeout(gpus: Crew) -> None:
    for member in gpus.muster(2):
        member.ask(equip, "init_hangs")
        member.ask(aborts)  # which imports this module: their times begin together
    begun = time.monotonic()
    said = gpus.together(failing_join, free_address(), {"timeout_s": 2.0})
    # Whose time is over first ends it, and the other one may hear of that before its own is.
    late = [each for each in said if "NCCL has not brought all together" in each]
    assert late and all(each.startswith("WorldTimeoutError") for each in late)
    assert all("was lost while NCCL came up" in each for each in said if each not in late)
    assert time.monotonic() - begun < 10
    assert gpus.members[0].ask(close) < ABORT_S + 3


def test_a_member_that_dies_while_nccl_comes_up_fails_the_join(gpus: Crew) -> None:
    survivor, doomed = gpus.muster(2)
    survivor.ask(equip)
    doomed.ask(equip, "init_dies")
    address = free_address()
    survivor.tell(failing_join, 0, 2, address, {})
    doomed.tell(failing_join, 1, 2, address, {})
    said = survivor.answer()
    assert said.startswith("WorldError") and "was lost while NCCL came up" in said


def test_nccl_that_fails_is_said_or_is_done_without(gpus: Crew) -> None:
    for member, faults in zip(gpus.muster(2), ("", "init_fails"), strict=True):
        member.ask(equip, faults)
    for said in gpus.together(failing_join, free_address(), {}):
        assert "was lost while NCCL" in said or "rank 1: NCCL did not bring" in said
        assert "invalid usage (as the fake was told)" in said
    for member in gpus.members:
        member.ask(equip, "init_fails")
    for said in gpus.together(failing_join, free_address(), {}):
        assert "did not bring the members together: invalid usage (as the fake was told)" in said
    assert gpus.together(join, "auto", free_address(), {"transport": "auto"}) == [None] * 2
    assert gpus.together(refused, "auto") == [True] * 2


async def refused(here: Here, rank: int, size: int, name: str) -> bool:
    world = here.worlds[name]
    with pytest.raises(WrongTypeError, match="carries memory of the CPU only"):
        await world.all_reduce_async(zeros(3))
    await world.barrier_async()
    return True


async def use(here: Here) -> None:
    """A play: as torch does."""
    fake().fake_use(1)


def test_auto_takes_nccl_when_all_use_a_gpu() -> None:
    gpus = Crew([])  # what they use stays used
    try:
        auto_in_turn(gpus)
    finally:
        for member in gpus.members:
            member.kill()


def auto_in_turn(gpus: Crew) -> None:
    for member in gpus.muster(2):
        member.ask(equip)
    first, second = gpus.members
    auto = {"transport": "auto"}
    assert gpus.together(join, "none", free_address(), auto) == [None] * 2
    first.ask(use)
    assert gpus.together(join, "one", free_address(), auto) == [None] * 2
    assert gpus.together(refused, "one") == [True] * 2
    second.ask(use)
    assert gpus.together(join, "two", free_address(), auto) == [1] * 2
    assert gpus.together(join, "tcp", free_address(), {"transport": "tcp"}) == [None] * 2


async def give_up(here: Here, rank: int, size: int) -> str:
    """A play: a send without a receiver can't be cancelled."""
    world = here.worlds["w"]
    if rank == 0:
        with pytest.raises(worlds.WorldTimeoutError, match="so the world was aborted"):
            await world.send_async(zeros(3), dst=1, timeout_s=0.05)
    with pytest.raises(worlds.WorldBrokenError) as ended:
        await world.barrier_async()
    return ended.value.cause


def test_a_send_that_runs_out_of_time_ends_the_world(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    assert gpus.together(give_up) == ["ABORTED"] * 2


async def cancelled(here: Here, rank: int, size: int) -> str:
    """A play: a collective is cancelled while its kernel waits."""
    world = here.worlds["w"]
    task = asyncio.create_task(world.all_reduce_async(zeros(3)))
    if rank == 0:
        while True:
            await asyncio.sleep(0.005)
            if fake().fake_launched():  # both have come
                break
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, worlds.WorldBrokenError):
        await task
    with pytest.raises(worlds.WorldBrokenError) as ended:
        await world.barrier_async()
    return ended.value.cause


def test_an_error_of_nccls_ends_the_world(gpus: Crew) -> None:
    ready(gpus, 2, "w", "other")
    gpus.members[0].ask(equip, "error")
    first, second = gpus.members
    first.tell(broken, "all_reduce")
    second.tell(broken, "all_reduce")
    assert [member.answer()[0] for member in (first, second)] == ["LOCAL"] * 2


def test_a_transfer_that_is_cancelled_ends_the_world(gpus: Crew) -> None:
    ready(gpus, 2, "w", faults="error")  # whose kernels never end
    assert gpus.together(cancelled) == ["ABORTED"] * 2


async def lives(here: Here, rank: int, size: int, address: str) -> None:
    """A play: worlds come and go, one half left and one half aborted; they leave nothing."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = (0, 0)
    for number in range(20):
        world = await here.join_async(
            "w", rank=rank, size=size, rendezvous=address, transport="nccl", timeout_s=JOIN_S
        )
        array = OnFake(np.ones(3))
        await world.all_reduce_async(array)
        assert array.array.tolist() == [2.0] * 3
        if number % 2:
            await world.leave_async()
        else:
            await world.barrier_async()
            world.abort("it is enough")
            await asyncio.sleep(0.05)
        if number == 3:
            before = held()
    limit = time.monotonic() + JOIN_S
    while True:
        gc.collect()
        descriptors, threads = held()
        if descriptors <= before[0] + 8 and threads <= before[1] + 4:
            return
        assert time.monotonic() < limit, f"{descriptors}, {threads} are left, of {before}"
        await asyncio.sleep(0.05)


def test_worlds_that_end_give_everything_back(gpus: Crew) -> None:
    for member in gpus.muster(2):
        member.ask(equip)
    gpus.together(lives, free_address())


@pytest.mark.wall_clock
def test_a_finalize_that_hangs_becomes_an_abort(gpus: Crew) -> None:
    ready(gpus, 2, "w", faults="finalize_hangs")
    assert gpus.together(leave_and_close) == [1] * 2


async def leave_and_close(here: Here, rank: int, size: int) -> int:
    await here.worlds["w"].leave_async()
    assert await close(here) < ABORT_S
    return int(fake().fake_aborted())
