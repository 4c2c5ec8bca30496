"""What worlds carry: dtypes, shapes and memory, and what they refuse."""

from __future__ import annotations

import array
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from hoplite_ray.errors import InvalidArgumentError, WrongTypeError
from hoplite_ray.worlds.core.arrays import to_fill, to_send, view_message


class OnADevice:
    """As a cupy array looks."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


class OfDlpack:
    """As an array of another library looks."""

    def __init__(self) -> None:
        self.inside = np.arange(3.0)

    def __dlpack__(self, **how: Any) -> Any:
        return self.inside.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inside.__dlpack_device__()


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (np.arange(6, dtype=np.int16).reshape(2, 3), "int16", (2, 3)),
        (np.array(2.5, np.float32), "float32", ()),
        (np.zeros(3, ml_dtypes.bfloat16), "bfloat16", (3,)),
        (np.zeros(3, ">f8"), ">f8", (3,)),
        (np.zeros(2, [("a", "<i4"), ("b", "<f8")]), '[["a","<i4"],["b","<f8"]]', (2,)),
        (bytearray(b"abc"), "uint8", (3,)),
        (array.array("d", [1, 2]), "float64", (2,)),
        (OfDlpack(), "float64", (3,)),
    ],
)
def test_arrays_of_the_cpu_travel_with_their_names(value: Any, dtype: str, shape: Any) -> None:
    lent = to_send(value)
    assert (lent.dtype, lent.shape) == (dtype, shape)
    buffer = bytearray(memoryview(lent.buffer).cast("B"))
    again = view_message(buffer, lent.dtype, lent.shape)
    assert again.flags.writeable and again.shape == shape
    assert again.tobytes() == lent.flat.tobytes()


def test_memory_is_shared_where_that_can_be() -> None:
    whole = np.zeros((3, 4))
    to_fill(whole).flat[:] = 5.0
    assert (whole == 5.0).all()
    assert np.shares_memory(to_send(whole).flat, whole)
    assert not np.shares_memory(to_send(whole.T).flat, whole)
    assert to_send(np.arange(6).reshape(2, 3).T).flat.tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (np.zeros((3, 4)).T, InvalidArgumentError, "contiguous in C order"),
        (np.frombuffer(b"abcd", np.uint8), InvalidArgumentError, "must be writable"),
        (np.array([object()]), InvalidArgumentError, "holds Python objects"),
        (OnADevice(), WrongTypeError, r"give its \.get\(\) or \.cpu\(\)"),
        ([1.0, 2.0], WrongTypeError, "np.asarray"),
        (3.5, WrongTypeError, "np.asarray"),
        ("text", WrongTypeError, "np.asarray"),
        (object(), WrongTypeError, "no array on the CPU"),
    ],
)
def test_what_can_not_be_filled_is_refused(value: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        to_fill(value)


@pytest.mark.parametrize(("dtype", "shape"), [("float64", (3,)), ("float32", (2, 2)), ("O", (1,))])
def test_a_message_of_another_size_than_it_says_is_refused(dtype: str, shape: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the sender is at fault"):
        view_message(bytearray(8), dtype, shape)
