"""Values of very many leaves through real nodes: put, got, spilled, reduced, filled in place."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import Layout, ReduceOp, forget_texts
from hoplite_ray.values.specs import spec
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.unit.values import Batch, Pair, assert_same


def state(leaves: int, size: int, start: float = 0.0) -> dict[str, Any]:
    return {
        f"model.layers.{n}.weight": np.full(size, start + n % 100, np.float32)
        for n in range(leaves)
    }


def put(nodes: Nodes, rank: int, value: Any) -> bytes:
    object_id = new_id()
    nodes[rank].put(object_id, value, timeout_s=WAIT_S)
    return object_id


def test_a_hundred_thousand_leaves_come_back_on_another_node(three: Nodes) -> None:
    value = {"weights": state(100_000, 2), "step": 7, "name": "run", "best": None}
    object_id = put(three, 0, value)
    forget_texts()  # so that the text comes with the bytes
    for rank in (1, 2):  # the second one knows it
        back: Any = three.get(rank, object_id)
        assert (back["step"], back["name"], back["best"]) == (7, "run", None)
        assert list(back["weights"]) == list(value["weights"])
        whole = np.concatenate([*back["weights"].values()])
        np.testing.assert_array_equal(whole, np.concatenate([*value["weights"].values()]))


def test_every_kind_of_leaf_and_container_comes_back(three: Nodes) -> None:
    rows = [Batch(ids=numbers(100 + n), mask=(True, n, n / 2, str(n), bytes(n))) for n in range(99)]
    value = {"rows": rows, ("pair", 1): Pair(1j, {"none": None}), "large": numbers(MIB)}
    for each in (value, rows[3], 5, -0.5, "text", b"", None, Pair(1)):
        object_id = put(three, 0, each)
        for rank in range(3):
            assert_same(three.get(rank, object_id), each)


def test_the_text_is_spilled_with_the_bytes(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=8 * MIB, options={"when_full": "spill"})
    values = [state(2_000, 256, start=n) for n in range(8)]  # of 2 MiB each
    ids = [put(nodes, 0, value) for value in values]
    nodes.wait_for(0, lambda s: s.spill_bytes >= 8 * MIB)
    forget_texts()
    for object_id, value in zip(ids, values, strict=True):
        for rank in (0, 1):
            assert_same(nodes.get(rank, object_id), value)
            gc.collect()


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_reduce_keeps_the_text_and_combines_the_leaves(
    three: Nodes, op: ReduceOp, deterministic: bool
) -> None:
    values = [
        {"w": state(3_000, 40, start=n), "h": np.full(999, n, np.float16), "loss": n / 2}
        for n in range(3)
    ]
    ids = [put(three, rank, value) for rank, value in enumerate(values)]
    how = {"op": op, "deterministic": deterministic, "timeout_s": WAIT_S}
    target = three[0].reduce(new_id(), ids, **how).target
    shift = {"sum": 3.0, "mean": 1.0, "max": 2.0}[op]
    times = 3 if op == "sum" else 1
    forget_texts()
    for rank in range(3):
        back: Any = three.get(rank, target)
        assert (back["loss"], back["h"].tolist()) == (shift / 2, [shift] * 999)
        for name, array in values[0]["w"].items():
            np.testing.assert_array_equal(back["w"][name], times * array + shift)


def test_sources_with_other_names_are_refused(three: Nodes) -> None:
    one, other = state(500, 40), state(501, 40)
    other.pop("model.layers.7.weight")
    ids = [put(three, 0, one), put(three, 1, other)]
    with pytest.raises(LayoutMismatchError):
        three[0].reduce(new_id(), ids, timeout_s=WAIT_S)


def test_str_and_bytes_are_refused_by_name(three: Nodes) -> None:
    ids = [put(three, rank, {**state(500, 40), "by": "adam"}) for rank in range(2)]
    with pytest.raises(InvalidArgumentError, match="is opaque bytes, which has no sum"):
        three[0].reduce(new_id(), ids, timeout_s=WAIT_S)


@pytest.mark.parametrize("leaves", [3, 2_000])
@pytest.mark.parametrize("size", [4, 64])
def test_a_value_is_filled_leaf_by_leaf(three: Nodes, leaves: int, size: int) -> None:
    value = state(leaves, size, start=5.0)
    specs = {name: spec(size) for name in value}
    like = {"specs": specs, "array": np.zeros((2, 3), ">i2"), "step": 3, "by": "x", "none": None}
    with three[0].empty(object_id := new_id(), like=like, timeout_s=WAIT_S) as made:
        for name, array in value.items():  # as a generator yields them
            made.value["specs"][name][...] = array
        made.value["array"][...] = 9
    with pytest.raises(ValueError, match="read-only"):
        made.value["array"][...] = 1
    forget_texts()
    expected = {**like, "specs": value, "array": np.full((2, 3), 9, ">i2")}
    for rank in range(3):
        back: Any = three.get(rank, object_id)
        assert_same(back, expected)
    assert Layout.of(expected) == made.layout


def test_a_shape_and_a_value_are_not_both_taken(three: Nodes) -> None:
    for how in ({}, {"shape": 3, "like": [spec(2)]}):
        with pytest.raises(InvalidArgumentError, match="takes a shape or like=, one of the two"):
            three[0].empty(new_id(), **how)
    with pytest.raises(
        InvalidArgumentError, match=r'^value\["w"\] is a spec of an array; fill what'
    ):
        three[0].put(new_id(), {"w": spec(3)})
