"""Reduces, reduce-scatters and gathers of every kind of value, from every kind of source."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.node.start import NodePlace
from tests.ray.gates import Gate
from tests.ray.raycluster import LARGE, RayCluster, cancel, eventually, is_gone
from tests.ray.surface_values import KINDS, assert_same, needs_torch, value_of


@ray.remote(num_cpus=0)
class Maker:
    def make(self, kind: str, scale: int = 1) -> hop.Array:
        return hop.array(value_of(kind, scale))

    def bare(self, kind: str, scale: int = 1) -> Any:
        return value_of(kind, scale)

    def says(self, value: Any) -> Any:
        return value

    def sums(self, value: hop.Array) -> float:
        return float(np.asarray(value).sum())

    def blocks_received(self) -> int:
        place = NodePlace.of_this_process().directory
        control = json.loads((place / "node.json").read_text())["control"]
        return hop.NodeStats.read(control, (place / "secret").read_bytes()).blocks_received

    def fails(self) -> None:
        raise KeyError("no such batch")

    def first_of(self, gathered: list[hop.Array]) -> list[float]:
        assert all(isinstance(each, hop.Array) for each in gathered)
        return [float(each.tolist()[0]) for each in gathered]

    def get(self, nested: list[ray.ObjectRef]) -> Any:
        return hop.get(nested[0])


@pytest.fixture(scope="module")
def makers(cluster: RayCluster) -> list[Any]:
    return [Maker.options(**cluster.on(node)).remote() for node in range(3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combine", [hop.reduce, hop.all_reduce])
def test_values_are_combined_array_by_array(makers: list[Any], combine: Any, kind: str) -> None:
    refs = [maker.make.remote(kind, scale) for scale, maker in enumerate(makers, 1)]
    total = combine(refs)
    assert_same(hop.get(total, timeout_s=60), value_of(kind, 6))
    assert hop.sources(total) == refs


@pytest.mark.parametrize("kind", KINDS)
def test_bare_values_are_taken_where_they_are(makers: list[Any], kind: str) -> None:
    refs = [maker.bare.remote(kind, scale) for scale, maker in enumerate(makers, 1)]
    assert_same(hop.get(hop.reduce(refs), timeout_s=60), value_of(kind, 6))
    gathered = hop.get(hop.gather(refs), timeout_s=60)
    assert_same(gathered, [value_of(kind, scale) for scale in (1, 2, 3)])


def test_sources_are_refs_and_arrays_mixed(makers: list[Any]) -> None:
    arrays = [hop.array(value_of("numpy", scale)) for scale in (1, 2)]
    filled = hop.empty(arrays[0].shape, str(arrays[0].dtype))
    filled[...] = value_of("numpy", 3)
    task = makers[2].make.remote("numpy", 4)
    sources = [*arrays, filled, task]
    for combine in (hop.reduce, hop.all_reduce):
        total = combine(sources)
        assert_same(hop.get(total, timeout_s=60), value_of("numpy", 10))
        assert hop.sources(total) == [*map(hop.put, [*arrays, filled]), task]
    gathered = hop.get(hop.gather(sources), timeout_s=60)
    assert_same(gathered, [value_of("numpy", scale) for scale in (1, 2, 3, 4)])
    shares = hop.get(hop.reduce_scatter(sources), timeout_s=60)
    assert_same(np.concatenate(shares), value_of("numpy", 10))


OPERATIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "mean": np.add,
}


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize(
    ("dtype", "count"),
    [("float16", 3), ("float32", 3), ("int8", 3), ("uint16", 3), ("float16", LARGE)],
)
def test_every_operation(cluster: RayCluster, op: Any, dtype: str, count: int) -> None:
    rows = (np.arange(4 * count).reshape(4, count) % 12).astype(dtype)
    total = hop.reduce([hop.put(row) for row in rows], op=op)
    if op == "mean" and rows.dtype.kind != "f":
        with pytest.raises(hop.InvalidArgumentError, match=rf"source \d: .*{dtype}"):
            hop.get(total, timeout_s=60)
        return
    received = hop.get(total, timeout_s=60)
    expected = OPERATIONS[op].reduce(rows, axis=0, dtype=dtype)
    assert received.dtype == dtype
    assert received.tolist() == (expected / len(rows) if op == "mean" else expected).tolist()


@pytest.mark.parametrize("combine", [hop.reduce, hop.all_reduce])
@pytest.mark.parametrize("count", [1000, LARGE], ids=["small", "large"])
def test_a_deterministic_sum_has_the_bits_of_one_tree(
    cluster: RayCluster, combine: Any, count: int
) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((4, count)) * 2.0 ** rng.integers(-13, 14, count)
    rows = rows.astype(np.float32)
    received = hop.get(combine([hop.put(row) for row in rows], deterministic=True), timeout_s=60)
    assert received.tobytes() == ((rows[0] + rows[1]) + (rows[2] + rows[3])).tobytes()


def test_a_sum_comes_to_its_callers_node_before_anybody_gets_it(makers: list[Any]) -> None:
    before = ray.get(makers[0].blocks_received.remote())
    ones = np.ones(LARGE, np.float32)
    total = hop.reduce([maker.says.remote(ones) for maker in makers[1:]])
    assert hop.wait([total], timeout_s=60) == ([total], [])
    assert eventually(lambda: ray.get(makers[0].blocks_received.remote()) > before)
    assert_same(hop.get(total, timeout_s=60), 2 * ones)


def received_when_quiet(makers: list[Any]) -> list[int]:
    """The blocks that each maker's node has received, once no node receives any more."""
    counts: list[list[int]] = [[]]

    def is_quiet() -> bool:
        counts.append(ray.get([maker.blocks_received.remote() for maker in makers]))
        return counts[-1] == counts[-2]

    assert eventually(is_quiet)
    return counts[-1]


def test_shares_go_to_who_made_the_sources(makers: list[Any]) -> None:
    refs = [maker.make.remote("numpy", scale) for scale, maker in enumerate(makers, 1)]
    shares = hop.reduce_scatter(refs)
    received = [maker.says.remote(share) for maker, share in zip(makers, shares, strict=True)]
    whole = value_of("numpy", 6)
    for share, says, rows in zip(shares, received, np.array_split(whole, 3), strict=True):
        assert_same(hop.get(says, timeout_s=60), rows)
        assert hop.sources(share) == refs
    stats = received_when_quiet(makers)  # transfers of earlier tests may still be under way
    hop.get([maker.sums.remote(share) for maker, share in zip(makers, shares, strict=True)])
    assert [ray.get(maker.blocks_received.remote()) for maker in makers] == stats


@needs_torch
def test_shares_of_tensors_are_tensors(makers: list[Any]) -> None:
    refs = [maker.bare.remote("torch", scale) for scale, maker in enumerate(makers, 1)]
    shares = hop.get(hop.reduce_scatter(refs, op="max", deterministic=True), timeout_s=60)
    whole = value_of("torch", 3)
    assert_same(shares, list(whole.tensor_split(3)))


def test_every_share_tells_of_the_source_that_failed(makers: list[Any]) -> None:
    refs = [makers[0].make.remote("numpy"), makers[1].fails.remote()]
    for share in hop.reduce_scatter(refs):
        with pytest.raises(ray.exceptions.RayTaskError, match="no such batch"):
            hop.get(share, timeout_s=60)


@needs_torch
def test_bfloat16_is_summed_in_float32(cluster: RayCluster) -> None:
    import torch

    one, tiny = torch.ones(8), torch.full((8,), 2.0**-9)
    refs = [hop.put(each.to(torch.bfloat16)) for each in (one, tiny, tiny, tiny, tiny)]
    received = hop.get(hop.reduce(refs), timeout_s=60)
    assert torch.equal(received, (one + 4 * tiny).to(torch.bfloat16))


def test_a_gather_keeps_the_order_of_its_sources(makers: list[Any]) -> None:
    gate = Gate.remote()
    refs = [
        gate.passed.remote(np.full(3, 1.0)),
        makers[1].make.remote("numpy"),
        hop.put({"w": np.full(4, 3)}),
        hop.reduce([hop.put(np.ones(2)), hop.put(np.ones(2))]),
    ]
    gathered = hop.gather(refs)
    assert hop.wait([gathered], timeout_s=0.3) == ([], [gathered])
    ray.get(gate.open.remote())
    expected = [np.full(3, 1.0), value_of("numpy"), {"w": np.full(4, 3)}, np.full(2, 2.0)]
    assert_same(hop.get(gathered, timeout_s=60), expected)
    assert_same(ray.get(makers[2].get.remote([gathered]), timeout=60), expected)


def test_a_task_gets_the_arrays_of_a_gather(makers: list[Any]) -> None:
    refs = [hop.put(np.full(LARGE, float(value))) for value in range(3)]
    gathered = hop.all_gather(refs)
    del refs  # the gather keeps them
    firsts = [maker.first_of.remote(gathered) for maker in makers]
    assert ray.get(firsts, timeout=60) == [[0.0, 1.0, 2.0]] * 3
    assert [each[-1] for each in hop.get(gathered)] == [0, 1, 2]


def test_a_gather_lets_its_sources_go(cluster: RayCluster) -> None:
    refs = [hop.put(np.ones(LARGE)) for _ in range(2)]
    names = [ref.binary() for ref in refs]
    gathered = hop.gather(refs)
    hop.get(gathered, timeout_s=60)
    del refs
    assert not is_gone(names[0])
    del gathered
    assert eventually(lambda: all(map(is_gone, names)), within_s=30)


def test_a_gather_raises_what_a_source_raised(makers: list[Any]) -> None:
    never = Gate.remote().passed.remote(1)
    gathered = hop.gather([never, makers[0].fails.remote(), hop.put(np.ones(3))])
    with pytest.raises(KeyError, match="no such batch"):
        hop.get(gathered, timeout_s=60)
    with pytest.raises(hop.WrongTypeError, match="source 1 returned set, which can't be put"):
        hop.get(hop.gather([hop.put(np.ones(3)), makers[0].says.remote({"a"})]), timeout_s=60)
    cancelled = hop.gather([never])
    cancel(cancelled)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        hop.get(cancelled, timeout_s=60)


def test_sources_that_differ_are_told_where(makers: list[Any]) -> None:
    first = hop.put({"w": np.ones(3), "b": np.ones(2)})
    hop.get(first)
    other = makers[0].says.remote({"w": np.ones(3), "b": np.ones(4)})
    with pytest.raises(hop.LayoutMismatchError, match=r"b.*float64.*all sources need the same"):
        hop.get(hop.reduce([first, other]), timeout_s=60)


def test_waiting_for_a_gather_gives_the_cpu_back(cluster: RayCluster) -> None:
    one_cpu = {"num_cpus": 2, "resources": {"n2": 0.001}}  # all of node 2

    @ray.remote(**one_cpu)
    def reads(nested: list[ray.ObjectRef]) -> float:
        return float(sum(each.sum() for each in hop.get(nested[0])))

    @ray.remote(**one_cpu)
    def makes() -> hop.Array:
        return hop.array(np.ones(LARGE))

    gate = Gate.remote()
    late = [makes.remote() for _ in range(2)]
    reader = reads.remote([hop.gather([gate.passed.remote(np.ones(1)), *late])])
    ray.get(gate.open.remote())
    assert ray.get(reader, timeout=80) == 2 * LARGE + 1
