"""Named tuples and dataclasses: found by name at both ends, made without running their code."""

from __future__ import annotations

import sys
from collections import namedtuple
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from hoplite_ray.errors import HopliteError
from hoplite_ray.values import codec
from hoplite_ray.values.trees import named
from hoplite_ray.values.trees.tree import map_leaves

ONE = np.arange(3.0)


class Outer:
    class Step(NamedTuple):
        state: Any
        reward: float = 0.0


@dataclass(kw_only=True)
class Counted:
    made = 0

    weights: Any
    hidden: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        type(self).made += 1

    @cached_property
    def total(self) -> float:
        return float(self.weights.sum())


def there_and_back(value: Any) -> Any:
    encoded = codec.encode(value)
    return codec.decode(encoded.layout.to_bytes(), bytearray(b"".join(encoded.data)))


def test_a_class_in_a_class_comes_back() -> None:
    back = there_and_back({"steps": [Outer.Step(ONE), Outer.Step(None, 2.5)]})
    assert type(back["steps"][0]) is Outer.Step
    assert back["steps"][0].state.tolist() == [0, 1, 2]
    assert back["steps"][1] == (None, 2.5)


def test_no_code_of_a_dataclass_runs() -> None:
    value = Counted(weights=ONE)
    value.hidden = (1, "x")
    assert value.total == 3  # which its dict keeps
    back = there_and_back(value)
    assert type(back) is Counted
    assert (back.weights.tolist(), back.hidden) == ([0, 1, 2], (1, "x"))
    assert "total" not in vars(back)
    assert Counted.made == 1


def test_the_arrays_in_it_can_be_converted() -> None:
    value = Counted(weights=[ONE])
    doubled = map_leaves({"a": value, "b": Outer.Step(ONE, 2.0)}, lambda leaf: 2 * leaf)
    assert doubled["a"].weights[0].tolist() == [0, 2, 4]
    assert (doubled["b"].state.tolist(), doubled["b"].reward) == ([0, 2, 4], 2.0)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that each node has in its own version."""
    named._load_class.cache_clear()
    made = ModuleType("shipped")
    monkeypatch.setitem(sys.modules, "shipped", made)
    return made


def put_in(module: ModuleType, cls: Any) -> None:
    cls.__module__, cls.__qualname__ = "shipped", "Item"
    vars(module)["Item"] = cls


def refuse(module: ModuleType, later: Any) -> str:
    """Put an instance of one class, and get it where its module has another one."""
    put_in(module, namedtuple("Item", "x y"))
    encoded = codec.encode(module.Item(1, ONE))
    vars(module).clear()
    if later is not None:
        put_in(module, later)
    with pytest.raises(HopliteError) as refusal:
        codec.decode_copy(encoded)
    return str(refusal.value)


def test_a_class_that_is_not_there_is_named(module: ModuleType) -> None:
    text = refuse(module, None)
    assert "holds a NamedTuple shipped:Item with the fields x, y; here its module has no" in text


def test_a_class_with_other_fields_is_named(module: ModuleType) -> None:
    text = refuse(module, namedtuple("Item", "x z"))
    assert "shipped:Item with the fields x, y; here its module has other fields: x, z" in text


@pytest.mark.parametrize("other", [make_dataclass("Item", ["x", "y"]), type("Item", (), {})])
def test_a_class_of_another_kind_is_refused(module: ModuleType, other: Any) -> None:
    assert "use one version of it on all nodes" in refuse(module, other)


def test_a_module_that_is_not_there_is_named(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(module, namedtuple("Item", "x y"))
    encoded = codec.encode(module.Item(1, ONE))
    monkeypatch.delitem(sys.modules, "shipped")
    with pytest.raises(HopliteError, match=r"shipped:Item, which can't be imported here \(Module"):
        codec.decode_copy(encoded)
