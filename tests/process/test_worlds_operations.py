"""Every operation of a world, over every transport, between real processes: right values only."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hoplite_ray import worlds
from tests.process.world_crew import Crew, Here, doing, free_address, join

TRANSPORTS = ("tcp", "shared_memory")
# Nothing, one element, odd sizes, the limits of collectives (64 KiB, blocks of 512 KiB), and more.
COUNTS = (0, 1, 1023, (64 << 10) // 4, (64 << 10) // 4 + 1, 300_001)
BIG_BYTES = 24 << 20

Array = np.ndarray[Any, Any]


def numbers(rank: int, count: int, dtype: Any = np.float32) -> Array:
    """What a rank gives, exact in each dtype whatever the order of sums."""
    return ((np.arange(count) + rank) % 7 + 1).astype(dtype)


def check(found: Any, expected: Array) -> None:
    found = np.asarray(found)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected), (found[:5], expected[:5])


def check_all(found: list[Any], expected: list[Array]) -> None:
    assert len(found) == len(expected)
    for each, wanted in zip(found, expected, strict=True):
        check(each, wanted)


async def all_operations(here: Here, rank: int, size: int, blocking: bool) -> str:
    """A play: every collective with every count, root and op."""
    do = doing(here.worlds["w"], blocking=blocking)
    for count in COUNTS:
        everyone = [numbers(each, count) for each in range(size)]
        for root in {0, size - 1}:
            array = numbers(rank, count)
            assert await do("broadcast", array, src=root) is array
            check(array, everyone[root])
            array = numbers(rank, count)
            await do("reduce", array, dst=root)
            check(array, sum(everyone[1:], everyone[0]) if rank == root else everyone[rank])
            gathered = await do("gather", numbers(rank, count), dst=root)
            assert (gathered is None) == (rank != root)
            check_all(gathered or [], everyone if rank == root else [])
            into = np.zeros(count, np.float32)
            given = [numbers(each + 3, count) for each in range(size)] if rank == root else None
            assert await do("scatter", given, src=root, into=into) is into
            check(into, numbers(rank + 3, count))
        check_all(await do("all_gather", numbers(rank, count)), everyone)
        for op, fold in (("sum", np.add), ("prod", np.multiply), ("min", np.minimum)):
            array = numbers(rank, count)
            assert await do("all_reduce", array, op=op) is array
            check(array, fold.reduce(everyone))
        await do("barrier")
    return "done"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_collective_gives_every_member_the_right_values(
    crew: Crew, size: int, transport: str
) -> None:
    crew.muster(size)
    address = free_address()
    assert crew.together(join_by, "w", address, transport) == [{transport}] * size
    assert crew.together(all_operations, False) == ["done"] * size
    if size == 2:
        assert crew.together(all_operations, True) == ["done"] * size


async def join_by(
    here: Here, rank: int, size: int, name: str, address: str, transport: str
) -> set[str]:
    await join(here, rank, size, name, address, transport=transport)
    return set(here.worlds[name].transports.values())


async def large(here: Here, rank: int, size: int, size_bytes: int) -> None:
    """A play: every operation once, of two members, with much."""
    world = here.worlds["w"]
    own = np.arange(size_bytes // 4, dtype=np.uint32) + rank
    other = own + 1 - 2 * rank
    both = [own, other] if rank == 0 else [other, own]
    into = np.zeros_like(own)
    if rank == 0:
        await world.send_async(own, dst=1)
    else:
        assert await world.recv_async(into, src=0) is into
        check(into, other)
    check(await world.broadcast_async(own.copy(), src=1), both[1])
    check(await world.all_reduce_async(own.copy()), own + other)
    reduced = await world.reduce_async(own.copy(), dst=0)
    check(reduced, own + other if rank == 0 else own)
    check_all(await world.all_gather_async(own), both)
    check_all(await world.gather_async(own, dst=1) or [], both if rank == 1 else [])
    check(await world.scatter_async(both if rank == 0 else None, src=0, into=into), own)
    await world.barrier_async()


@pytest.mark.parametrize("mib", [32, pytest.param(128, marks=pytest.mark.slow)])  # GBs of memory
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_operation_carries_much(crew: Crew, transport: str, mib: int) -> None:
    crew.muster(2)
    assert crew.together(join_by, "w", free_address(), transport) == [{transport}] * 2
    crew.together(large, mib << 20)


async def give_and_take(here: Here, rank: int, size: int) -> None:
    """A play: rank 0 sends what rank 1 receives, in order, in every way there is."""
    world = here.worlds["w"]
    arrays = [numbers(3, count, dtype) for count in COUNTS for dtype in ("float64", "int8", "?")]
    arrays += [numbers(0, 12).reshape(3, 4), np.arange(12).reshape(3, 4).T[1:], np.array(7.5)]
    arrays += [numbers(0, BIG_BYTES, np.uint8), numbers(1, 5, ml_dtypes.bfloat16)]
    arrays += [np.arange(5).astype(">f4"), np.arange(3).astype("M8[s]"), np.array(["ab", "c"])]
    if rank == 0:
        for array in arrays:
            await world.send_async(array, dst=1)
            await asyncio.to_thread(world.send, array, dst=1)
        await asyncio.gather(*(world.send_async(array, dst=1) for array in arrays))
        assert np.array_equal(await world.recv_async(src=1), arrays[0])
        return
    for array in arrays:
        into = np.empty(array.shape, array.dtype)
        assert await world.recv_async(into, src=0) is into
        check(into, array)
        check(world.recv(src=0), array)
    both = [world.recv_async(src=0) for _ in arrays]
    for found, array in zip(await asyncio.gather(*both), arrays, strict=True):
        check(found, array)
        assert found.shape == array.shape and found.flags.writeable
    await world.send_async(arrays[0], dst=0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_arrive_in_order_with_their_dtypes_and_shapes(crew: Crew, transport: str) -> None:
    crew.muster(2)
    crew.together(join_by, "w", free_address(), transport)
    crew.together(give_and_take)


async def many_worlds(here: Here, rank: int, size: int, address: str, transport: str) -> None:
    """A play: 16 worlds at once, messages and collectives of all of them interleaved."""
    names = [f"w{number}" for number in range(16)]
    await asyncio.gather(
        *(join(here, rank, size, name, address, transport=transport) for name in names)
    )

    async def play(number: int) -> None:
        world = here.worlds[f"w{number}"]
        for step in range(20):
            count = (number * 977 + step * 331) % 40_000
            array = np.full(count, rank + number, np.float64)
            await world.all_reduce_async(array)
            check(array, np.full(count, number * size + sum(range(size)), np.float64))
            ahead, behind = (rank + 1) % size, (rank - 1) % size
            sent = asyncio.create_task(world.send_async(numbers(step, count), dst=ahead))
            check(await world.recv_async(src=behind), numbers(step, count))
            await sent

    await asyncio.gather(*map(play, range(16)))
    await asyncio.gather(*(here.worlds[name].leave_async() for name in names))
    assert {here.worlds[name].state for name in names} == {worlds.State.CLOSED}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sixteen_worlds_do_not_mix(crew: Crew, transport: str) -> None:
    crew.muster(3)
    crew.together(many_worlds, free_address(), transport)


def other_dtype(world: worlds.World) -> Any:
    return world.recv_async(np.empty(3, np.int32), src=0)


def other_size(world: worlds.World) -> Any:
    return world.recv_async(np.empty(4, np.float32), src=0)


def other_operation(world: worlds.World) -> Any:
    return world.all_gather_async(np.empty(3, np.float32))


async def mismatch(here: Here, rank: int, size: int, wrong: Any, collective: bool) -> str:
    """A play: rank 1 does something else than rank 0; their other world carries on."""
    world, other = here.worlds["w"], here.worlds["other"]
    try:
        if rank == 0 and collective:
            await world.broadcast_async(np.zeros(3, np.float32), src=0)
        elif rank == 0:
            await world.send_async(np.zeros(3, np.float32), dst=1)
        else:
            await wrong(world)
        await world.recv_async(src=1 - rank)
    except worlds.WorldBrokenError as error:
        assert (error.world, error.epoch) == ("w", 1)
        total = np.ones(3)
        await other.all_reduce_async(total)
        check(total, np.full(3, 2.0))
        assert (world.state, other.state) == (worlds.State.BROKEN, worlds.State.READY)
        return error.cause
    raise AssertionError("it did not break")


@pytest.mark.parametrize(
    ("wrong", "collective"), [(other_dtype, False), (other_size, False), (other_operation, True)]
)
def test_a_mismatch_breaks_this_world_only(crew: Crew, wrong: Any, collective: bool) -> None:
    crew.muster(2)
    address = free_address()
    for name in ("w", "other"):
        crew.together(join, name, address)
    assert crew.together(mismatch, wrong, collective) == ["PROTOCOL"] * 2


async def same_bits(here: Here, rank: int, size: int) -> list[bytes]:
    """A play: sums of what no order of adding leaves alone."""
    world = here.worlds["w"]
    sums = []
    for count in (1000, 100_000):
        array = np.random.default_rng(rank).random(count, np.float32)
        sums.append((await world.all_reduce_async(array)).tobytes())
    return sums


@pytest.mark.parametrize("size", [2, 4])
def test_all_members_get_the_same_bits_of_a_sum(crew: Crew, size: int) -> None:
    crew.muster(size)
    crew.together(join, "w", free_address())
    sums = crew.together(same_bits)
    assert all(each == sums[0] for each in sums)


async def a_member_alone(here: Here, rank: int, size: int, address: str) -> None:
    world = await here.join_async("alone", rank=0, size=1, rendezvous=address)
    array = np.arange(4.0)
    for op, root in itertools.product(("sum", "max"), (0,)):
        check(await world.all_reduce_async(array, op=op), np.arange(4.0))
        check(await world.reduce_async(array, dst=root, op=op), np.arange(4.0))
    check(await world.broadcast_async(array, src=0), np.arange(4.0))
    assert len(await world.all_gather_async(array)) == 1
    check(await world.scatter_async([array], src=0), np.arange(4.0))
    await world.barrier_async()
    await world.leave_async()


def test_a_world_may_have_one_member(crew: Crew) -> None:
    crew.muster(1)
    crew.together(a_member_alone, free_address())
