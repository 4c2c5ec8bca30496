"""What reduces are to give: sources of every dtype, and numpy's results of them.

Integers, bools, max and min: exactly. Float sums, products and means: each of the n - 1 operations
is off by half a unit at most. 16-bit floats: as float32, and then rounded once.
"""

from __future__ import annotations

from typing import Any, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hoplite_ray.values.layout import ReduceOp

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(name) for name in ("float32", "float64", "float16")] + [BFLOAT16]
INTEGERS = [np.dtype(f"{kind}int{bits}") for kind in ("", "u") for bits in (8, 16, 32, 64)]
BOOL = np.dtype(np.bool_)
OPS: tuple[ReduceOp, ...] = get_args(ReduceOp)
UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


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


def combine(op: ReduceOp, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """numpy's result, in the order of the list."""
    dtype = arrays[0].dtype
    is_half = dtype in (np.float16, BFLOAT16)
    wide = [array.astype(np.float32) if is_half else array for array in arrays]
    with np.errstate(all="ignore"):
        result = wide[0].copy()
        for each in wide[1:]:
            result = UFUNCS[op](result, each)
        if op == "mean":
            result = (result / result.dtype.type(len(arrays))).astype(result.dtype)
        return result.astype(dtype)


def assert_equal(received: npt.NDArray[Any], op: ReduceOp, arrays: list[npt.NDArray[Any]]) -> None:
    """Bit for bit but for the sign of zero, or within the error that another order may make."""
    expected = combine(op, arrays)
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


def along_the_tree(
    arrays: dict[int, npt.NDArray[Any]], op: ReduceOp, first: int = 0, span: int = 8
) -> npt.NDArray[Any] | None:
    """The sources of [first, first + span), half by half; 16-bit floats as float32."""
    if span == 1:
        leaf = arrays.get(first)
        if leaf is None or leaf.dtype not in (np.float16, BFLOAT16):
            return leaf
        return leaf.astype(np.float32)
    left = along_the_tree(arrays, op, first, span // 2)
    right = along_the_tree(arrays, op, first + span // 2, span // 2)
    if left is None or right is None:
        return right if left is None else left
    return UFUNCS[op](left, right)


def combine_along_the_tree(arrays: dict[int, npt.NDArray[Any]], op: ReduceOp) -> npt.NDArray[Any]:
    dtype = next(iter(arrays.values())).dtype
    with np.errstate(all="ignore"):
        total = along_the_tree(arrays, op)
        assert total is not None
        if op == "mean":
            total = total / total.dtype.type(len(arrays))
        return total.astype(dtype)
