"""Values of every kind over three nodes: put on one, reduced by all, got on the others."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.store import new_id
from hoplite_ray.values.dtypes import NATIVE
from hoplite_ray.values.layout import REDUCE_OPS
from tests.process.nodes import WAIT_S, Nodes
from tests.unit.values import assert_same

FLOATS = {"float32": 2e-6, "float64": 4e-15, "float16": 1e-3, "bfloat16": 8e-3}  # of one rounding
INTEGERS = [name for name in NATIVE if "int" in name]
IN_NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def source(index: int, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Numbers of either sign, for which no float operation overflows; integers do."""
    rng = np.random.default_rng(index)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name in FLOATS:
        return (rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)).astype(dtype_of(name))
    return rng.integers(0, 256, (*shape, np.dtype(name).itemsize), np.uint8).view(name)[..., 0]


def combined(op: str, arrays: list[npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    """numpy's result, in a wider type where the result is rounded once at the end."""
    wide = [each.astype(np.float64) if name in FLOATS else each for each in arrays]
    total = wide[0]
    for each in wide[1:]:
        total = IN_NUMPY["sum" if op == "mean" else op](total, each)
    return (total / len(arrays) if op == "mean" else total).astype(dtype_of(name))


def operations() -> list[tuple[str, str]]:
    found = []
    for op, name in itertools.product(REDUCE_OPS, NATIVE):
        if name in FLOATS or (name in INTEGERS and op != "mean") or op in ("min", "max"):
            found.append((op, name))
    return found


@pytest.mark.parametrize(("op", "name"), operations())
def test_every_operation_of_every_dtype_is_numpys(three: Nodes, op: Any, name: str) -> None:
    for shape in ((5,), (333, 331)):  # below and above what travels inline
        arrays = [source(index, shape, name) for index in range(4)]
        ids = [three.put(index % 3, array) for index, array in enumerate(arrays)]
        target = new_id()
        assert sorted(three[0].reduce(target, ids, op=op, timeout_s=WAIT_S).members) == [0, 1, 2, 3]
        expected = combined(op, arrays, name)
        for rank in range(3):
            result = three.get(rank, target)
            assert (result.dtype, result.shape) == (expected.dtype, shape)
            if name in FLOATS:
                wide = result.astype(np.float64), expected.astype(np.float64)
                error = FLOATS[name] * (sum(map(np.abs, arrays)) if op == "sum" else 1)
                np.testing.assert_allclose(*wide, rtol=FLOATS[name], atol=np.max(error))
            else:
                np.testing.assert_array_equal(result, expected)
        for object_id in (*ids, target):
            three[0].delete(object_id)


@pytest.mark.parametrize(
    ("op", "name"), [("sum", "bool"), ("prod", "bool"), ("mean", "int64"), ("mean", "bool")]
)
def test_what_a_dtype_cannot_do_is_refused_with_the_next_step(
    three: Nodes, op: Any, name: str
) -> None:
    ids = [three.put(index, np.zeros(3, name)) for index in range(2)]
    with pytest.raises(InvalidArgumentError, match=rf"{name}.*{op}|{op}.*{name}"):
        three[2].reduce(new_id(), ids, op=op, timeout_s=WAIT_S)


def test_opaque_bytes_are_not_reduced(three: Nodes) -> None:
    ids = [three.put(index, np.zeros(3, "M8[s]")) for index in range(2)]
    with pytest.raises(InvalidArgumentError, match="opaque"):
        three[2].reduce(new_id(), ids, timeout_s=WAIT_S)


def state(index: int, size: int) -> dict[Any, Any]:
    """A state like that of a model and its optimizer: several dtypes, shapes and containers."""
    return {
        "weights": OrderedDict(
            w=source(index, (size, 3), "float32"), b=source(index, (7,), "bfloat16")
        ),
        0: [source(index, (size,), "float64"), (source(index, (), "int32"),)],
        ("counts", 1): source(index, (size, 2), "int64"),
    }


@pytest.mark.parametrize("size", [1, 100, 50_000])
def test_a_state_of_many_arrays_is_one_object_and_reduced_array_by_array(
    three: Nodes, size: int
) -> None:
    states = [state(index, size) for index in range(3)]
    ids = [three.put(index, each) for index, each in enumerate(states)]
    assert_same(three.get(1, ids[0]), states[0])
    target = new_id()
    three[1].reduce(target, ids, op="max", timeout_s=WAIT_S)
    expected = {
        "weights": OrderedDict(
            w=combined("max", [each["weights"]["w"] for each in states], "float32"),
            b=combined("max", [each["weights"]["b"] for each in states], "bfloat16"),
        ),
        0: [
            combined("max", [each[0][0] for each in states], "float64"),
            (combined("max", [each[0][1][0] for each in states], "int32"),),
        ],
        ("counts", 1): combined("max", [each["counts", 1] for each in states], "int64"),
    }
    for rank in range(3):
        assert_same(three.get(rank, target), expected)


def test_a_thousand_arrays_travel_as_one_object(three: Nodes) -> None:
    value = {
        f"layer.{n}.weight": np.full((n % 7, 3), n, ("f4", "f2", "i8")[n % 3]) for n in range(1000)
    }
    assert_same(three.get(2, three.put(0, value)), value)


def test_writing_into_a_received_value_changes_nobody_elses(three: Nodes) -> None:
    value = {"a": np.zeros(100_000), "b": [np.zeros(3)]}
    object_id = three.put(0, value)
    received = three.get(1, object_id)
    received["a"][:] = 1
    received["b"][0][:] = 1
    for rank in range(3):
        assert_same(three.get(rank, object_id), value)


def test_sources_of_other_containers_do_not_mix(three: Nodes) -> None:
    ids = [three.put(0, [np.zeros(3)]), three.put(1, (np.zeros(3),))]
    with pytest.raises(LayoutMismatchError):
        three[2].reduce(new_id(), ids, timeout_s=WAIT_S)


def test_all_nodes_fold_an_allreduce_and_all_get_the_result(three: Nodes) -> None:
    arrays = [source(index, (3, 111_111), "float64") for index in range(3)]
    ids = [three.put(index, array) for index, array in enumerate(arrays)]
    target = new_id()
    early = three[1].begin_get(target)
    done = three[0].all_reduce(target, ids, op="mean", timeout_s=WAIT_S)
    assert sorted(done.members) == [0, 1, 2]
    expected = combined("mean", arrays, "float64")
    for rank in range(3):
        np.testing.assert_allclose(three.get(rank, target), expected, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(early.result(WAIT_S).value, three.get(0, target))


def test_gather_gives_values_in_order_of_the_ids(three: Nodes) -> None:
    values = [np.arange(3), {"a": np.ones(70_000)}, np.float32(2)]
    ids = [three.put(index, value) for index, value in enumerate(values)]
    for rank in range(3):
        assert_same(three[rank].gather(ids, timeout_s=WAIT_S), [*values[:2], np.array(values[2])])
