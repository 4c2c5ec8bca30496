"""Worlds between Ray's actors: they find each other by Ray itself, and a dead one is replaced."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import ray

from hoplite_ray import worlds
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table
from tests.ray.raycluster import RayCluster, eventually


@ray.remote(num_cpus=0, max_restarts=0)
class Stage:
    """A member, in a process of its own."""

    async def join(self, name: str, rank: int, size: int) -> int:
        """Join, and keep the world."""
        self.world = await worlds.manager().join_async(name, rank=rank, size=size)
        return self.world.epoch

    def doors(self) -> list[str]:
        """Name the addresses at which this member listens, and then its Ray node's own."""
        doors = worlds.manager()._meet.place._doors.addresses  # type: ignore[union-attr]
        return [*(name for name, _ in doors), seams.node_address()]

    async def total(self, value: float) -> float:
        """Add what all members have."""
        array = np.full(1000, value)
        await self.world.all_reduce_async(array)
        assert array.min() == array.max()
        return float(array[0])

    async def wait(self) -> tuple[str, int | None]:
        """Wait for what never comes; how that ends."""
        try:
            await self.world.recv_async(src=(self.world.rank + 1) % self.world.size)
        except worlds.WorldBrokenError as error:
            return error.cause, error.rank
        return "received", None


def on(cluster: RayCluster, node: int) -> Any:
    return Stage.options(**cluster.on(node)).remote()


def test_actors_meet_by_ray_and_replace_one_that_died(cluster: RayCluster) -> None:
    stages = [on(cluster, node) for node in range(3)]

    def join() -> list[int]:
        return ray.get([each.join.remote("w", rank, 3) for rank, each in enumerate(stages)])

    def totals() -> list[float]:
        return ray.get([each.total.remote(rank + 1.0) for rank, each in enumerate(stages)])

    assert join() == [1, 1, 1]
    [(door, node)] = {tuple(each) for each in ray.get([each.doors.remote() for each in stages])}
    assert door == node
    assert totals() == [6.0] * 3
    for epoch, victim in ((2, 2), (3, 0)):  # a member, then rank 0 itself
        waits = [each.wait.remote() for rank, each in enumerate(stages) if rank != victim]
        ray.kill(stages[victim])
        assert ray.get(waits) == [("PEER_DIED", victim)] * 2
        stages[victim] = on(cluster, victim)
        assert join() == [epoch] * 3
        assert totals() == [6.0] * 3


def test_a_world_that_was_left_leaves_nothing_in_ray(cluster: RayCluster) -> None:
    """Case review_08."""
    values = table.KeyValues(ray.get_runtime_context().gcs_address)

    def records() -> list[str]:
        return [each for each in values.keys("world/") if each.endswith("/to%20be%20left")]

    with worlds.WorldManager() as first, worlds.WorldManager() as second:
        with ThreadPoolExecutor(2) as pool:
            ranks = enumerate((first, second))
            joins = [
                pool.submit(each.join, "to be left", rank=rank, size=2) for rank, each in ranks
            ]
            for each in joins:
                each.result()
        assert len(records()) == 1
    assert eventually(lambda: not records())


def test_a_dead_rank_0s_record_goes_when_another_world_is_joined(cluster: RayCluster) -> None:
    """Case review_08."""
    values = table.KeyValues(ray.get_runtime_context().gcs_address)

    def has_record() -> bool:
        return any(each.endswith("/dies") for each in values.keys("world/"))

    dying, coming = on(cluster, 0), on(cluster, 1)
    ray.get(dying.join.remote("dies", 0, 1))
    assert has_record()
    ray.kill(dying)
    numbers = itertools.count()

    def is_gone_after_another_join() -> bool:
        ray.get(coming.join.remote(f"comes {next(numbers)}", 0, 1))
        return not has_record()

    assert eventually(is_gone_after_another_join, within_s=60)  # Ray hears of the death meanwhile


def test_a_world_that_a_driver_is_in_carries_a_broken_error_through_ray(
    cluster: RayCluster,
) -> None:
    stage = on(cluster, 1)
    with worlds.WorldManager() as manager:
        joined = stage.join.remote("driver", 1, 2)
        world = manager.join("driver", rank=0, size=2)
        assert ray.get(joined) == 1
        world.abort("enough")
        with pytest.raises(worlds.WorldBrokenError) as ended:
            ray.get(stage.total.remote(1.0))
        error = ended.value.cause  # Ray's own name for what its error wraps
        assert isinstance(error, worlds.WorldBrokenError)
        assert (error.cause, error.world, error.rank) == ("ABORTED", "driver", 0)
