"""A reduce whose tree has several levels, on real nodes: its value, its stats, what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hoplite_ray.store import new_id
from hoplite_ray.values.layout import ReduceOp
from tests.process.command import stop
from tests.process.nodes import WAIT_S, MakeNodes, Nodes


def source(index: int, elements: int) -> Any:
    """Small whole numbers: their float sums are exact in any order."""
    return np.random.default_rng(index).integers(-1000, 1000, elements).astype(np.float32)


@pytest.fixture(scope="module")
def trees() -> Iterator[Nodes]:
    """Four nodes whose reduces are trees of two."""
    yield from four({"reduce_degree": 2})


@pytest.fixture(scope="module")
def chains() -> Iterator[Nodes]:
    """Four nodes whose large reduces are chains."""
    yield from four({"link_mbit": 100})


def four(options: dict[str, int]) -> Iterator[Nodes]:
    """Nodes that a module shares."""
    nodes = Nodes(0, options=options)
    try:
        for _ in range(4):
            nodes.add()
        nodes.meet()
        yield nodes
    finally:
        nodes.end()


class Counted:
    """A counter of all nodes together, from now on."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self._nodes, self._name, self._before = nodes, name, 0
        self._before = self()

    def __call__(self) -> int:
        ranks = range(len(self._nodes.stores))
        return sum(getattr(self._nodes.stats(each), self._name) for each in ranks) - self._before


@pytest.mark.parametrize("elements", [10, 10_000, 500_000])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_tree_of_two_over_four_nodes(trees: Nodes, op: ReduceOp, elements: int) -> None:
    nodes = trees
    committed, branched = Counted(nodes, "reduces_committed"), Counted(nodes, "reduces_branched")
    arrays = [source(index, elements) for index in range(8)]
    ids = [nodes.put(index % 4, array) for index, array in enumerate(arrays)]
    target = new_id()
    reduction = nodes[0].reduce(target, ids, op=op, timeout_s=WAIT_S)
    assert sorted(reduction.members) == list(range(8))
    expected = np.max(arrays, 0) if op == "max" else np.sum(arrays, 0, np.float64)
    if op == "mean":
        expected /= len(arrays)
    for rank in range(4):
        np.testing.assert_array_equal(nodes.get(rank, target), expected.astype(np.float32))
    while committed() == 0:
        pass  # the planner publishes its counters a moment later
    assert committed() == 1
    assert branched() <= 1  # by which of them came together
    leave_nothing(nodes, [*ids, target])


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_chain_over_four_nodes(chains: Nodes, op: ReduceOp) -> None:
    nodes = chains
    branches, branched = Counted(nodes, "reduce_branches"), Counted(nodes, "reduces_branched")
    arrays = [source(index, 500_000) for index in range(4)]
    ids = [nodes.put(index, array) for index, array in enumerate(arrays)]
    expected = np.max(arrays, 0) if op == "max" else np.sum(arrays, 0, np.float64)
    if op == "mean":
        expected /= len(arrays)
    targets: list[bytes] = []
    while branched() == 0:  # the homes hear of puts in a moment
        targets.append(new_id())
        nodes[0].reduce(targets[-1], ids, op=op, timeout_s=WAIT_S)
        for rank in range(4):
            np.testing.assert_array_equal(nodes.get(rank, targets[-1]), expected.astype(np.float32))
    assert branches() == 2 * branched(), "the last node sends what it has"
    leave_nothing(nodes, [*ids, *targets])


def leave_nothing(nodes: Nodes, ids: list[bytes]) -> None:
    """Delete these objects, and see that no node has any left."""
    for each in ids:
        nodes[0].delete(each, timeout_s=WAIT_S)
    for rank in range(4):
        nodes.wait_for(rank, lambda stats: stats.arena_bytes_used == stats.objects == 0)


@pytest.mark.parametrize("options", [{"reduce_degree": 2}, {"link_mbit": 1}])
def test_a_node_dies_and_its_source_is_replaced(
    cluster: MakeNodes, options: dict[str, int]
) -> None:
    nodes = cluster(4, options=options)
    arrays = [source(index, 20_000) for index in range(6)]  # too large for copies at their homes
    ids = [nodes.put(index % 3 + 1, array) for index, array in enumerate(arrays)]
    target = new_id()
    pending = nodes.client(0).begin_reduce(target, source_count=6, op="sum", count=4)
    # A result that is there before the death may go with it, for its owner alone has it.
    stop(nodes.processes[3])
    for index, each in enumerate(ids):
        pending.confirm(index, each)
    nodes.kill(3)
    reduction = pending.result(WAIT_S)
    assert not {2, 5} & set(reduction.members)
    expected = np.sum([arrays[index] for index in reduction.members], 0)
    np.testing.assert_array_equal(nodes.get(0, target), expected)
    for each in (*ids, target):
        nodes[0].delete(each, timeout_s=WAIT_S)
    for rank in range(3):
        nodes.wait_for(rank, lambda stats: stats.arena_bytes_used == 0)
