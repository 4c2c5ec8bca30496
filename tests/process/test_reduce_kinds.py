"""Every dtype and operation over real nodes, equal to numpy within what decision 5h promises.

Integers, bools, max and min: exactly. Float sums, products and means: each of the n - 1 operations
is off by half a unit at most. 16-bit floats: as float32, and then rounded once.
"""

from __future__ import annotations

from typing import Any, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import ReduceOp
from tests.process.nodes import WAIT_S, Nodes

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(name) for name in ("float32", "float64", "float16")] + [BFLOAT16]
INTEGERS = [np.dtype(f"{kind}int{bits}") for kind in ("", "u") for bits in (8, 16, 32, 64)]
BOOL = np.dtype(np.bool_)
OPS: tuple[ReduceOp, ...] = get_args(ReduceOp)
SOURCES = 4


def takes(dtype: np.dtype[Any], op: ReduceOp) -> bool:
    if dtype == BOOL:
        return op in ("max", "min")
    return op != "mean" or dtype in FLOATS


KINDS = [(dtype, op) for dtype in [*FLOATS, *INTEGERS, BOOL] for op in OPS]
TAKEN = [kind for kind in KINDS if takes(*kind)]
REFUSED = [kind for kind in KINDS if not takes(*kind)]


def source(index: int, dtype: np.dtype[Any], size: int) -> npt.NDArray[Any]:
    """Any integers; floats of both signs and many sizes, with the special ones in front."""
    rng = np.random.default_rng(index)
    if dtype == BOOL:
        return rng.integers(0, 2, size).astype(dtype)
    if dtype not in FLOATS:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, size, dtype, endpoint=True)
    values = rng.standard_normal(size) * 2.0 ** rng.integers(-4, 5, size)
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0]
    for at in range(min(size - 1, len(special) ** 2)):  # each beside each in the first two sources
        values[at] = special[at // 6] if index == 0 else special[at % 6] if index == 1 else 1.0
    return values.astype(dtype)


def combined(op: ReduceOp, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """numpy's result, in the order of the list."""
    ufunc = {
        "sum": np.add,
        "mean": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }
    dtype = arrays[0].dtype
    is_half = dtype in (np.float16, BFLOAT16)
    wide = [array.astype(np.float32) if is_half else array for array in arrays]
    with np.errstate(all="ignore"):
        result = wide[0].copy()
        for each in wide[1:]:
            result = ufunc[op](result, each)
        if op == "mean":
            result = (result / result.dtype.type(len(arrays))).astype(result.dtype)
        return result.astype(dtype)


def assert_equal(received: npt.NDArray[Any], op: ReduceOp, arrays: list[npt.NDArray[Any]]) -> None:
    """Bit for bit but for the sign of zero, or within the error that another order may make."""
    expected = combined(op, arrays)
    dtype = expected.dtype
    assert (received.dtype, received.shape) == (dtype, expected.shape)
    if dtype in FLOATS:
        received, expected = received.astype(np.float64), expected.astype(np.float64)
    if dtype not in FLOATS or op in ("max", "min"):
        np.testing.assert_array_equal(received, expected)
        return
    sizes = np.abs([array.astype(np.float64) for array in arrays])
    with np.errstate(all="ignore"):
        largest = (
            sizes.prod(0) if op == "prod" else sizes.sum(0) / (len(arrays) if op == "mean" else 1)
        )
    eps = float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps)
    bound = len(arrays) * eps * largest
    if dtype in (np.float16, BFLOAT16):  # a sum in another order may fall on the other side
        bound += float(ml_dtypes.finfo(dtype).eps) * np.abs(expected)
        bound += float(ml_dtypes.finfo(dtype).smallest_subnormal)
    special = ~np.isfinite(expected) | ~np.isfinite(received)
    np.testing.assert_array_equal(received[special], expected[special])
    error = np.abs(received[~special] - expected[~special])
    assert (error <= bound[~special]).all()


@pytest.mark.parametrize(("dtype", "op"), TAKEN, ids=lambda each: str(each))
def test_every_dtype_and_operation_equals_numpy(
    three: Nodes, dtype: np.dtype[Any], op: ReduceOp
) -> None:
    for size in (0, 1, 40, 100_003):
        arrays = [source(index, dtype, size) for index in range(SOURCES)]
        ids = [three.put(index % 3, array) for index, array in enumerate(arrays)]
        reduction = three[0].reduce(new_id(), ids, op=op, timeout_s=WAIT_S)
        for rank in range(3):
            assert_equal(three.get(rank, reduction.target), op, arrays)
        for each in (*ids, reduction.target):
            three[0].delete(each, timeout_s=WAIT_S)


@pytest.mark.parametrize(("dtype", "op"), REFUSED, ids=lambda each: str(each))
def test_what_a_dtype_has_not_is_refused_by_name(
    three: Nodes, dtype: np.dtype[Any], op: ReduceOp
) -> None:
    ids = [three.put(rank, source(rank, dtype, 10)) for rank in range(2)]
    target = new_id()
    early = three[2].begin_get(target)
    with pytest.raises(InvalidArgumentError, match=f"is {dtype.name}, which has no {op}; use op="):
        three[0].reduce(target, ids, op=op, timeout_s=WAIT_S)
    with pytest.raises(InvalidArgumentError, match=f"has no {op}"):
        early.result(WAIT_S)
    for each in ids:
        three[0].delete(each, timeout_s=WAIT_S)


def test_what_is_no_number_is_refused(three: Nodes) -> None:
    ids = [three.put(rank, np.full(10, "text")) for rank in range(2)]
    with pytest.raises(InvalidArgumentError, match="is opaque bytes, which has no max; get the"):
        three[0].reduce(new_id(), ids, op="max", timeout_s=WAIT_S)


def test_sixteen_bits_are_rounded_once(three: Nodes) -> None:
    large = np.full(50_000, 2048, np.float16)  # 2048 + 1 is 2048 in float16
    ids = [three.put(0, large), *(three.put(1, np.ones_like(large)) for _ in range(6))]
    reduction = three[2].reduce(new_id(), ids, timeout_s=WAIT_S)
    np.testing.assert_array_equal(three.get(0, reduction.target), large + np.float16(6))


@pytest.mark.parametrize("size", [3, 30_001])
def test_containers_are_combined_array_by_array(three: Nodes, size: int) -> None:
    def value(index: int) -> dict[str, Any]:
        return {
            "weights": [source(index, dtype, size) for dtype in FLOATS],
            "step": source(index, np.dtype(np.float64), 1),
        }

    values = [value(index) for index in range(3)]
    ids = [new_id() for _ in values]
    for rank, (each, object_id) in enumerate(zip(values, ids, strict=True)):
        three[rank].put(object_id, each, timeout_s=WAIT_S)
    reduction = three[0].all_reduce(new_id(), ids, op="mean", timeout_s=WAIT_S)
    for rank in range(3):
        received: Any = three.get(rank, reduction.target)
        for at, array in enumerate(received["weights"]):
            assert_equal(array, "mean", [each["weights"][at] for each in values])
        assert_equal(received["step"], "mean", [each["step"] for each in values])


def test_other_parts_do_not_fit(three: Nodes) -> None:
    ids = [three.put(rank, np.zeros(64, dtype)) for rank, dtype in enumerate(("f4", "i4"))]
    with pytest.raises(LayoutMismatchError, match="differs in shape or dtype"):
        three[2].reduce(new_id(), ids, timeout_s=WAIT_S)
