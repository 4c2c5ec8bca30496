"""Worlds by NCCL itself: two processes that share one GPU, which is all that there may be.

Each says that it is a host of its own, for NCCL refuses two ranks on one GPU of one host.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray import worlds
from hoplite_ray._native import Nccl
from hoplite_ray.serve.edge.edge import Edge
from hoplite_ray.serve.errors import EdgeBrokenError
from hoplite_ray.worlds.gpu.nccl import find_libraries
from tests.process.world_crew import Crew, Here, free_address

FAKE = Path(__file__).parents[2] / "build/editable/libfake_nccl.so"
COUNTS = (0, 1, 1023, 300_001, 5_000_000)


def test_nccl_as_its_wheel_has_it_can_be_loaded() -> None:
    # PyPI's torch brings NCCL's wheel.
    pytest.importorskip("torch", reason="torch is not installed")
    assert len(find_libraries()) == 2
    library = Nccl(find_libraries(), str(FAKE), begin=True)
    assert library.code >= 21700
    assert len(library.unique_id()) == 128


@pytest.fixture
def two() -> Iterator[Crew]:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():  # the real NCCL moves nothing without one
        pytest.skip("no GPU")
    crew = Crew([])  # no other test is to have members that use a GPU
    try:
        crew.muster(2)
        assert crew.together(join_on_gpu, free_address()) == [0, 0]
        yield crew
    finally:
        for member in crew.members:
            member.kill()


async def join_on_gpu(here: Here, rank: int, size: int, address: str) -> int | None:
    """A play: join a world by NCCL."""
    os.environ["NCCL_HOSTID"] = f"hoplite-{rank}"
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    how: dict[str, Any] = {"rendezvous": address, "transport": "nccl", "timeout_s": 60.0}
    return (await here.join_async("w", rank=rank, size=size, **how)).device


async def operations(here: Here, rank: int, size: int) -> None:
    """A play: the operations, with every count."""
    import torch

    world = here.worlds["w"]
    for count in COUNTS:
        mine = torch.arange(count, device="cuda") % 7 + float(rank + 1)
        theirs = torch.arange(count, device="cuda") % 7 + float(2 - rank)
        into = torch.empty_like(mine)
        await asyncio.gather(
            world.send_async(mine, dst=1 - rank), world.recv_async(into, src=1 - rank)
        )
        assert torch.equal(into, theirs)
        total = mine.clone()
        await world.all_reduce_async(total)
        assert torch.equal(total, mine + theirs)
        gathered = await world.all_gather_async(mine)
        assert torch.equal(gathered[rank], mine) and torch.equal(gathered[1 - rank], theirs)
        await world.broadcast_async(mine, src=0)
        assert torch.equal(mine, theirs if rank == 1 else gathered[0])
    await world.leave_async()


@pytest.mark.timeout(120)
def test_every_operation_gives_the_right_values(two: Crew) -> None:
    two.together(operations)


async def until_broken(here: Here) -> str:
    """A play: sums until the other one has died."""
    import torch

    array = torch.ones(1_000_000, device="cuda")
    with pytest.raises(worlds.WorldBrokenError) as ended:
        while True:
            await here.worlds["w"].all_reduce_async(array)
    return ended.value.cause


async def until_dead(here: Here) -> None:
    """A play: some sums, and a death amid the next one."""
    import torch

    array = torch.ones(1_000_000, device="cuda")
    for _ in range(10):
        await here.worlds["w"].all_reduce_async(array)
    task = asyncio.create_task(here.worlds["w"].all_reduce_async(array))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)
    await task


@pytest.mark.timeout(120)
def test_a_death_is_raised_on_the_survivor(two: Crew) -> None:
    survivor, doomed = two.members
    survivor.tell(until_broken)
    doomed.tell(until_dead)
    assert survivor.answer() == "PEER_DIED"


async def answers(here: Here, rank: int, size: int, dies_at: int) -> None:
    """A play: answer what is asked over an edge of Serve, and die amid an answer."""

    async def doubled(request: Any, begun: Any) -> Any:
        if request["number"] == dies_at:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
        return {"again": [2 * each for each in request["tensors"]]}

    await Edge(here.worlds["w"], doubled).wait_closed()


async def asks(here: Here, rank: int, size: int, dies_at: int) -> int:
    """A play: ask over that edge, several at once; how many answers were right."""
    import torch

    edge = Edge(here.worlds["w"], answers)

    async def ask(number: int) -> int:
        tensors = [torch.arange(count, device="cuda") % 7 + number for count in COUNTS]
        tensors += [each.bfloat16() for each in tensors]
        tensors.append(torch.arange(24, device="cuda").view(4, 6).t()[::2])
        answer = await edge.call({"number": number, "tensors": tensors})
        for given, back in zip(tensors, answer["again"], strict=True):
            assert back.is_cuda and back.dtype == given.dtype and torch.equal(back, 2 * given)
        return 1

    asked = await asyncio.gather(*(ask(number) for number in range(8)), return_exceptions=True)
    failed = [each for each in asked if not isinstance(each, int)]
    assert all(isinstance(each, EdgeBrokenError) for each in failed), failed
    assert bool(failed) == (dies_at >= 0)
    await edge.close()
    return len(asked) - len(failed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dies_at", [-1, 3])
def test_an_edge_of_serve_hands_tensors_on(two: Crew, dies_at: int) -> None:
    asking, answering = two.members
    asking.tell(asks, 0, 2, dies_at)
    answering.tell(answers, 1, 2, dies_at)
    assert asking.answer() == 8 if dies_at < 0 else asking.answer() < 8
