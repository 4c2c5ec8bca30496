"""Handles in a value: their values take their places, and are read at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values import codec
from hoplite_ray.values.trees.handles import Handle
from tests.unit.values import assert_same

torch = pytest.importorskip("torch")  # here, because its import takes longer than a test may


class Box(Handle):
    """A handle of a value that is at hand."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Reading:
    """Reads boxes, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, boxes: Sequence[Box]) -> list[Any]:
        self.calls.append(len(boxes))
        return [each.value for each in boxes]


def encode(value: Any, reading: Reading) -> Any:
    encoded = codec.encode(value, reading)
    return codec.decode(encoded.layout.to_bytes(), bytearray(b"".join(encoded.data)))


ONE, TWO = Box(np.arange(3)), Box({"x": np.zeros(2), "y": [1, "two"]})


@pytest.mark.parametrize(
    ("value", "whole", "calls"),
    [
        ({"a": np.ones(2)}, {"a": np.ones(2)}, []),
        ([ONE], [ONE.value], [1]),
        ({"a": ONE, "b": (TWO, 3)}, {"a": ONE.value, "b": (TWO.value, 3)}, [2]),
        ([[ONE] * 40], [[ONE.value] * 40], [40]),
    ],
    ids=("none", "one", "nested", "one many times"),
)
def test_values_take_the_places_of_handles(value: Any, whole: Any, calls: list[int]) -> None:
    assert_same(encode(value, reading := Reading()), whole)
    assert reading.calls == calls


def test_a_handle_with_two_places_is_one_array() -> None:
    first, second = encode([ONE, ONE], Reading())
    first[0] = 7
    assert second[0] == 7


def test_a_value_in_which_no_handle_may_be_names_it() -> None:
    for refused in (
        lambda: codec.encode({"a": ONE}),
        lambda: codec.describe_empty(None, "f4", "numpy", {"a": ONE}),
    ):
        with pytest.raises(InvalidArgumentError, match=r'value\["a"\] is a handle of a value'):
            refused()


def test_tensors_without_bytes_are_specs_of_empty() -> None:
    with torch.device("meta"):
        layers = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    like = {"state": layers.state_dict(), "parameters": [*layers.parameters()], "step": 4}
    template = codec.describe_empty(None, "float32", "numpy", like)
    made = codec.lay_out(template, bytearray(template.layout.size_bytes))
    assert made["step"] == 4
    for kind in ("weight", "bias"):
        laid, asked = made["state"][kind], like["state"][kind]
        assert (laid.dtype, laid.shape, laid.device.type) == (asked.dtype, asked.shape, "cpu")
    assert [each.shape for each in made["parameters"]] == [(2, 3), (2,)]


def test_a_sparse_tensor_without_bytes_is_refused() -> None:
    odd = torch.empty(2, 2, device="meta", layout=torch.sparse_coo)
    with pytest.raises(InvalidArgumentError, match=r"value\[0\] is a tensor on meta"):
        codec.describe_empty(None, "float32", "numpy", [odd])
