"""Operators of hop.Array, on values that need no store: numpy's and torch's answers, no changes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from hoplite_ray.plugin.handle.leaves import (
    copy_leaf,
    to_numpy,
    to_read_only,
    to_tensor,
)
from hoplite_ray.plugin.handle.operators import Operators
from hoplite_ray.values.trees.tree import map_leaves


class Handle(Operators):
    """What Array is to its operators, with the value at hand."""

    def __init__(self, value: Any, *, is_sealed: bool = True) -> None:
        self._value = value
        self._is_sealed = is_sealed

    def _view(self) -> Any:
        return map_leaves(self._value, to_read_only) if self._is_sealed else self._value

    def _writable_value(self) -> Any:
        if self._is_sealed:
            raise TypeError("it is immutable")
        return self._value

    def torch(self) -> Any:
        return map_leaves(map_leaves(self._value, copy_leaf), to_tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return to_numpy(self._value)


BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow),
    *(operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor),
    *(operator.truediv, operator.matmul, divmod),
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
]
IN_PLACE = [
    *(operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod),
    *(operator.ipow, operator.ilshift, operator.irshift, operator.iand, operator.ior),
    *(operator.ixor,),
]


def _same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


@pytest.mark.parametrize("operate", BINARY, ids=lambda each: each.__name__)
def test_a_handle_on_either_side_is_its_value(operate: Any) -> None:
    left, right = np.array([7, 8, 9]), np.array([1, 2, 3])
    expected = operate(left, right)
    _same(operate(Handle(left), right), expected)
    _same(operate(left, Handle(right)), expected)
    _same(operate(Handle(left), Handle(right)), expected)
    if operate is not operator.matmul:
        _same(operate(Handle(left), 2), operate(left, 2))
        _same(operate(2, Handle(right)), operate(2, right))


@pytest.mark.parametrize("operate", [operator.neg, operator.pos, abs, operator.invert])
def test_one_operand(operate: Any) -> None:
    _same(operate(Handle(np.array([-1, 2]))), operate(np.array([-1, 2])))


@pytest.mark.parametrize("operate", IN_PLACE, ids=lambda each: each.__name__)
def test_in_place_only_before_sealing(operate: Any) -> None:
    value = np.array([7, 8, 9])
    with pytest.raises(TypeError, match="immutable"):
        operate(Handle(value), 1)
    assert value.tolist() == [7, 8, 9]
    handle = written = Handle(value, is_sealed=False)
    written = operate(written, Handle(np.array([1, 1, 1])))
    assert written is handle
    assert value.tolist() == operate(np.array([7, 8, 9]), 1).tolist()


def test_indices_may_be_handles() -> None:
    value = np.arange(12).reshape(3, 4)
    assert Handle(value)[1, 2] == 6
    assert Handle(value)[Handle(np.array([2, 0])), 1].tolist() == [9, 1]
    assert [row.sum() for row in Handle(value)] == [6, 22, 38]
    assert 11 in Handle(value)
    assert 12 not in Handle(value)


def test_nothing_that_is_shown_can_be_written() -> None:
    handle = Handle({"w": np.zeros(3)})
    with pytest.raises(ValueError, match="read-only"):
        handle["w"][0] = 1
    with pytest.raises(TypeError, match="immutable"):
        handle["w"] = np.ones(3)
    writing = Handle(np.zeros(3), is_sealed=False)
    writing[1:] = Handle(np.ones(2))
    assert writing._value.tolist() == [0, 1, 1]


def test_one_element_is_a_number_and_several_are_none() -> None:
    one = Handle(np.array([[3]]))
    assert (int(one), float(one), complex(one), bool(one)) == (3, 3.0, 3 + 0j, True)
    assert [10, 11, 12, 13][one] == 13
    for wanted in (int, float, complex, bool, operator.index):
        with pytest.raises(TypeError, match="no one element to become"):
            wanted(Handle(np.arange(2)))
    with pytest.raises(TypeError):
        operator.index(Handle(np.array(1.5)))
    assert not Handle({})
    assert Handle([np.zeros(2)])


def test_handles_have_no_hash_as_arrays_have_none() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Handle(np.zeros(1)))


def test_numpy_functions_take_handles() -> None:
    value = np.arange(4.0)
    _same(np.add(Handle(value), 1), value + 1)
    _same(np.add.reduce(Handle(value)), np.add.reduce(value))
    _same(np.sqrt(Handle(value)), np.sqrt(value))
    _same(value + Handle(value), value * 2)
    _same(np.stack([Handle(value), Handle(value)]), np.stack([value, value]))
    into = np.empty(4)
    assert np.multiply(Handle(value), 2, out=into) is into
    assert into.tolist() == [0, 2, 4, 6]


def test_numpy_writes_only_into_what_is_not_sealed() -> None:
    value = np.zeros(2)
    for write in (
        lambda handle: np.add(value, 1, out=handle),
        lambda handle: np.add.at(handle, [0], 1),
    ):
        with pytest.raises(TypeError, match="immutable"):
            write(Handle(value))
    np.add(np.ones(2), 1, out=Handle(value, is_sealed=False))
    assert value.tolist() == [2, 2]


def test_torch_functions_take_handles() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ones, value = torch.ones(3), Handle(np.arange(3, dtype=np.float32))
    assert (ones + value).tolist() == [1, 2, 3]
    assert torch.stack([value, ones]).shape == (2, 3)
    assert torch.add(input=value, other=ones).tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="immutable"):
        torch.add(ones, ones, out=value)
    tensor = Handle(torch.arange(3))
    assert (tensor + 1).tolist() == [1, 2, 3]
    assert type(tensor * Handle(torch.ones(3))) is torch.Tensor
    assert type(np.add(tensor, 1)) is np.ndarray
    assert float(Handle(torch.tensor([2.5]))) == 2.5


def test_leaves_are_converted_in_place() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    value = {"a": [np.ones(2, np.float32)], "b": (torch.zeros(3),)}
    tensors = map_leaves(value, to_tensor)
    assert type(tensors["a"][0]) is torch.Tensor
    assert tensors["b"][0] is value["b"][0]
    arrays = map_leaves(value, to_numpy)
    assert type(arrays["b"]) is tuple
    arrays["b"][0][0] = 5
    assert value["b"][0][0] == 5  # the same memory


def test_bfloat16_goes_both_ways() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    array = to_numpy(tensor)
    assert array.dtype.name == "bfloat16"
    assert array.astype(np.float32).tolist() == [1.5, -2.0]
    assert torch.equal(to_tensor(array), tensor)
