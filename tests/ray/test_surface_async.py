"""The awaitable twins: event loops go on, cancelling takes back, and sync calls still work."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.seams.core import known_refs
from tests.ray.gates import Gate
from tests.ray.raycluster import LARGE, RayCluster, eventually


@ray.remote(num_cpus=0)
class Reader:
    """Its calls share one event loop: a call that blocked it would stop all others."""

    def __init__(self) -> None:
        self.entered = 0
        self.is_entered = asyncio.Condition()

    async def awaits(self, nested: list[ray.ObjectRef]) -> float:
        await self.enter()
        return float((await hop.get_async(nested[0])).sum())

    async def awaits_gathered(self, nested: list[ray.ObjectRef]) -> list[float]:
        await self.enter()
        values = await hop.get_async(hop.gather(nested))
        return [float(each.sum()) for each in values]

    async def blocks(self, nested: list[ray.ObjectRef]) -> float:
        return float(hop.get(nested[0]).sum())

    async def enter(self) -> None:
        async with self.is_entered:
            self.entered += 1
            self.is_entered.notify_all()

    async def has_entered(self, count: int) -> bool:
        async with self.is_entered:
            return await self.is_entered.wait_for(lambda: self.entered >= count)


def test_many_calls_await_on_one_loop(cluster: RayCluster) -> None:
    gate, reader = Gate.remote(), Reader.options(**cluster.on(1)).remote()
    pending = gate.array.remote()
    sums = [reader.awaits.remote([pending]) for _ in range(20)]
    total = reader.awaits_gathered.remote([pending, hop.put(np.ones(3))])
    assert ray.get(reader.has_entered.remote(21), timeout=60)
    ray.get(gate.open.remote())
    assert ray.get(sums, timeout=60) == [LARGE] * 20
    assert ray.get(total, timeout=60) == [LARGE, 3]


def test_a_sync_get_in_a_coroutine_is_as_ray_get(cluster: RayCluster) -> None:
    reader = Reader.options(**cluster.on(1)).remote()
    refs = [hop.put(np.ones(LARGE)), hop.reduce([hop.put(np.ones(3)), hop.put(np.ones(3))])]
    sums = [reader.blocks.remote([ref]) for ref in refs]
    assert ray.get(sums, timeout=60) == [LARGE, 6]


def _run(program: Any) -> None:
    asyncio.run(asyncio.wait_for(program, 60))


def test_a_limit_names_what_is_pending(cluster: RayCluster) -> None:
    async def program() -> None:
        pending = Gate.remote().array.remote()
        with pytest.raises(
            hop.GetTimeoutError, match=f"{pending.hex()[:12]}.* its task has not ended"
        ):
            await hop.get_async(pending, timeout_s=0.2)
        with pytest.raises(hop.GetTimeoutError):
            await hop.sources_async(hop.reduce([pending]), timeout_s=0.2)
        assert await hop.wait_async([pending], timeout_s=0.1) == ([], [pending])

    _run(program())


def test_what_is_combined_and_filled_is_begun_beside_the_loop(cluster: RayCluster) -> None:
    """Case t10."""

    async def program() -> None:
        filled = await hop.empty_async(4, "float64", timeout_s=60)
        filled[:] = 2
        refs = [filled, await hop.put_async(np.ones(4))]
        total = await hop.reduce_async(refs, op="prod", timeout_s=60)
        assert (await hop.get_async(total)).tolist() == [2.0] * 4
        mean = await hop.all_reduce_async(refs, op="mean", count=2, deterministic=True)
        assert (await hop.get_async(mean)).tolist() == [1.5] * 4
        shares = await hop.reduce_scatter_async(refs, op="max")
        assert [each.tolist() for each in await hop.get_async(shares)] == [[2.0, 2.0]] * 2
        for gather in (hop.gather_async, hop.all_gather_async):
            values = await hop.get_async(await gather(refs))
            assert [float(each.sum()) for each in values] == [8.0, 4.0]

    _run(program())


def test_a_task_s_own_timeout_error_is_not_ours(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def late() -> None:
        raise TimeoutError("its own")

    async def program() -> None:
        with pytest.raises(TimeoutError, match="its own") as caught:
            await hop.get_async(late.remote(), timeout_s=60)
        assert not isinstance(caught.value, hop.GetTimeoutError)

    _run(program())


def test_wait_counts_and_keeps_the_order(cluster: RayCluster) -> None:
    async def program() -> None:
        gate = Gate.remote()
        never = Gate.remote().array.remote()
        late, there = gate.array.remote(), hop.put(np.ones(3))
        refs = [late, never, there]
        assert await hop.wait_async(refs) == ([there], [late, never])
        waiting = asyncio.create_task(hop.wait_async(refs, num_returns=2))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.open.remote()
        assert await waiting == ([late, there], [never])
        with pytest.raises(ValueError, match="num_returns"):
            await hop.wait_async(refs, num_returns=4)

    _run(program())


def test_a_cancelled_get_is_taken_back(cluster: RayCluster) -> None:
    async def program() -> None:
        gate = Gate.remote()
        pending = gate.array.remote()
        waiting = asyncio.create_task(hop.get_async([pending, hop.put(np.ones(LARGE))]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await gate.open.remote()
        assert (await hop.get_async(pending)).sum() == LARGE

    _run(program())


def test_a_put_that_waits_for_room_is_taken_back(cluster: RayCluster) -> None:
    held = [hop.put(np.zeros(20 << 20, np.uint8)) for _ in range(3)]  # of 96 MiB

    async def program() -> None:
        waiting = asyncio.create_task(hop.put_async(np.zeros(40 << 20, np.uint8)))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled() or isinstance(waiting.exception(), hop.StoreFullError)
        assert not done or waiting.exception() is not None

    _run(program())
    held.clear()
    ref = hop.put(np.zeros(60 << 20, np.uint8), timeout_s=30)  # nothing of it is left behind
    hop.delete(ref)


def test_the_first_failure_lets_the_other_refs_go(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def fails() -> None:
        raise KeyError("lost key")

    async def program() -> bytes:
        pending = hop.reduce([Gate.remote().array.remote()])
        with pytest.raises(KeyError, match="lost key"):
            await hop.get_async([pending, fails.remote()])
        assert len(asyncio.all_tasks()) == 2  # this one, and the one that waits for it
        return pending.binary()

    async def limited() -> bytes:
        return await asyncio.wait_for(program(), 60)

    answer = asyncio.run(limited())
    assert eventually(lambda: answer not in known_refs())


def test_errors_come_out_of_the_twins_as_they_do_elsewhere(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0)
    def fails() -> None:
        raise KeyError("lost key")

    async def program() -> None:
        with pytest.raises(KeyError, match="lost key"):
            await hop.get_async(fails.remote())
        with pytest.raises(hop.ReduceError, match="needs 2 of 2 sources, only 1 is left"):
            await hop.get_async(hop.reduce([fails.remote(), hop.put(np.ones(1))], count=2))
        with pytest.raises(hop.InvalidArgumentError, match="value is set"):
            await hop.put_async({"text"})

    _run(program())
