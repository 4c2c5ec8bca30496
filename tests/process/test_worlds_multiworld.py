"""MultiWorld's own names: a program that was written for it changes its import, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from hoplite_ray import worlds
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.worlds import multiworld
from hoplite_ray.worlds.meeting.rendezvous import parse_address
from tests.process.world_crew import free_address, in_a_loop

torch = pytest.importorskip("torch", reason="torch is not installed")


async def use(rank: int, addr: str, port: int) -> None:
    """One member, as MultiWorld's examples have it."""
    manager = multiworld.WorldManager()
    await manager.initialize_world("w", rank, 2, backend="gloo", addr=addr, port=port)
    communicator: Any = manager.communicator

    def tensor(value: float = rank + 1.0) -> Any:
        return torch.full((4,), value)

    if rank == 0:
        await communicator.send(tensor(7.0), 1, "w")
    else:
        received = tensor()
        await communicator.recv(received, 0, "w")
        assert received.tolist() == [7.0] * 4
    shared = tensor()
    await communicator.broadcast(shared, 1, "w")
    assert shared.tolist() == [2.0] * 4
    for op, expected in (("SUM", 3.0), ("PRODUCT", 2.0), ("MIN", 1.0), ("MAX", 2.0), ("AVG", 1.5)):
        folded = tensor()
        await communicator.all_reduce(folded, getattr(torch.distributed.ReduceOp, op), "w")
        assert folded.tolist() == [expected] * 4
    folded = tensor()
    await communicator.reduce(folded, 0, "sum", "w")
    assert folded[0] == (3.0 if rank == 0 else 2.0)
    both = [torch.empty(4), torch.empty(4)]
    await communicator.all_gather(both, tensor(), "w")
    assert [each[0].item() for each in both] == [1.0, 2.0]
    both = [torch.empty(4), torch.empty(4)]
    await communicator.gather(tensor(), both if rank == 0 else None, 0, "w")
    assert rank == 1 or [each[0].item() for each in both] == [1.0, 2.0]
    mine = torch.empty(4)
    await communicator.scatter(mine, [tensor(5.0), tensor(6.0)] if rank == 0 else None, 0, "w")
    assert mine[0] == 5.0 + rank
    with pytest.raises(InvalidArgumentError, match="none of sum"):
        await communicator.all_reduce(mine, "bxor", "w")
    assert not communicator.is_broken("w")
    if rank == 1:
        manager.abort("w", "enough")
    with pytest.raises(multiworld.BrokenWorldException):
        await communicator.recv(mine, 1 - rank, "w")
    assert communicator.is_broken("w")
    manager.remove_world("w")
    with pytest.raises(InvalidArgumentError, match="in no world 'w'"):
        communicator.is_broken("w")
    await manager.initialize_world("w", rank, 2, addr=addr, port=port)
    await communicator.all_reduce(tensor(), "sum", "w")
    manager.remove_world("w")
    manager.close()


@in_a_loop
async def test_a_program_for_multiworld_runs() -> None:
    addr, port = parse_address(free_address())
    await asyncio.gather(use(0, addr, port), use(1, addr, port))


@in_a_loop
async def test_tensors_share_their_memory_and_others_are_refused() -> None:
    address = free_address()
    async with worlds.WorldManager() as left, worlds.WorldManager() as right:
        how = {"size": 2, "rendezvous": address}
        here, there = await asyncio.gather(
            left.join_async("w", rank=0, **how), right.join_async("w", rank=1, **how)
        )
        weights = torch.zeros(3, 4, requires_grad=True, dtype=torch.bfloat16)
        await here.send_async(torch.ones(3, 4, dtype=torch.bfloat16), dst=1)
        assert await there.recv_async(weights, src=0) is weights
        assert weights.sum() == 12.0
        sums = [torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)]
        await asyncio.gather(here.all_reduce_async(sums[0]), there.all_reduce_async(sums[1]))
        assert [each.tolist() for each in sums] == [[2.0] * 3] * 2
        for wrong, error in (
            (torch.ones(3, device="meta"), worlds.WorldError),
            (torch.ones(3).to_sparse(), worlds.WorldError),
            (np.ones((3, 3)).T[1:], ValueError),
            ("text", TypeError),
        ):
            with pytest.raises((error, TypeError, ValueError)):
                await here.recv_async(wrong, src=1)
        assert here.state is worlds.State.READY
