"""Every dtype and operation over real nodes, equal to numpy within what decision 5h promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError, LayoutMismatchError
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import ReduceOp
from tests.arithmetic import FLOATS, REFUSED, TAKEN, assert_equal, source
from tests.process.nodes import WAIT_S, Nodes

SOURCES = 4


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
