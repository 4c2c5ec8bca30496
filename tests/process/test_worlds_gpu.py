"""Arrays on GPUs, with a library in the place of NCCL and CUDA that the native build makes.

It works on the host's memory and over sockets; FAKE_NCCL names its faults. Its kernels wait for a
peer that is gone until they are aborted, as NCCL's do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import HopliteError, InvalidArgumentError, WrongTypeError
from tests.process.world_crew import Crew, Here, Member, crews, free_address

LIBRARY = Path(__file__).parents[2] / "build/editable/libfake_nccl.so"
COUNTS = (0, 1, 1023, 300_001, 2_000_000)
ABORT_S = 5.0  # how long a communicator may take to be ended

Numpy = np.ndarray[Any, Any]


class OnFake:
    """Memory of the host that says that it is a GPU's, as cupy's arrays do."""

    def __init__(self, array: Numpy, stream: int | None = None) -> None:
        self.array = array
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.ctypes.data, not self.array.flags.writeable),
            "strides": None if self.array.flags.c_contiguous else self.array.strides,
            "version": 3,
            "stream": self.stream,
        }


def numbers(rank: int, count: int, dtype: Any = np.float32) -> Numpy:
    return ((np.arange(count) + rank) % 7 + 1).astype(dtype)


def zeros(count: int, dtype: Any = np.float32) -> OnFake:
    return OnFake(np.zeros(count, dtype))


def fake() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARY))


@pytest.fixture(scope="module")
def equipped() -> Iterator[list[Member]]:
    """Members that wait for a test of this module: what they have loaded stays."""
    with crews() as started:
        yield started


@pytest.fixture
def gpus(equipped: list[Member]) -> Iterator[Crew]:
    """As `crew`, of those."""
    made = Crew(equipped)
    yield made
    made.dismiss()


async def equip(here: Here, faults: str = "") -> None:
    """A play: the fake is what this process finds."""
    os.environ["HOPLITE_RAY_NCCL_LIBRARY"] = str(LIBRARY)
    os.environ["HOPLITE_RAY_CUDA_LIBRARY"] = str(LIBRARY)
    os.environ["FAKE_NCCL"] = faults
    fake().fake_forget()


async def join(
    here: Here, rank: int, size: int, name: str, address: str, how: dict[str, Any]
) -> int | None:
    """A play: join a world; returns its GPU."""
    how = {"transport": "nccl", **how}
    return (await here.join(name, rank=rank, size=size, rendezvous=address, **how)).device


def ready(gpus: Crew, size: int, *names: str, faults: str = "", **how: Any) -> None:
    """Members that are in these worlds."""
    for member in gpus.muster(size):
        member.ask(equip, faults)
    address = free_address()
    for name in names:
        assert gpus.together(join, name, address, how) == [0] * size


async def all_operations(here: Here, rank: int, size: int, blocking: bool) -> None:
    """A play: every operation with every count."""
    world: Any = here.worlds["w"].blocking if blocking else here.worlds["w"]

    async def do(name: str, *arguments: Any, **how: Any) -> Any:
        done = getattr(world, name)(*arguments, **how)
        return done if blocking else await done

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
            await world.send(OnFake(each), dst=other)
            await world.send(each[:5], dst=other)
        # At once: each is received in the order in which it was sent.
        await asyncio.gather(*(world.send(OnFake(each), dst=other) for each in sent))

    async def take(other: int) -> None:
        theirs = [numbers(other, 1000 + number, kind) for number, kind in enumerate(kinds)]
        if other == 0:
            theirs.append(np.ones(9_000_000, np.float32))
        for each in theirs:
            into = OnFake(np.zeros_like(each))
            assert await world.recv(into, src=other) is into
            assert np.array_equal(into.array, each)
            assert np.array_equal(await world.recv(src=other), each[:5])
        intos = [OnFake(np.zeros_like(each)) for each in theirs]
        await asyncio.gather(*(world.recv(into, src=other) for into in intos))
        assert all(map(np.array_equal, (into.array for into in intos), theirs))

    others = [other for other in range(size) if other != rank]
    await asyncio.gather(*map(give, others), *map(take, others))
    total = OnFake(np.ones(3))
    await asyncio.gather(world.all_reduce(total), *map(give, others), *map(take, others))
    assert total.array.tolist() == [size] * 3
    await world.leave()
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
        await world.recv(into, src=0)
        assert (array == 7).all()
        return
    stream = ctypes.c_void_p()
    library.cuStreamCreate(ctypes.byref(stream), 0)
    library.fake_fill(stream, array.ctypes.data_as(ctypes.c_void_p), 7, ctypes.c_size_t(1000), 300)
    await world.send(OnFake(array, stream.value), dst=1)
    with pytest.raises(InvalidArgumentError, match="on different streams"):
        await world.all_gather(OnFake(array, 1), out=[OnFake(array, 2), OnFake(array, 2)])


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
            await world.all_reduce(there_is if rank else here_is)
        elif rank == 0:
            await world.send(here_is, dst=1)
        else:
            await world.recv(there_is, src=0)
        await world.recv(src=1 - rank)
    except worlds.WorldBrokenError as error:
        launched = library.fake_launched()
        total = OnFake(np.ones(3))
        await here.worlds["other"].all_reduce(total)
        return error.cause, launched, float(total.array.sum())
    raise AssertionError("it did not break")


@pytest.mark.parametrize("what", ["size", "dtype", "cpu", "gpu", "collective", "kinds"])
def test_a_mismatch_breaks_this_world_only_and_begins_nothing(gpus: Crew, what: str) -> None:
    ready(gpus, 2, "w", "other")
    assert gpus.together(mismatch, what) == [("PROTOCOL", 0, 6.0)] * 2


async def mistakes(here: Here, rank: int, size: int) -> None:
    """A play: what costs a world nothing."""
    world, array = here.worlds["w"], zeros(3)
    if rank == 0:
        await world.send(OnFake(np.arange(3.0)), dst=1)
    else:
        with pytest.raises(InvalidArgumentError, match=r"rank 0 sent float64\[3\] \(24 B\) on its"):
            await world.recv(src=0)
        into = zeros(3, np.float64)
        await world.recv(into, src=0)
        assert into.array.tolist() == [0, 1, 2]
    there = OnFake(np.zeros(3, np.float32))
    fake().fake_move(ctypes.c_void_p(there.array.ctypes.data))
    for call, error, words in (
        (lambda: world.send(there, dst=1 - rank), InvalidArgumentError, "is on GPU 1, and this wo"),
        (lambda: world.send(array, dst=rank), InvalidArgumentError, "is no other rank"),
        (lambda: world.send(array, dst=2), InvalidArgumentError, "is no other rank"),
        (
            lambda: world.send(OnFake(np.zeros((2, 2)).T), dst=1 - rank),
            InvalidArgumentError,
            "contiguous",
        ),
        (
            lambda: world.recv(OnFake(np.frombuffer(b"1234", np.uint8)), src=1 - rank),
            InvalidArgumentError,
            "must be writable",
        ),
        (lambda: world.all_reduce(zeros(3, np.bool_)), InvalidArgumentError, "can't fold bool"),
        (lambda: world.all_reduce(array, op="mean"), InvalidArgumentError, "op='mean' is unknown"),
        (lambda: world.all_gather(array), InvalidArgumentError, "no OnFake can be made"),
        (lambda: world.all_gather(array, out=[array]), InvalidArgumentError, "takes 2 arrays"),
        (
            lambda: world.all_gather(array, out=[zeros(3), zeros(4)]),
            InvalidArgumentError,
            "not of one dtype and size",
        ),
        (
            lambda: world.all_gather(array, out=[zeros(3), np.zeros(3)]),
            WrongTypeError,
            "is not on a GPU",
        ),
    ):
        with pytest.raises(error, match=words):
            await call()
    with pytest.raises(worlds.WorldTimeoutError, match="the world stays usable"):
        await world.recv(array, src=1 - rank, timeout_s=0.01)
    await world.all_reduce(array)
    await world.leave()
    assert world.state is worlds.State.CLOSED


def test_mistakes_of_a_caller_cost_the_world_nothing(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    gpus.together(mistakes)


async def broken(here: Here, what: str) -> tuple[str, float]:
    """A play: what is pending raises, and so does all that comes later; returns when."""
    world, rank = here.worlds["w"], here.worlds["w"].rank
    other = 1 - rank
    begun = time.monotonic()
    array = zeros(3_000_000)
    with pytest.raises(worlds.WorldBrokenError) as ended:
        if what == "recv":
            while True:
                await world.recv(array, src=other)
        elif what == "send":
            while True:
                await world.send(array, dst=other)
        else:
            while True:
                await world.all_reduce(array)
    took_s = time.monotonic() - begun
    for call in (
        lambda: world.send(array, dst=other),
        lambda: world.recv(array, src=other),
        lambda: world.all_reduce(array),
        lambda: world.gather(array, dst=other),
    ):
        with pytest.raises(worlds.WorldBrokenError):
            await call()
    return ended.value.cause, took_s


async def do_until(here: Here, what: str, rounds: int, turns: int) -> None:
    """A play: so many rounds, then some turns of the loop, then a death."""
    world, array = here.worlds["w"], zeros(3_000_000)

    async def one_round() -> None:
        if what == "recv":
            await world.send(array, dst=1 - world.rank)
        elif what == "send":
            await world.recv(array, src=1 - world.rank)
        else:
            await world.all_reduce(array)

    for _ in range(rounds):
        await one_round()
    task = asyncio.create_task(one_round())
    for _ in range(turns):
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
    await task


async def one_sum(here: Here, rank: int, size: int, name: str) -> float:
    array = OnFake(np.ones(3))
    await here.worlds[name].all_reduce(array)
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
        cause, took_s = survivor.answer()
        assert cause == "PEER_DIED" and took_s < ABORT_S
    sums = gpus.together(one_sum, "beside", members=[survivor, third])
    assert sums == [6.0] * 2


def test_a_sender_that_dies_amid_a_kernel_ends_it(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    survivor, doomed = gpus.members
    doomed.ask(equip, "send_dies")
    survivor.tell(broken, "recv")
    doomed.tell(do_until, "recv", 9, 0)
    cause, took_s = survivor.answer()
    assert cause == "PEER_DIED" and took_s < ABORT_S
    assert survivor.ask(aborts) == 1


async def aborts(here: Here) -> int:
    return int(fake().fake_aborted())


async def say_into(here: Here, path: Path) -> None:
    """A play: what the process says to its standard error stream goes into a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 2)


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
    assert "was not aborted within 5 s" in (tmp_path / "said").read_text()
    assert gpus.together(one_sum, "beside", members=[survivor, third]) == [6.0] * 2
    survivor.ask(equip)
    assert survivor.ask(close) < 2.0


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


def test_a_join_whose_nccl_never_comes_ends_at_its_timeout(gpus: Crew) -> None:
    for member in gpus.muster(2):
        member.ask(equip, "init_hangs")
    begun = time.monotonic()
    for said in gpus.together(failing_join, free_address(), {"timeout_s": 2.0}):
        assert said.startswith("WorldTimeoutError") and "NCCL has not brought all together" in said
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
    assert said.startswith("WorldError") and "was lost while NCCL brought all together" in said


def test_nccl_that_fails_is_said_or_is_done_without(gpus: Crew) -> None:
    for member, faults in zip(gpus.muster(2), ("", "init_fails"), strict=True):
        member.ask(equip, faults)
    for said in gpus.together(failing_join, free_address(), {"timeout_s": 2.0}):
        assert said.startswith("WorldTimeoutError")
    for member in gpus.members:
        member.ask(equip, "init_fails")
    for said in gpus.together(failing_join, free_address(), {}):
        assert "did not bring the members together: invalid usage (as the fake was told)" in said
    assert gpus.together(join, "auto", free_address(), {"transport": "auto"}) == [None] * 2
    assert gpus.together(refused, "auto") == [True] * 2


async def refused(here: Here, rank: int, size: int, name: str) -> bool:
    world = here.worlds[name]
    with pytest.raises(WrongTypeError, match="carries memory of the CPU only"):
        await world.all_reduce(zeros(3))
    await world.barrier()
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
    """A play: a send that nobody takes can't be taken back."""
    world = here.worlds["w"]
    if rank == 0:
        with pytest.raises(worlds.WorldTimeoutError, match="so the world was aborted"):
            await world.send(zeros(3), dst=1, timeout_s=0.05)
    with pytest.raises(worlds.WorldBrokenError) as ended:
        await world.barrier()
    return ended.value.cause


def test_a_send_that_runs_out_of_time_ends_the_world(gpus: Crew) -> None:
    ready(gpus, 2, "w")
    assert gpus.together(give_up) == ["ABORTED"] * 2


async def cancelled(here: Here, rank: int, size: int) -> str:
    """A play: a collective is cancelled while its kernel waits."""
    world = here.worlds["w"]
    task = asyncio.create_task(world.all_reduce(zeros(3)))
    await asyncio.sleep(0.2)
    if rank == 0:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, worlds.WorldBrokenError):
        await task
    with pytest.raises(worlds.WorldBrokenError) as ended:
        await world.barrier()
    return ended.value.cause


async def alone(here: Here, address: str) -> None:
    """A play: a world of one."""
    await join(here, 0, 1, "w", address, {})
    await all_operations(here, 0, 1, False)
    await here.worlds["w"].leave()


def test_a_world_may_have_one_member(gpus: Crew) -> None:
    (member,) = gpus.muster(1)
    member.ask(equip)
    member.ask(alone, free_address())


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


async def lives(here: Here, rank: int, size: int, address: str) -> tuple[int, int]:
    """A play: worlds come and go, one half left and one half aborted; returns what they leave."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = (0, 0)
    for number in range(20):
        world = await here.join(
            "w", rank=rank, size=size, rendezvous=address, transport="nccl", timeout_s=10.0
        )
        array = OnFake(np.ones(3))
        await world.all_reduce(array)
        assert array.array.tolist() == [2.0] * 3
        if number % 2:
            await world.leave()
        else:
            await world.barrier()
            world.abort("it is enough")
            await asyncio.sleep(0.05)
        if number == 3:
            before = held()
    await asyncio.sleep(1.0)
    gc.collect()
    after = held()
    return after[0] - before[0], after[1] - before[1]


def test_worlds_that_end_give_everything_back(gpus: Crew) -> None:
    for member in gpus.muster(2):
        member.ask(equip)
    for descriptors, threads in gpus.together(lives, free_address()):
        assert descriptors <= 8 and threads <= 4


def test_a_finalize_that_hangs_becomes_an_abort(gpus: Crew) -> None:
    ready(gpus, 2, "w", faults="finalize_hangs")
    assert gpus.together(leave_and_close) == [1] * 2


async def leave_and_close(here: Here, rank: int, size: int) -> int:
    await here.worlds["w"].leave()
    assert await close(here) < ABORT_S
    return int(fake().fake_aborted())
