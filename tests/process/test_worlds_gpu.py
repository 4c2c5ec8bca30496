"""Arrays on GPUs, over the library that stands in for NCCL: right values, and mismatches."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from tests.process.fake_gpu import OnFake, equip, fake, join, numbers, ready, zeros
from tests.process.world_crew import Crew, Here, doing, free_address

COUNTS = (0, 1, 1023, 300_001, 2_000_000)


async def all_operations(here: Here, rank: int, size: int, blocking: bool) -> None:
    """A play: every operation with every count."""
    do = doing(here.worlds["w"], blocking=blocking)
    for count in COUNTS:
        everyone = [numbers(each, count) for each in range(size)]
        root = size - 1
        array = OnFake(numbers(rank, count))
        assert await do("broadcast", array, src=root) is array
        assert np.array_equal(array.array, everyone[root])
        array = OnFake(numbers(rank, count))
        await do("reduce", array, dst=root)
        assert np.array_equal(array.array, sum(everyone) if rank == root else everyone[rank])
        for op, fold in (("sum", np.add), ("prod", np.multiply), ("min", np.minimum)):
            array = OnFake(numbers(rank, count))
            assert await do("all_reduce", array, op=op) is array
            assert np.array_equal(array.array, fold.reduce(everyone))
        array = OnFake(numbers(rank, count))
        assert await do("all_reduce", array, op="mean") is array
        assert np.allclose(array.array, sum(everyone) / np.float32(size))
        share = np.array_split(sum(everyone), size)[rank]
        for op, expected in (("sum", share), ("mean", share / np.float32(size))):
            array, into = OnFake(numbers(rank, count)), zeros(share.size)
            assert await do("reduce_scatter", array, op=op, into=into) is into
            assert np.allclose(into.array, expected)
            assert np.array_equal(array.array, everyone[rank]), "what is folded stays"
        whole = np.zeros((size, count), np.float32)
        for out in ([OnFake(row) for row in whole], [zeros(count) for _ in range(size)]):
            gathered = await do("all_gather", OnFake(everyone[rank]), out=out)
            assert all(map(np.array_equal, (each.array for each in gathered), everyone))
        out = [zeros(count) for _ in range(size)]
        gathered = await do("gather", OnFake(everyone[rank]), dst=root, out=out)
        assert (gathered is None) == (rank != root)
        assert rank != root or all(map(np.array_equal, (each.array for each in out), everyone))
        given = [OnFake(each + 3) for each in everyone] if rank == root else None
        into = zeros(count)
        assert await do("scatter", given, src=root, into=into) is into
        assert np.array_equal(into.array, everyone[rank] + 3)
        await do("barrier")


@pytest.mark.parametrize(("size", "faults"), [(2, ""), (3, ""), (2, "launch_is_slow")])
def test_every_operation_gives_every_member_the_right_values(
    gpus: Crew, size: int, faults: str
) -> None:
    ready(gpus, size, "w", faults=faults)
    gpus.together(all_operations, False)
    if not faults:
        gpus.together(all_operations, True)


async def messages(here: Here, rank: int, size: int) -> int:
    """A play: both ways at once, in order, between all, with memory of the CPU in between."""
    world = here.worlds["w"]
    kinds = ("?", "i1", "u8", "f2", "f4", "f8", "c16", "M8[s]")
    sent = [numbers(rank, 1000 + number, kind) for number, kind in enumerate(kinds)]
    if rank == 0:
        sent.append(np.ones(9_000_000, np.float32))

    async def give(other: int) -> None:
        for each in sent:
            await world.send_async(OnFake(each), dst=other)
            await world.send_async(each[:5], dst=other)
        # At once: each is received in the order in which it was sent.
        await asyncio.gather(*(world.send_async(OnFake(each), dst=other) for each in sent))

    async def take(other: int) -> None:
        theirs = [numbers(other, 1000 + number, kind) for number, kind in enumerate(kinds)]
        if other == 0:
            theirs.append(np.ones(9_000_000, np.float32))
        for each in theirs:
            into = OnFake(np.zeros_like(each))
            assert await world.recv_async(into, src=other) is into
            assert np.array_equal(into.array, each)
            assert np.array_equal(await world.recv_async(src=other), each[:5])
        intos = [OnFake(np.zeros_like(each)) for each in theirs]
        await asyncio.gather(*(world.recv_async(into, src=other) for into in intos))
        assert all(map(np.array_equal, (into.array for into in intos), theirs))

    others = [other for other in range(size) if other != rank]
    await asyncio.gather(*map(give, others), *map(take, others))
    total = OnFake(np.ones(3))
    await asyncio.gather(world.all_reduce_async(total), *map(give, others), *map(take, others))
    assert total.array.tolist() == [size] * 3
    await world.leave_async()
    return fake().fake_aborted()


@pytest.mark.parametrize("size", [2, 3])
def test_messages_go_both_ways_at_once_in_order(gpus: Crew, size: int) -> None:
    ready(gpus, size, "w")
    assert gpus.together(messages) == [0] * size


async def after_a_stream(here: Here, rank: int, size: int) -> None:
    """A play: rank 0 sends what a kernel still writes."""
    world, library = here.worlds["w"], fake()
    array = np.zeros(1000, np.uint8)
    if rank == 1:
        into = OnFake(array, stream=1)
        await world.recv_async(into, src=0)
        assert (array == 7).all()
        return
    stream = ctypes.c_void_p()
    library.cuStreamCreate(ctypes.byref(stream), 0)
    library.fake_fill(stream, array.ctypes.data_as(ctypes.c_void_p), 7, ctypes.c_size_t(1000), 300)
    await world.send_async(OnFake(array, stream.value), dst=1)
    with pytest.raises(InvalidArgumentError, match="on different streams"):
        await world.all_gather_async(OnFake(array, 1), out=[OnFake(array, 2), OnFake(array, 2)])


def test_a_transfer_comes_after_what_its_arrays_stream_has_to_do(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    gpus.together(after_a_stream)


async def mismatch(here: Here, rank: int, size: int, what: str) -> tuple[str, int, float]:
    """A play: the two do different things; their other world carries on, and nothing was begun."""
    world, library = here.worlds["w"], fake()
    here_is, there_is = {
        "size": (zeros(3), zeros(4)),
        "dtype": (zeros(3), zeros(3, np.int32)),
        "cpu": (zeros(3), np.zeros(3, np.float32)),
        "gpu": (np.zeros(3, np.float32), zeros(3)),
        "collective": (zeros(3), zeros(4)),
        "kinds": (zeros(3), np.zeros(3, np.float32)),
    }[what]
    try:
        if what in ("collective", "kinds"):
            await world.all_reduce_async(there_is if rank else here_is)
        elif rank == 0:
            await world.send_async(here_is, dst=1)
        else:
            await world.recv_async(there_is, src=0)
        await world.recv_async(src=1 - rank)
    except worlds.WorldBrokenError as error:
        launched = library.fake_launched()
        total = OnFake(np.ones(3))
        await here.worlds["other"].all_reduce_async(total)
        return error.cause, launched, float(total.array.sum())
    raise AssertionError("it did not break")


@pytest.mark.parametrize("what", ["size", "dtype", "cpu", "gpu", "collective", "kinds"])
def test_a_mismatch_breaks_this_world_only_and_begins_nothing(gpus: Crew, what: str) -> None:
    ready(gpus, 2, "w", "other")
    assert gpus.together(mismatch, what) == [("PROTOCOL", 0, 6.0)] * 2


def wrong_calls(world: Any, array: OnFake, there: OnFake, rank: int) -> list[Any]:
    """Calls of rank `rank` that are refused, with the error and a part of its text."""
    return [
        (
            lambda: world.send_async(there, dst=1 - rank),
            InvalidArgumentError,
            "is on GPU 1, and this wo",
        ),
        (lambda: world.send_async(array, dst=rank), InvalidArgumentError, "is no other rank"),
        (lambda: world.send_async(array, dst=2), InvalidArgumentError, "is no other rank"),
        (
            lambda: world.send_async(OnFake(np.zeros((2, 2)).T), dst=1 - rank),
            InvalidArgumentError,
            "contiguous",
        ),
        (
            lambda: world.recv_async(OnFake(np.frombuffer(b"1234", np.uint8)), src=1 - rank),
            InvalidArgumentError,
            "must be writable",
        ),
        (
            lambda: world.all_reduce_async(zeros(3, np.bool_)),
            InvalidArgumentError,
            "can't fold bool",
        ),
        (
            lambda: world.all_reduce_async(array, op="median"),
            InvalidArgumentError,
            "op='median' is unknown",
        ),
        (
            lambda: world.all_reduce_async(zeros(3, np.int32), op="mean"),
            InvalidArgumentError,
            "op='mean' can't fold int32; use 'sum' and divide",
        ),
        (
            lambda: world.reduce_scatter_async(zeros(4)),
            InvalidArgumentError,
            "no OnFake can be made here; give into=",
        ),
        (
            lambda: world.reduce_scatter_async(zeros(4), into=zeros(4)),
            InvalidArgumentError,
            "not of one dtype and size",
        ),
        (lambda: world.all_gather_async(array), InvalidArgumentError, "no OnFake can be made"),
        (
            lambda: world.all_gather_async(array, out=[array]),
            InvalidArgumentError,
            "takes 2 arrays",
        ),
        (
            lambda: world.all_gather_async(array, out=[zeros(3), zeros(4)]),
            InvalidArgumentError,
            "not of one dtype and size",
        ),
        (
            lambda: world.all_gather_async(array, out=[zeros(3), np.zeros(3)]),
            WrongTypeError,
            "is not on a GPU",
        ),
    ]


async def mistakes(here: Here, rank: int, size: int) -> None:
    """A play: what costs a world nothing."""
    world, array = here.worlds["w"], zeros(3)
    if rank == 0:
        await world.send_async(OnFake(np.arange(3.0)), dst=1)
    else:
        with pytest.raises(InvalidArgumentError, match=r"rank 0 sent float64\[3\] \(24 B\) on its"):
            await world.recv_async(src=0)
        into = zeros(3, np.float64)
        await world.recv_async(into, src=0)
        assert into.array.tolist() == [0, 1, 2]
    there = OnFake(np.zeros(3, np.float32))
    fake().fake_move(ctypes.c_void_p(there.array.ctypes.data))
    for call, error, words in wrong_calls(world, array, there, rank):
        with pytest.raises(error, match=words):
            await call()
    with pytest.raises(worlds.WorldTimeoutError, match="the world stays usable"):
        await world.recv_async(array, src=1 - rank, timeout_s=0.01)
    await world.all_reduce_async(array)
    await world.leave_async()
    assert world.state is worlds.State.CLOSED


def test_mistakes_of_a_caller_cost_the_world_nothing(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    gpus.together(mistakes)


async def alone(here: Here, address: str) -> None:
    """A play: a world of one."""
    await join(here, 0, 1, "w", address, {})
    await all_operations(here, 0, 1, False)
    await here.worlds["w"].leave_async()


def test_a_world_may_have_one_member(gpus: Crew) -> None:
    (member,) = gpus.muster(1)
    member.ask(equip)
    member.ask(alone, free_address())
