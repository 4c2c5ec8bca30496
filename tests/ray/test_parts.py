"""Parts of values, and values of shards, between Ray's processes."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray import parts
from tests.ray.raycluster import RayCluster

ROWS, COLUMNS = 256, 1024  # of floats: a MiB


def matrix() -> npt.NDArray[np.float32]:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


@ray.remote(num_cpus=0)
def write(rank: int) -> hop.Array:
    return hop.array({"w": np.array_split(matrix(), 2)[rank], "rank": rank})


@ray.remote(num_cpus=0)
def read(given: list[Any], rank: int) -> tuple[Any, int]:
    """Read columns of a composed value, and the rank in one of its objects."""
    columns = hop.get(given[0], part={"w": parts.split(rank, 2, axis=1)}, timeout_s=60)["w"]
    return columns, hop.get(given[1], part="rank", timeout_s=60)


def test_rows_of_two_tasks_are_read_as_columns_by_two_others(cluster: RayCluster) -> None:
    refs = [write.options(**cluster.on(rank)).remote(rank) for rank in range(2)]
    value = hop.compose({"w": parts.shards(refs, path="w")})
    got = ray.get(
        [
            read.options(**cluster.on(rank + 1)).remote([value, refs[rank]], rank)
            for rank in range(2)
        ],
        timeout=90,
    )
    for rank, (columns, known) in enumerate(got):
        np.testing.assert_array_equal(columns, np.array_split(matrix(), 2, axis=1)[rank])
        assert known == rank
    np.testing.assert_array_equal(hop.get(value, timeout_s=60)["w"], matrix())


def test_parts_of_refs_arrays_small_values_and_values_of_ray(cluster: RayCluster) -> None:
    value = {"w": matrix(), "layers": [{"b": np.arange(3)}], "step": 7}
    for given in (hop.put(value), hop.array(value), ray.put(value)):
        assert hop.get(given, part="step", timeout_s=60) == 7
        assert hop.get(given, part="layers.0.b", timeout_s=60).tolist() == [0, 1, 2]
        taken = hop.get(given, part={"w": np.s_[5:9, ::100]}, timeout_s=60)
        np.testing.assert_array_equal(taken["w"], matrix()[5:9, ::100])
    small = hop.put(np.arange(10))
    assert hop.get(small, part=np.s_[2:4], timeout_s=60).tolist() == [2, 3]
    mine = np.zeros(COLUMNS, np.float32)
    ref = hop.put(matrix())
    assert hop.get(ref, part=3, into=mine, timeout_s=60) is mine
    np.testing.assert_array_equal(mine, matrix()[3])


def test_the_awaitable_twin_reads_parts_and_composed_values(cluster: RayCluster) -> None:
    halves = [hop.put(each) for each in np.array_split(matrix(), 2)]
    value = hop.compose(parts.shards(halves))

    async def read_both() -> tuple[Any, Any]:
        whole = await hop.get_async(value, timeout_s=60)
        return whole, await hop.get_async(halves[1], part=np.s_[:, 7], timeout_s=60)

    whole, column = asyncio.run(read_both())
    np.testing.assert_array_equal(whole, matrix())
    np.testing.assert_array_equal(column, matrix()[ROWS // 2 :, 7])
    np.testing.assert_array_equal(
        hop.get(ray.put(value), part=np.s_[1:3], timeout_s=60), matrix()[1:3]
    )


def test_a_composed_value_keeps_its_shards_and_wrong_parts_are_named(cluster: RayCluster) -> None:
    value = hop.compose({"w": parts.shards([hop.put(matrix()), hop.put(matrix())])})
    assert hop.get(value, part="w", timeout_s=60).shape == (2 * ROWS, COLUMNS)
    with pytest.raises(hop.InvalidArgumentError, match="no part 'v'; there is 'w'"):
        hop.get(value, part="v", timeout_s=60)
    ref = hop.put({"w": matrix()})
    with pytest.raises(hop.InvalidArgumentError, match="no part 'v'; there is 'w'"):
        hop.get(ref, part="v", timeout_s=60)
    with pytest.raises(hop.InvalidArgumentError, match="`part` takes the value of one ref"):
        hop.get([ref, ref], part="w")  # type: ignore[call-overload]
    hop.delete(ref)
    with pytest.raises(hop.ObjectLostError):
        hop.get(ref, part={"w": np.s_[:, 3:4]}, timeout_s=60)
