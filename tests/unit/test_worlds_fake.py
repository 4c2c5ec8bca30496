"""Worlds over the fake: every byte is let through by the test, and members die between any two."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from hoplite_ray._native import FakeWire, WorldPort
from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.worlds import State, World, WorldBrokenError, WorldTimeoutError
from hoplite_ray.worlds.gpu.nccl import Gpu
from hoplite_ray.worlds.lending.borrower import Borrower
from hoplite_ray.worlds.lending.lender import Lender
from hoplite_ray.worlds.lending.loans import Loans
from hoplite_ray.worlds.ops.membership import Membership

SIZE = 3
CAUSES = {1: "PEER_DIED", 2: "UNREACHABLE", 3: "FROZEN"}
# One message, many frames of a flat collective, and a line or a ring in blocks of 512 KiB.
COUNTS = (5, 10_000, 300_001)

Play = Callable[[World, int], Awaitable[Any]]


def nothing_lent() -> Loans:
    """What a world has that lends nothing: its members are one process."""
    loop = asyncio.new_event_loop()
    loop.close()
    return Loans(Lender(loop), Borrower(loop), 1, {}, nowhere)


async def nowhere(rank: int) -> socket.socket:
    raise ConnectionRefusedError(f"rank {rank} is here")


class Crew:
    """Members of one world in one process, each with a port of its own, and the wires between."""

    def __init__(self, size: int) -> None:
        self.ports = [WorldPort(suspect_s=9.0, dead_s=9.0, cut_s=9.0) for _ in range(size)]
        edges = [port.open_world("w", 1, rank, size) for rank, port in enumerate(self.ports)]
        self.wires: dict[tuple[int, int], FakeWire] = {}
        for a, b in itertools.combinations(range(size), 2):
            wire = self.wires[a, b] = FakeWire()
            edges[a].add_fake_edge(b, wire, is_first=True)
            edges[b].add_fake_edge(a, wire, is_first=False)
        self.worlds = [
            World(
                Membership("w", 1, rank, size, each, Gpu("the fake has none"), nothing_lent()), self
            )
            for rank, each in enumerate(edges)
        ]

    def events(self, world: World | None = None) -> Any:
        """No test of this file asks; they look at the worlds' states."""
        pytest.fail("there is nobody here who hears of events")

    def end(self, world: World, *, is_left: bool = False) -> None:
        """As a manager does."""
        world.membership.edges.close()

    def hold(self) -> None:
        """From now on nothing passes that `deliver` does not let through."""
        for wire in self.wires.values():
            wire.hold()

    def release(self) -> None:
        """Everything passes again."""
        for wire in self.wires.values():
            wire.release()

    def deliver(self, size_bytes: int) -> int:
        """Let so much through, on each way; returns how much there was."""
        return sum(
            wire.deliver(to_first=to_first, size_bytes=size_bytes)
            for wire in self.wires.values()
            for to_first in (True, False)
        )

    def end_of(self, victim: int, cause: int) -> None:
        """All others find that a member is gone, and it that they are."""
        of_victim = [(pair, wire) for pair, wire in self.wires.items() if victim in pair]
        for pair, wire in of_victim:
            wire.end(at_first=pair[1] == victim, cause=cause)
        for pair, wire in of_victim:
            wire.end(at_first=pair[0] == victim, cause=cause)


@contextlib.asynccontextmanager
async def crew(size: int = SIZE) -> AsyncIterator[Crew]:
    made = Crew(size)
    try:
        yield made
    finally:
        for port in made.ports:
            port.close()


def in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a coroutine as a test. pytest reads the arguments from the function itself."""

    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 60.0))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


def numbers(rank: int, count: int) -> np.ndarray[Any, Any]:
    return ((np.arange(count) + rank) % 7 + 1).astype(np.float32)


TOTAL = {count: sum(numbers(rank, count) for rank in range(SIZE)) for count in COUNTS}


async def all_reduce(world: World, count: int) -> None:
    array = numbers(world.rank, count)
    await world.all_reduce_async(array)
    assert np.array_equal(array, TOTAL[count])


async def reduce(world: World, count: int) -> None:
    array = numbers(world.rank, count)
    await world.reduce_async(array, dst=1)
    assert np.array_equal(array, TOTAL[count] if world.rank == 1 else numbers(world.rank, count))


async def reduce_scatter(world: World, count: int) -> None:
    rows = await world.reduce_scatter_async(numbers(world.rank, count))
    assert np.array_equal(rows, np.array_split(TOTAL[count], SIZE)[world.rank])


async def mean(world: World, count: int) -> None:
    array = numbers(world.rank, count).astype(np.float16)
    await world.all_reduce_async(array, op="mean")
    assert np.array_equal(array, (TOTAL[count] / np.float32(SIZE)).astype(np.float16))


async def broadcast(world: World, count: int) -> None:
    array = numbers(world.rank, count)
    await world.broadcast_async(array, src=2)
    assert np.array_equal(array, numbers(2, count))


async def all_gather(world: World, count: int) -> None:
    for rank, each in enumerate(await world.all_gather_async(numbers(world.rank, count))):
        assert np.array_equal(each, numbers(rank, count))


async def gather(world: World, count: int) -> None:
    for rank, each in enumerate(await world.gather_async(numbers(world.rank, count), dst=0) or ()):
        assert np.array_equal(each, numbers(rank, count))


async def scatter(world: World, count: int) -> None:
    given = [numbers(rank + 3, count) for rank in range(SIZE)] if world.rank == 0 else None
    into = np.zeros(count, np.float32)
    await world.scatter_async(given, src=0, into=into)
    assert np.array_equal(into, numbers(world.rank + 3, count))


async def barrier(world: World, count: int) -> None:
    await world.barrier_async()


async def pass_around(world: World, count: int) -> None:
    after, before = (world.rank + 1) % SIZE, (world.rank - 1) % SIZE
    into = np.empty(count, np.float32)
    await asyncio.gather(
        world.send_async(numbers(world.rank, count), dst=after), world.recv_async(into, src=before)
    )
    assert np.array_equal(into, numbers(before, count))


PLAYS = (
    *(all_reduce, reduce, reduce_scatter, mean, broadcast, all_gather, gather, scatter, barrier),
    pass_around,
)


async def carried(made: Crew, tasks: list[asyncio.Task[Any]], piece: Callable[[], int]) -> int:
    """Let pieces through until all tasks have ended; returns how many."""
    pieces = 0
    while not all(task.done() for task in tasks):
        pieces += made.deliver(piece()) > 0
        await asyncio.sleep(0)
    return pieces


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("play", PLAYS)
@in_a_loop
async def test_operations_are_right_however_their_bytes_are_cut(play: Play, count: int) -> None:
    chance = random.Random(f"{play.__name__}{count}")
    async with crew() as made:
        made.hold()
        for most in (7, 100_000):
            if count * 4 // most > 2_000:
                continue
            tasks = [asyncio.create_task(play(world, count)) for world in made.worlds]
            await carried(made, tasks, lambda most=most: chance.randint(1, most))
            await asyncio.gather(*tasks)
        made.release()
        await asyncio.gather(*(world.leave_async() for world in made.worlds))


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("play", PLAYS)
@in_a_loop
async def test_a_member_that_goes_at_any_step_ends_it_for_all(play: Play, cause: int) -> None:
    count, piece = 10_000, 9_000
    async with crew() as made:
        made.hold()
        tasks = [asyncio.create_task(play(world, count)) for world in made.worlds]
        steps = await carried(made, tasks, lambda: piece)
        await asyncio.gather(*tasks)
    for step in range(steps + 1):
        victim = step % SIZE
        async with crew() as made:
            made.hold()
            tasks = [asyncio.create_task(play(world, count)) for world in made.worlds]
            passed = 0
            while passed < step and not all(task.done() for task in tasks):
                passed += made.deliver(piece) > 0
                await asyncio.sleep(0)
            made.end_of(victim, cause)
            made.release()
            for task in tasks:  # right values, or that the world has ended
                with contextlib.suppress(WorldBrokenError):
                    await task
            for world in made.worlds:
                with pytest.raises(WorldBrokenError) as ended:
                    await world.recv_async(src=(world.rank + 1) % SIZE)
                assert world.state is State.BROKEN
                if world.rank != victim:
                    assert (ended.value.rank, ended.value.cause) == (victim, CAUSES[cause])


@in_a_loop
async def test_collectives_called_at_once_go_one_after_the_other() -> None:
    count = 3_000_000  # 12 MB: more than a window, which the later one would fill

    async def play(world: World) -> None:
        arrays = [numbers(world.rank + i, count) for i in range(3)]
        if world.rank == 0:
            await asyncio.gather(*(world.all_reduce_async(array) for array in arrays))
        elif world.rank == 1:
            first = asyncio.create_task(world.all_reduce_async(arrays[0]))
            await asyncio.sleep(0)
            await asyncio.to_thread(world.all_reduce, arrays[1])
            await world.all_reduce_async(arrays[2])
            await first
        else:
            for array in arrays:
                await world.all_reduce_async(array)
        for i, array in enumerate(arrays):
            total = sum(numbers(rank + i, count) for rank in range(SIZE))
            assert np.array_equal(array, total)

    async with crew() as made:
        await asyncio.gather(*(play(world) for world in made.worlds))


@pytest.mark.parametrize(
    "calls",
    [
        lambda world: world.all_reduce_async(np.ones(3), op="max" if world.rank else "sum"),
        lambda world: world.barrier_async() if world.rank else world.all_reduce_async(np.ones(3)),
        lambda world: world.all_gather_async(np.ones(3 + world.rank)),
        lambda world: world.reduce_scatter_async(np.ones(4), op="mean" if world.rank else "sum"),
        lambda world: world.reduce_scatter_async(np.ones(4 + 2 * world.rank)),
    ],
    ids=["op", "name", "shape", "op of a reduce-scatter", "shape of a reduce-scatter"],
)
@in_a_loop
async def test_members_that_call_different_things_are_told(calls: Any) -> None:
    async with crew(2) as made:
        calls_of_all = (calls(world) for world in made.worlds)
        ended = await asyncio.gather(*calls_of_all, return_exceptions=True)
        with contextlib.suppress(WorldBrokenError):
            await made.worlds[0].recv_async(src=1)
        with contextlib.suppress(WorldBrokenError):
            await made.worlds[1].recv_async(src=0)
        assert any(isinstance(each, WorldBrokenError) for each in ended)
        for world in made.worlds:
            with pytest.raises(WorldBrokenError, match="PROTOCOL"):
                await world.barrier_async()


@in_a_loop
async def test_mistakes_of_a_caller_cost_the_world_nothing() -> None:
    async with crew(2) as made:
        first, second = made.worlds
        array = np.ones(3)
        for call, words in (
            (lambda: first.send_async(array, dst="1"), "dst='1' is a str"),
            (lambda: first.recv_async(src=None), "src=None is a NoneType"),
            (lambda: first.recv_async(array, src=1.0), "src=1.0 is a float"),
            (lambda: first.send_async(array, dst=1, timeout_s="1"), "timeout_s is a str"),
            (
                lambda: first.barrier_async(timeout_s=-1),
                "timeout_s is -1; it takes 0 or more",
            ),
            (
                lambda: first.send_async(np.ma.array(array, mask=[1, 0, 0]), dst=1),
                "mask is not carried",
            ),
            (lambda: first.all_reduce_async(np.zeros(3, "M8[s]")), "can't fold <M8"),
            (lambda: first.all_reduce_async(array, op="median"), "op='median' is unknown"),
            (lambda: first.reduce_async(np.ones(3, int), dst=0, op="mean"), "can't fold int64"),
            (lambda: first.reduce_scatter_async(np.ones(3, int), op="mean"), "can't fold int64"),
            (lambda: first.reduce_scatter_async(np.array(1.0)), "has no dimension; use all_reduce"),
            (lambda: first.reduce_scatter_async(array, into=np.ones(1)), "this rank's 2 rows of"),
            (lambda: first.reduce_scatter_async(array, into=np.ones(2, int)), "can't hold"),
            (
                lambda: first.broadcast_async(array, src=2),
                "src=2 is no rank of world .* ranks 0 to 1",
            ),
            (lambda: first.reduce_async(array, dst=-1), "dst=-1 is no rank of world"),
            (
                lambda: first.gather_async(array, dst=[0]),
                r"dst=\[0\] is a list; give a whole number",
            ),
            (lambda: first.scatter_async(5, src=0), "arrays=5 is a int; give scatter a sequence"),
            (lambda: first.scatter_async(np.ones((3, 3)), src=0), "for each of 2 ranks at its src"),
            *(
                (lambda call=call, rank=rank: call(rank), words)
                for call in (
                    lambda rank: first.send_async(array, dst=rank),
                    lambda rank: first.recv_async(src=rank),
                    lambda rank: first.recv_async(array, src=rank),
                )
                for rank, words in (
                    (-1, "=-1 is no other rank of world .* this is rank 0"),
                    (0, "=0 is no other rank of world"),
                    (2, "=2 is no other rank of world"),
                    (1 << 70, f"={1 << 70} is no other rank of world"),
                    ([1], r"=\[1\] is a list; give a whole number"),
                    ({}, "={} is a dict; give a whole number"),
                )
            ),
        ):
            with pytest.raises((InvalidArgumentError, WrongTypeError), match=words):
                await call()
        await first.send_async(array, dst=np.uint8(1))
        assert (await second.recv_async(np.empty(3), src=np.int64(0))).tolist() == [1.0] * 3
        both = np.arange(6.0).reshape(2, 3)
        calls = (
            each.scatter_async(both, src=np.int64(0), into=np.empty(3)) for each in made.worlds
        )
        parts = await asyncio.gather(*calls)
        assert [part.tolist() for part in parts] == both.tolist()
        await asyncio.gather(first.barrier_async(), second.barrier_async())
        leaves = (first.leave_async(), first.leave_async(), second.leave_async())
        await asyncio.gather(*leaves)
        assert {world.state for world in made.worlds} == {State.CLOSED}


@in_a_loop
async def test_a_reduce_scatter_gives_rows_also_where_there_are_fewer_than_ranks() -> None:
    async with crew(3) as made:
        for shape in ((2, 5), (7, 2), (3,), (0, 4)):
            arrays = [np.arange(np.prod(shape), dtype=float).reshape(shape)] * 3
            calls = (
                world.reduce_scatter_async(array)
                for world, array in zip(made.worlds, arrays, strict=True)
            )
            got = await asyncio.gather(*calls)
            for rows, expected in zip(got, np.array_split(3 * arrays[0], 3), strict=True):
                assert rows.shape == expected.shape and np.array_equal(rows, expected)
        into = [np.empty((1, 2)) for _ in range(3)]
        calls = (
            world.reduce_scatter_async(np.ones((3, 2)), into=each, op="mean")
            for world, each in zip(made.worlds, into, strict=True)
        )
        assert all(a is b for a, b in zip(await asyncio.gather(*calls), into, strict=True))
        assert all(each.tolist() == [[1.0, 1.0]] for each in into)


@in_a_loop
async def test_one_that_waits_for_others_before_it_may_run_out_of_time() -> None:
    async with crew(2) as made:
        first, second = made.worlds
        waits = asyncio.create_task(first.barrier_async())
        await asyncio.sleep(0)
        with pytest.raises(WorldTimeoutError):
            await first.all_reduce_async(np.ones(3), timeout_s=0.01)
        await second.barrier_async()
        await waits
        array = np.ones(3)
        await asyncio.gather(first.all_reduce_async(array), second.all_reduce_async(np.ones(3)))
        assert array.tolist() == [2.0] * 3


@pytest.mark.parametrize("has_buffer", [False, True])
@in_a_loop
async def test_a_message_that_comes_while_its_receive_is_cancelled_is_the_next_ones(
    has_buffer: bool,
) -> None:
    chance = random.Random(has_buffer)
    async with crew(2) as made:
        first, second = made.worlds
        kept = 0
        for number in range(300):
            task = asyncio.create_task(
                second.recv_async(np.empty(1) if has_buffer else None, src=0)
            )
            await asyncio.sleep(0)
            await first.send_async(np.array([number], float), dst=1)
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            if chance.random() < 0.5:  # the message is there, and nobody has been told
                time.sleep(0.001)  # noqa: ASYNC251 - the loop is not to hear of it
            task.cancel()
            try:
                got = await task
            except asyncio.CancelledError:
                kept += second.messages.has_kept(0)
                got = await second.recv_async(
                    np.empty(1) if has_buffer else None, src=0, timeout_s=9.0
                )
            assert got.tolist() == [number]
        assert kept > 0
