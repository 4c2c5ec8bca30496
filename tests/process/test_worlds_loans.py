"""Arrays of `alloc`: sent without a copy, whole for their holders, and reused afterwards."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import HopliteError
from hoplite_ray.worlds.core.sending import Sending
from hoplite_ray.worlds.lending.lender import LENT_BYTES_MIN
from tests.process.world_crew import JOIN_S, Crew, Here, free_address, join

COUNT = 300_000

Array = np.ndarray[Any, Any]


def filled(world: worlds.World, number: int, count: int = COUNT) -> Array:
    array = world.alloc(count, np.int64)
    array[:] = np.arange(count) + number
    return array


def expected(number: int, count: int = COUNT) -> Array:
    return np.arange(count) + number


def pages_of(array: Array) -> str:
    """What is mapped where an array lies."""
    at = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= at < end:
            return line
    raise AssertionError("nothing is mapped there")


async def until(what: Any) -> None:
    async with asyncio.timeout(JOIN_S):
        while not what():
            gc.collect()
            await asyncio.sleep(0.005)


def pair(crew: Crew, transport: str = "shared_memory") -> None:
    crew.muster(2)
    crew.together(join_by, free_address(), transport)


async def join_by(here: Here, rank: int, size: int, address: str, transport: str) -> None:
    await join(here, rank, size, "w", address, transport=transport)


async def pass_on(here: Here, rank: int, size: int) -> str:
    """A play: rank 0 gives arrays away, in every way there is."""
    world = here.worlds["w"]
    if rank == 1:
        first = await world.recv_async(src=0)
        assert np.array_equal(first, expected(1)) and first.dtype == np.int64
        assert "memfd" in pages_of(first) and not first.flags.writeable
        into = np.zeros(COUNT, np.int64)
        assert await world.recv_async(into, src=0) is into
        assert np.array_equal(into, expected(2))
        part = await asyncio.to_thread(world.recv, src=0)
        assert part.shape == (2, 50_000) and np.array_equal(part.ravel(), expected(3)[1000:101_000])
        small = await world.recv_async(src=0)
        assert small.flags.writeable and np.array_equal(small, expected(4, 10))
        crooked = await world.recv_async(src=0)
        assert np.array_equal(crooked, expected(5)[::2])
        assert np.array_equal(first, expected(1))  # still
        return pages_of(first).split()[1]
    one = filled(world, 1)
    await world.send_async(one, dst=1)
    assert not one.flags.writeable
    await asyncio.to_thread(world.send, filled(world, 2), dst=1)
    await world.send_async(filled(world, 3)[1000:101_000].reshape(2, 50_000), dst=1)
    await world.send_async(filled(world, 4, 10), dst=1)
    await world.send_async(filled(world, 5)[::2], dst=1)
    return "sent"


def test_what_is_given_away_arrives_without_a_copy_and_read_only(crew: Crew) -> None:
    pair(crew)
    assert crew.together(pass_on) == ["sent", "r--s"]


async def in_a_row(here: Here, rank: int, size: int) -> None:
    """A play: several at once, some on memory that the receiver has to be given before."""
    world = here.worlds["w"]
    for number in range(0, 60, 4):
        if rank == 0:
            first, third = filled(world, number), filled(world, number + 2)
            await asyncio.gather(
                world.send_async(first, dst=1),
                world.send_async(expected(number + 1), dst=1),
                world.send_async(third, dst=1),
                world.send_async(expected(number + 3, 5), dst=1),
            )
        else:
            here.kept[str(number)] = got = [await world.recv_async(src=0) for _ in range(4)]
            assert [each[0] for each in got] == [number, number + 1, number + 2, number + 3]


def test_what_is_sent_at_once_arrives_in_order(crew: Crew) -> None:
    pair(crew)
    crew.together(in_a_row)


async def one_gives_up(here: Here, rank: int, size: int) -> None:
    """A play: of three that wait for one after the other, the second has no time."""
    world = here.worlds["w"]
    if rank == 1:
        assert [(await world.recv_async(src=0))[0] for _ in range(2)] == [1, 3]
        return
    late = Sending(None)
    with world.membership.sending.queued(1) as turn:
        turn.before = late  # as one that waits for a gift
        first = asyncio.create_task(world.send_async(expected(1), dst=1))
        await asyncio.sleep(0)
        with pytest.raises(HopliteError, match=r"did not begin within 0\.05 s"):
            await world.send_async(expected(2), dst=1, timeout_s=0.05)
        third = asyncio.create_task(world.send_async(filled(world, 3), dst=1))
        await asyncio.sleep(0.05)
        assert not first.done() and not third.done(), (first, third)
    await asyncio.sleep(0.05)
    assert not first.done() and not third.done(), "what it waited for has not begun"
    late.end()
    await asyncio.gather(first, third)
    assert not world.membership.sending


def test_who_gives_up_waiting_lets_nobody_overtake(crew: Crew) -> None:
    pair(crew)
    crew.together(one_gives_up)


async def sends_after_leaving(here: Here, rank: int, size: int) -> None:
    """A play: what can't be sent any more stays its sender's."""
    world = here.worlds["w"]
    array = filled(world, 1) if rank == 0 else None
    await world.barrier_async()
    await world.leave_async()
    if array is not None:
        with pytest.raises(HopliteError):
            await world.send_async(array, dst=1)
        assert array.flags.writeable
        assert world.membership.loans._lender.counts()[2] == 0


def test_what_is_sent_after_leaving_is_not_lent(crew: Crew) -> None:
    pair(crew)
    crew.together(sends_after_leaving)


async def give_up(here: Here, rank: int, size: int) -> None:
    """A play: a notice waits behind what nobody takes, until its sender gives it up."""
    world = here.worlds["w"]
    large = np.arange(2 << 20)
    if rank == 1:
        await world.barrier_async()
        assert np.array_equal(await world.recv_async(src=0), large)
        assert (await world.recv_async(src=0)).tolist() == [7]
        return
    lender = world.membership.loans._lender
    before = asyncio.create_task(world.send_async(large, dst=1))
    await asyncio.sleep(0)
    given = filled(world, 1)
    with pytest.raises(worlds.WorldTimeoutError, match="was taken back"):
        await world.send_async(given, dst=1, timeout_s=0.3)
    cancelled = asyncio.create_task(world.send_async(given, dst=1))
    await asyncio.sleep(0.05)
    assert lender.counts()[1:] == (0, 1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert lender.counts()[1:] == (0, 0)
    assert np.array_equal(given, expected(1))
    del given, cancelled
    await until(lambda: lender.counts()[1:] == (1, 0))  # for arrays to come
    await world.barrier_async()
    await before
    await world.send_async(np.array([7]), dst=1)


def test_what_never_went_is_not_lent_any_more(crew: Crew) -> None:
    pair(crew)
    crew.together(give_up)


PARTS = 20_000


async def many_parts(here: Here, rank: int, size: int) -> None:
    """A play: thousands of loans end at once, while their lender does not hear of it."""
    world = here.worlds["w"]
    if rank == 0:
        await world.send_async(np.array([os.getpid()]), dst=1)
        array = world.alloc(LENT_BYTES_MIN + 8 * PARTS, np.uint8)
        for number in range(PARTS):
            await world.send_async(array[8 * number : 8 * number + LENT_BYTES_MIN], dst=1)
        await world.barrier_async()
        await until(lambda: world.membership.loans._lender.counts()[2] == 0)
        return
    pid = int((await world.recv_async(src=0))[0])
    got = [await world.recv_async(src=0) for _ in range(PARTS)]
    await world.barrier_async()
    os.kill(pid, signal.SIGSTOP)
    got.clear()
    gc.collect()
    await asyncio.sleep(0.3)
    os.kill(pid, signal.SIGCONT)


def test_thousands_of_loans_that_end_at_once_are_all_heard_of(crew: Crew) -> None:
    pair(crew)
    crew.together(many_parts)


async def over_tcp(here: Here, rank: int, size: int) -> None:
    """A play: where memory can't be shared, an array of `alloc` goes as any other."""
    world = here.worlds["w"]
    if rank == 0:
        array = filled(world, 1)
        await world.send_async(array, dst=1)
        assert not array.flags.writeable
    else:
        got = await world.recv_async(src=0)
        assert np.array_equal(got, expected(1)) and got.flags.writeable


def test_over_tcp_it_is_an_array_as_any_other(crew: Crew) -> None:
    pair(crew, "tcp")
    crew.together(over_tcp)


async def rotate(here: Here, rank: int, size: int, count: int) -> tuple[int, int, int]:
    """A play: many, of which the receiver keeps three; returns slabs, free ones, and loans."""
    world = here.worlds["w"]
    lender = here.manager._meet.place.lender  # type: ignore[union-attr]
    kept: list[Array] = []
    for number in range(count):
        if rank == 0:
            await world.send_async(filled(world, number), dst=1)
        else:
            kept = [*kept[-2:], await world.recv_async(src=0)]
            for back, array in enumerate(reversed(kept)):
                assert np.array_equal(array, expected(number - back))
        if number % 10 == 9:  # else rank 0 may have sent all before the first one is read
            await world.barrier_async()
    kept.clear()
    if rank == 0:
        await until(lambda: lender.counts()[2] == 0)
    counts: tuple[int, int, int] = lender.counts()
    return counts


def test_memory_is_used_anew_when_nobody_has_an_array_on_it(crew: Crew) -> None:
    pair(crew)
    (slabs, free, loans), _ = crew.together(rotate, 60)
    assert slabs == free < 60 and loans == 0


async def keep(here: Here, rank: int, size: int, ends: str) -> str:
    """A play: rank 1 keeps what it has, and reads what it has not read, when rank 0 has gone."""
    world = here.worlds["w"]
    if rank == 0:
        for number in (1, 2):
            await world.send_async(filled(world, number), dst=1)
        if ends == "leaves":
            await world.leave_async()
            here.manager.close()
        return "sent"
    first = await world.recv_async(src=0)
    here.kept["first"] = first
    if ends == "leaves":
        await until(lambda: 0 in world.membership.gone)
        second = await world.recv_async(src=0)
        assert np.array_equal(second, expected(2))
    return "kept"


async def look(here: Here, is_broken: bool) -> None:
    """A play: what was kept is as it was."""
    if is_broken:
        with pytest.raises(worlds.WorldBrokenError):
            while True:
                await here.worlds["w"].recv_async(src=0)
    assert np.array_equal(here.kept["first"], expected(1))


@pytest.mark.parametrize("ends", ["leaves", "dies"])
def test_an_array_outlives_who_has_given_it_away(crew: Crew, ends: str) -> None:
    pair(crew)
    giver, taker = crew.members
    assert crew.together(keep, ends) == ["sent", "kept"]
    if ends == "dies":
        os.kill(giver.pid, signal.SIGKILL)
    taker.ask(look, ends == "dies")


async def end_with_loans(here: Here, rank: int, size: int) -> tuple[int, int, int]:
    """A play: the world ends while the receiver has an array; its memory serves no other."""
    world = here.worlds["w"]
    lender = here.manager._meet.place.lender  # type: ignore[union-attr]
    if rank == 0:
        await world.send_async(filled(world, 1), dst=1)
        await world.barrier_async()
        world.abort("enough")
        here.manager.remove_world("w")
        await until(lambda: lender.counts() == (0, 0, 0))
    else:
        first = await world.recv_async(src=0)
        await world.barrier_async()
        with pytest.raises(worlds.WorldBrokenError):
            await world.recv_async(src=0)
        await asyncio.sleep(0.1)
        assert np.array_equal(first, expected(1))
    counts: tuple[int, int, int] = lender.counts()
    return counts


def test_memory_that_may_be_read_for_ever_serves_no_other_array(crew: Crew) -> None:
    pair(crew)
    assert crew.together(end_with_loans) == [(0, 0, 0)] * 2


async def mistakes(here: Here, rank: int, size: int) -> None:
    """A play: what is no array of memory, and who fits no buffer."""
    world = here.worlds["w"]
    with pytest.raises(HopliteError, match="objects"):
        world.alloc(3, object)
    for arguments, words in (
        (((2, -1),), "negative"),
        ((-1,), "negative"),
        ((2.5,), "shape=2.5 is a float; give a whole number"),
        (((2, "3"),), "shape='3' is a str; give a whole number"),
        ((None,), "shape=None is a NoneType; give a whole number"),
        ((3, "no such"), "dtype='no such' is none .*; give numpy's"),
        ((1 << 70,), "B of memory to share: .*; let go of arrays"),
    ):
        with pytest.raises(HopliteError, match=words):
            world.alloc(*arguments)
    assert world.alloc(()).shape == () and world.alloc((0, 3)).size == 0
    for shape in (np.int64(6), np.array([2, 3]), (np.uint8(3), 2), [6]):
        assert world.alloc(shape).size == 6
    if rank == 0:
        array = world.alloc(LENT_BYTES_MIN, np.uint8)
        with pytest.raises(HopliteError, match="no other rank"):
            await world.send_async(array, dst=7)
        assert array.flags.writeable
        await world.send_async(array, dst=1)
    with pytest.raises(worlds.WorldBrokenError, match="does not fit"):
        await world.recv_async(np.zeros(3), src=1 - rank)


def test_mistakes_are_told(crew: Crew) -> None:
    pair(crew)
    crew.together(mistakes)


async def give_to_a_frozen_one(here: Here, name: str) -> str:
    """A play: what is given to a process that is stopped ends with the world."""
    world = here.worlds[name]
    with pytest.raises(worlds.WorldBrokenError) as ended:
        await world.send_async(world.alloc(1_000_000), dst=1 - world.rank)
        while True:
            await world.recv_async(src=1 - world.rank)
    return ended.value.cause


def test_a_gift_to_a_process_that_is_stopped_ends_with_its_world(crew: Crew) -> None:
    giver, stopped = crew.muster(2)
    crew.together(join, "w", free_address())
    stopped.signal(signal.SIGSTOP)
    try:
        assert giver.ask(give_to_a_frozen_one, "w") == "FROZEN"
    finally:
        stopped.signal(signal.SIGCONT)
