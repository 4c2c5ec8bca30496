"""Deterministic reduces over real nodes: the bits of one tree over source indices, in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.store import new_id
from hoplite_ray.values.layout import ReduceOp
from tests.arithmetic import combine_along_the_tree
from tests.process.nodes import WAIT_S, MakeNodes, Nodes

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
FLOATS = [np.dtype(np.float32), np.dtype(np.float64), *HALVES]
SOURCES = 7
MEMBERS = (0, 2, 3, 5, 6)
SIZE = 60_001


def source(index: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Magnitudes so far apart that every order of adding has other last bits."""
    rng = np.random.default_rng(index)
    values = rng.standard_normal(SIZE) * 2.0 ** rng.integers(-13, 14, SIZE)
    return values.astype(dtype)


@pytest.mark.parametrize("op", ["sum", "prod", "mean"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ten_orders_of_arrival_give_the_same_bits(
    three: Nodes, dtype: np.dtype[Any], op: ReduceOp
) -> None:
    arrays = {index: source(index, dtype) for index in range(SOURCES)}
    ids = [three.put(index % 3, array) for index, array in arrays.items()]
    expected = combine_along_the_tree({index: arrays[index] for index in MEMBERS}, op).tobytes()
    rng = np.random.default_rng(1)
    for turn in range(10):
        pending = three.client(turn % 3).begin_reduce(
            target := new_id(),
            source_count=SOURCES,
            op=op,
            count=len(MEMBERS),
            everywhere=turn % 2 == 1,
            deterministic=True,
        )
        for index in rng.permutation(MEMBERS):
            pending.confirm(int(index), ids[index])
        assert sorted(pending.result(WAIT_S).members) == list(MEMBERS)
        assert three.get((turn + 1) % 3, target).tobytes() == expected, f"order {turn}"
        three[0].delete(target, timeout_s=WAIT_S)
    for each in ids:
        three[0].delete(each, timeout_s=WAIT_S)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_sources_above_tell_orders_apart(dtype: np.dtype[Any]) -> None:
    there = {index: source(index, dtype) for index in MEMBERS}
    back = {6 - index: array for index, array in there.items()}
    assert (
        combine_along_the_tree(there, "sum").tobytes()
        != combine_along_the_tree(back, "sum").tobytes()
    )


def test_reduce_and_allreduce_of_all_sources(three: Nodes) -> None:
    arrays = {index: source(index, FLOATS[0]) for index in range(4)}
    ids = [three.put(index % 3, array) for index, array in arrays.items()]
    expected = combine_along_the_tree(arrays, "sum").tobytes()
    one = three[0].reduce(new_id(), ids, deterministic=True, timeout_s=WAIT_S)
    other = three[2].all_reduce(new_id(), ids, deterministic=True, timeout_s=WAIT_S)
    for rank in range(3):
        assert three.get(rank, one.target).tobytes() == expected
        assert three.get(rank, other.target).tobytes() == expected
    for each in (*ids, one.target, other.target):
        three[0].delete(each, timeout_s=WAIT_S)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), HALVES[1]], ids=str)
def test_fold_threads_give_the_same_bits(cluster: MakeNodes, dtype: np.dtype[Any]) -> None:
    nodes = cluster(2, options={"fold_threads": 2})
    tasks = Path(f"/proc/{nodes.processes[0].process.pid}/task").glob("*/comm")
    assert [each.read_text() for each in tasks].count("hoplite-fold\n") == 2
    arrays = {index: np.tile(source(index, dtype), 10) for index in range(6)}
    ids = [nodes.put(index % 2, array) for index, array in arrays.items()]
    expected = combine_along_the_tree(arrays, "mean").tobytes()
    done = nodes[0].reduce(new_id(), ids, op="mean", deterministic=True, timeout_s=WAIT_S)
    assert nodes.get(1, done.target).tobytes() == expected


def test_the_flag_is_true_or_false(three: Nodes) -> None:
    wrong: Any = "yes"
    with pytest.raises(InvalidArgumentError, match="deterministic is 'yes'"):
        three.client(0).begin_reduce(new_id(), source_count=1, deterministic=wrong)
