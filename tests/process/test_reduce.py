"""Reduce over real nodes: exact results, and exactly the members that were taken."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import (
    GetTimeoutError,
    InvalidArgumentError,
    LayoutMismatchError,
    ReduceError,
)
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import ReduceOp
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

DTYPES = [np.float32, np.float64, np.int64]


def source(index: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Small whole numbers: their float sums are exact in any order."""
    return np.random.default_rng(index).integers(-1000, 1000, shape).astype(dtype)


def combined(op: ReduceOp, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.sum(arrays, 0, arrays[0].dtype) if op == "sum" else np.max(arrays, 0)


@pytest.mark.parametrize("shape", [(10,), (300, 1000), (2_000_003,)], ids=str)
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_four_of_eight_sources_on_three_nodes(
    three: Nodes, dtype: Any, op: ReduceOp, shape: tuple[int, ...]
) -> None:
    arrays = [source(index, shape, dtype) for index in range(8)]
    ids = [three.put(index % 3, array) for index, array in enumerate(arrays)]
    target = new_id()
    early = three[1].begin_get(target)
    pending = three.client(0).begin_reduce(target, source_count=8, op=op, count=4)
    for index in (6, 1, 4, 3, 0):
        pending.confirm(index, ids[index])
    reduction = pending.result(WAIT_S)
    assert reduction.target == target
    assert reduction.members == (6, 1, 4, 3)
    expected = combined(op, [arrays[index] for index in reduction.members])
    np.testing.assert_array_equal(early.result(WAIT_S).value, expected)
    for rank in range(3):
        received = three.get(rank, target)
        assert received.dtype == expected.dtype
        np.testing.assert_array_equal(received, expected)
    for each in (*ids, target):
        three[0].delete(each, timeout_s=WAIT_S)


# Striped, each of two nodes sends what it has to the other; along a chain the first one does.
@pytest.mark.parametrize(("options", "senders"), [({"reduce_degree": 4096}, 2), ({}, 1)])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_sources_of_one_node_cross_the_wire_as_one(
    cluster: MakeNodes, op: ReduceOp, options: dict[str, int], senders: int
) -> None:
    nodes = cluster(3, options=options)
    arrays = [source(index, (1 << 20,), np.float32) for index in range(9)]
    ids = [nodes.put(1 + index % 2, array) for index, array in enumerate(arrays[:8])]
    ids.append(new_id())
    pending = nodes.client(0).begin_reduce(target := new_id(), source_count=9, op=op)
    for index in (8, *range(8)):  # it begins when the first of them has been put
        pending.confirm(index, ids[index])
    nodes.converse()  # Want, Locate, Located
    nodes[1].put(ids[8], arrays[8], timeout_s=WAIT_S)
    pending.result(WAIT_S)
    np.testing.assert_array_equal(nodes.get(0, target), combined(op, arrays))
    # Striped: a half of one copy to the other, and one to node 0; else one copy to the next.
    sent = [0, arrays[0].nbytes, arrays[0].nbytes]
    stats = [
        nodes.wait_for(rank, lambda stats, sent=each: stats.bytes_sent == sent)
        for rank, each in enumerate(sent)
    ]
    assert sum(each.blocks_combined > 0 for each in stats) == senders


def test_thousands_of_small_sources(three: Nodes) -> None:
    ids = [three.put(1 + index % 2, np.full(16, index, np.int64)) for index in range(2500)]
    reduction = three[0].reduce(new_id(), ids, timeout_s=WAIT_S)
    np.testing.assert_array_equal(three.get(0, reduction.target), np.full(16, sum(range(2500))))
    for each in (*ids, reduction.target):
        three[0].delete(each, timeout_s=WAIT_S)


def test_all_sources_when_no_count_is_given(three: Nodes) -> None:
    arrays = [source(index, (50_000,), np.float64) for index in range(5)]
    ids = [three.put(index % 3, array) for index, array in enumerate(arrays)]
    reduction = three[2].reduce(new_id(), ids, timeout_s=WAIT_S)
    assert sorted(reduction.members) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(three.get(0, reduction.target), combined("sum", arrays))


def test_sources_that_are_put_after_they_were_named(three: Nodes) -> None:
    arrays = [source(index, (50_000,), np.float32) for index in range(3)]
    ids = [new_id() for _ in arrays]
    pending = three.client(0).begin_reduce(target := new_id(), source_count=3)
    for index, object_id in enumerate(ids):
        pending.confirm(index, object_id)
    for rank, (object_id, array) in enumerate(zip(ids, arrays, strict=True)):
        three[rank].put(object_id, array, timeout_s=WAIT_S)
    assert pending.result(WAIT_S).members == (0, 1, 2)
    np.testing.assert_array_equal(three.get(1, target), combined("sum", arrays))


def test_a_source_that_nobody_ever_puts_is_not_waited_for(three: Nodes) -> None:
    arrays = [source(index, (50_000,), np.float32) for index in range(4)]
    ids = [new_id() for _ in arrays]
    target = new_id()
    pending = three[1].begin_get(target)
    with ThreadPoolExecutor(1) as threads:
        reduction = threads.submit(three[0].reduce, target, ids, count=2, timeout_s=WAIT_S)
        for index in (3, 1):  # neither 0 nor 2
            three[index % 3].put(ids[index], arrays[index], timeout_s=WAIT_S)
        assert sorted(reduction.result().members) == [1, 3]
    np.testing.assert_array_equal(pending.result(WAIT_S).value, arrays[1] + arrays[3])


def test_a_result_is_a_source_like_any_other(three: Nodes) -> None:
    arrays = [source(index, (30_000,), np.int64) for index in range(4)]
    ids = [three.put(index % 3, array) for index, array in enumerate(arrays)]
    first = three[0].reduce(new_id(), ids[:2], timeout_s=WAIT_S)
    second = three[1].reduce(new_id(), [first.target, *ids[2:]], timeout_s=WAIT_S)
    np.testing.assert_array_equal(three.get(2, second.target), combined("sum", arrays))


def test_a_failed_source_is_done_without(three: Nodes) -> None:
    arrays = [source(index, (50_000,), np.float32) for index in range(3)]
    ids = [three.put(index, array) for index, array in enumerate(arrays)]
    pending = three.client(0).begin_reduce(new_id(), source_count=3, count=2)
    pending.fail(1)
    pending.confirm(2, ids[2])
    pending.confirm(0, ids[0])
    assert pending.result(WAIT_S).members == (2, 0)


def test_too_few_sources_are_left(three: Nodes) -> None:
    pending = three.client(0).begin_reduce(new_id(), source_count=3, count=2)
    pending.fail(2)
    pending.fail(0)
    with pytest.raises(ReduceError, match="needs 2 of 3 sources, and only 1 can still") as caught:
        pending.result(WAIT_S)
    assert caught.value.lost == (0, 2)


def test_sources_of_different_shapes_are_refused(three: Nodes) -> None:
    ids = [three.put(0, np.zeros(extent, np.float32)) for extent in (50_000, 50_001)]
    with pytest.raises(LayoutMismatchError):
        three[1].reduce(new_id(), ids, timeout_s=WAIT_S)


def test_a_reduce_that_waits_for_sources_ends_at_its_limit(three: Nodes) -> None:
    pending = three.client(0).begin_reduce(new_id(), source_count=2)
    with pytest.raises(GetTimeoutError, match=r"reduce into object .* lower count"):
        pending.result(0.05)


@pytest.mark.parametrize("count", [0, 3, -1])
def test_a_count_out_of_range_is_refused(three: Nodes, count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="it takes 1 to 2"):
        three.client(0).begin_reduce(new_id(), source_count=2, count=count)


def test_an_unknown_operation_is_refused(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="it takes sum, max, min"):
        median: Any = "median"
        three.client(0).begin_reduce(new_id(), source_count=2, op=median)


@pytest.mark.parametrize("count", [1.0, "1", True])
def test_a_count_that_is_no_number_is_refused(three: Nodes, count: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="it takes 1 to 2, the number of sources"):
        three.client(0).begin_reduce(new_id(), source_count=2, count=count)


def test_a_reduce_of_nothing_is_refused(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one source"):
        three[0].reduce(new_id(), [])


def test_a_bad_source_id_takes_the_reduce_back(three: Nodes) -> None:
    with pytest.raises(InvalidArgumentError, match="28 bytes"):
        three[0].reduce(new_id(), [new_id(), b"short"])


def test_a_source_node_that_dies_is_replaced_by_a_spare(cluster: MakeNodes) -> None:
    nodes = cluster(4)
    arrays = [source(index, (MIB,), np.float32) for index in range(3)]
    ids = [nodes.put(index + 1, array) for index, array in enumerate(arrays)]
    pending = nodes.client(0).begin_reduce(target := new_id(), source_count=3, count=2)
    pending.confirm(0, ids[0])
    nodes.kill(1)  # holds source 0, alone
    pending.confirm(1, ids[1])
    pending.confirm(2, ids[2])
    assert pending.result(WAIT_S).members == (1, 2)
    np.testing.assert_array_equal(nodes.get(0, target), arrays[1] + arrays[2])
