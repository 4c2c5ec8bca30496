"""Reduce-scatter over real nodes: each one's share of the result, and the bytes that it costs."""

from __future__ import annotations

import asyncio
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.store import new_id
from tests.process.nodes import WAIT_S, MakeNodes, Nodes

COLUMNS = 1000


def made(index: int, shape: Any, dtype: Any = "float32") -> npt.NDArray[Any]:
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(index).integers(0, 9, shape).astype(dtype)


def scattered(nodes: Nodes, arrays: list[npt.NDArray[Any]], **how: Any) -> list[bytes]:
    """The targets of a reduce-scatter of array i on node i."""
    sources = [nodes.put(rank, array) for rank, array in enumerate(arrays)]
    targets = [new_id() for _ in arrays]
    shape, dtype = arrays[0].shape, arrays[0].dtype
    nodes[0].reduce_scatter(targets, sources, shape, dtype, timeout_s=WAIT_S, **how)
    return targets


def test_each_node_sends_and_receives_all_but_its_own_share(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    arrays = [made(rank, (4 * 250, COLUMNS)) for rank in range(4)]
    targets = scattered(nodes, arrays)
    share_bytes = arrays[0].nbytes // 4
    for rank, rows in enumerate(np.array_split(sum(arrays), 4)):
        np.testing.assert_array_equal(nodes.get(rank, targets[rank]), rows)
    memory_bytes_max = arrays[0].nbytes + 1.5 * share_bytes
    for rank in range(4):  # a node may still fold others' shares when it has its own
        nodes.wait_for(rank, lambda stats: stats.bytes_sent == 3 * share_bytes)
        nodes.wait_for(rank, lambda stats: stats.arena_bytes_used < memory_bytes_max)
    other = nodes.get(3, targets[0])  # an object like any other
    np.testing.assert_array_equal(other, np.array_split(sum(arrays), 4)[0])


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.int8, np.dtype(ml_dtypes.bfloat16)], ids=str
)
@pytest.mark.parametrize("shape", [(30_000,), (301, 77), (7, 3001), (2, 50_000), (0, 4)], ids=str)
def test_rows_are_shared_as_numpy_splits_them(three: Nodes, shape: Any, dtype: Any) -> None:
    arrays = [made(rank, shape, dtype) for rank in range(3)]
    targets = scattered(three, arrays)
    for rank, rows in enumerate(np.array_split(sum(arrays), 3)):
        received = three.get(rank, targets[rank])
        assert received.dtype == dtype
        np.testing.assert_array_equal(received, rows)
    for target in targets:
        three[0].delete(target, timeout_s=WAIT_S)


def test_a_deterministic_one_has_the_bits_of_the_reduce(three: Nodes) -> None:
    rng = np.random.default_rng(5)
    scales = 2.0 ** rng.integers(-13, 14, (3, 1002, 50))
    arrays = list((rng.standard_normal((3, 1002, 50)) * scales).astype(np.float32))
    targets = scattered(three, arrays, deterministic=True)
    whole = (arrays[0] + arrays[1]) + arrays[2]
    for rank, rows in enumerate(np.array_split(whole, 3)):
        assert three.get(rank, targets[rank]).tobytes() == rows.tobytes()


def test_it_waits_for_sources_and_can_be_awaited(three: Nodes) -> None:
    sources, targets = [new_id() for _ in range(3)], [new_id() for _ in range(3)]
    arrays = [made(rank, (90, COLUMNS)) for rank in range(3)]

    async def run() -> None:
        scatter = asyncio.ensure_future(
            three[1].reduce_scatter_async(targets, sources, (90, COLUMNS), timeout_s=WAIT_S)
        )
        for rank, array in enumerate(arrays):
            assert not scatter.done()
            await three[rank].put_async(sources[rank], array)
        await scatter

    asyncio.run(run())
    for rank, rows in enumerate(np.array_split(sum(arrays), 3)):
        np.testing.assert_array_equal(three.get(rank, targets[rank]), rows)


def test_what_it_refuses(three: Nodes) -> None:
    source, target = three.put(0, made(0, 3000)), new_id()
    with pytest.raises(InvalidArgumentError, match="2 targets for 1 sources"):
        three[0].reduce_scatter([target, target], [source], 3000)
    with pytest.raises(InvalidArgumentError, match=r"along its first axis, not a float32\[\]"):
        three[0].reduce_scatter([target], [source], ())
    with pytest.raises(LayoutMismatchError, match="what is to be shared"):
        three[0].reduce_scatter([target], [source], 3001, timeout_s=WAIT_S)
