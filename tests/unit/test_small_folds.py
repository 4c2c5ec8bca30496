"""The fold of small values in the steward: numpy's results, and the bits of the nodes' tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.plugin.handle import making
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.steward.folding import SmallFold
from hoplite_ray.values.codec import encode
from hoplite_ray.values.dtypes import NATIVE
from hoplite_ray.values.layout import REDUCE_OPS, Layout, ReduceOp, Share
from tests.arithmetic import (
    FLOATS,
    REFUSED,
    TAKEN,
    assert_equal,
    combine_along_the_tree,
    source,
)


def fold_of(value: Any, op: ReduceOp, share: Share | None = None, **how: bool) -> SmallFold:
    deterministic = how.get("deterministic", False)
    return SmallFold(b"t" * 28, Layout.of(value), op, share=share, deterministic=deterministic)


def small(value: Any) -> Array:
    encoded = encode(value)
    data = b"".join(encoded.data)
    return Array(b"s" * 28, 1, encoded.layout, None, data=data)


@pytest.mark.parametrize(("dtype", "op"), TAKEN, ids=lambda each: str(each))
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_dtype_and_operation_equals_numpy(
    dtype: np.dtype[Any], op: ReduceOp, deterministic: bool
) -> None:
    for size in (0, 1, 40, 3_001):
        for count in (1, 2, 5):
            arrays = [source(index, dtype, size) for index in range(count)]
            fold = fold_of(arrays[0], op, deterministic=deterministic)
            for index in reversed(range(count)):
                fold.add(index, small(arrays[index]))
            assert fold.is_over() and sorted(fold.members()) == list(range(count))
            result = fold.make((b"r" * 28,))
            assert_equal(result.copy(), op, arrays)
            assert result._members == (b"r" * 28,) and result._anchor is None


@pytest.mark.parametrize("op", ["sum", "prod", "mean", "max"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_order_of_arrival_gives_the_bits_of_the_nodes(
    dtype: np.dtype[Any], op: ReduceOp
) -> None:
    arrays = {index: source(index + 2, dtype, 500) for index in (0, 2, 3, 5, 6)}
    expected = combine_along_the_tree(arrays, op).tobytes()
    rng = np.random.default_rng(1)
    for _ in range(10):
        fold = fold_of(arrays[0], op, deterministic=True)
        for index in rng.permutation(list(arrays)):
            fold.add(int(index), small(arrays[int(index)]))
        assert fold.make(()).copy().tobytes() == expected


def test_containers_are_folded_array_by_array() -> None:
    def value(scale: int) -> dict[str, npt.NDArray[Any]]:
        return {
            "w": np.full((3, 5), scale, np.float32),
            "n": np.arange(7, dtype=np.int64) * scale,
            "h": np.full(33, scale, np.float16),
            "none": np.zeros(0),
        }

    fold = fold_of(value(1), "sum")
    for index in range(3):
        fold.add(index, small(value(index + 1)))
    total = fold.make(()).copy()
    for name, expected in value(6).items():
        assert total[name].dtype == expected.dtype
        assert total[name].tolist() == expected.tolist()


def test_a_share_has_the_rows_of_its_reader() -> None:
    array = np.arange(21, dtype=np.int16).reshape(7, 3)
    shares = []
    for reader in range(4):
        fold = fold_of(array, "sum", Share.of(Layout.of(array), reader, 4))
        for index in range(4):
            fold.add(index, small(array))
        shares.append(fold.make(()).copy())
    expected = np.array_split(4 * array, 4)
    assert [each.tolist() for each in shares] == [each.tolist() for each in expected]


def test_a_source_is_left_as_it_was() -> None:
    one = making.make_small(encode(np.ones(4)))
    fold = fold_of(np.ones(4), "mean", deterministic=True)
    fold.add(0, one)
    fold.add(1, one)
    assert fold.make(()).copy().tolist() == [1] * 4 == one.copy().tolist()


@pytest.mark.parametrize(("dtype", "op"), REFUSED, ids=lambda each: str(each))
def test_the_kernels_refuse_what_they_lack(dtype: np.dtype[Any], op: ReduceOp) -> None:
    number = NATIVE[str(dtype)]
    with pytest.raises(InvalidArgumentError, match=f"{op} does not take {dtype}"):
        _native.fold(REDUCE_OPS[op], number, True, bytearray(8), bytes(8))
    with pytest.raises(InvalidArgumentError, match=f"{op} does not take {dtype}"):
        _native.finish(REDUCE_OPS[op], number, 1, bytearray(8))


def test_the_kernels_refuse_other_sizes() -> None:
    float16 = NATIVE["float16"]
    for into, data in [(8, 8), (4, 4), (16, 7), (0, 2)]:
        with pytest.raises(InvalidArgumentError, match="need accumulators of 4 bytes each"):
            _native.fold(REDUCE_OPS["sum"], float16, True, bytearray(into), bytes(data))
    with pytest.raises(InvalidArgumentError, match="need accumulators of 4 bytes each"):
        _native.finish(REDUCE_OPS["sum"], float16, 1, bytearray(7))
    with pytest.raises(InvalidArgumentError, match="at least one source"):
        _native.finish(REDUCE_OPS["sum"], float16, 0, bytearray(8))
    memory = bytearray(8)
    with pytest.raises(InvalidArgumentError, match="pass a copy"):
        _native.fold(REDUCE_OPS["sum"], NATIVE["int8"], False, memory, memory)
    with pytest.raises(InvalidArgumentError, match="reduce op 9"):
        _native.fold(9, float16, True, bytearray(8), bytes(4))
