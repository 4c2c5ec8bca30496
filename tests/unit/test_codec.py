"""An array comes back as it went in, whatever its dtype, shape and memory order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hoplite_ray import codec
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.refs import Layout

plain_dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    hnp.array_dtypes(hnp.scalar_dtypes(), allow_subarrays=True),
)
arrays = hnp.arrays(plain_dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))


def there_and_back(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    encoded = codec.encode(array)
    return codec.decode(encoded.layout, bytearray(encoded.data.tobytes()))


@given(arrays)
def test_round_trip_keeps_dtype_shape_and_bytes(array: npt.NDArray[Any]) -> None:
    back = there_and_back(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@given(arrays)
def test_layout_bytes_are_equal_exactly_for_equal_layouts(array: npt.NDArray[Any]) -> None:
    again = np.empty(array.shape, array.dtype)
    assert codec.encode(array).layout == codec.encode(again).layout
    other = array.reshape((1, *array.shape))
    assert codec.encode(other).layout != codec.encode(array).layout


@given(arrays)
def test_a_layout_survives_its_bytes(array: npt.NDArray[Any]) -> None:
    layout = Layout(array.dtype, array.shape)
    assert Layout.from_bytes(layout.to_bytes()) == layout
    assert layout.size_bytes == array.nbytes


@given(st.binary(max_size=200))
def test_hostile_layout_bytes_are_refused_or_a_layout(encoded: bytes) -> None:
    try:
        layout = Layout.from_bytes(encoded)
    except InvalidArgumentError as error:
        assert "codec.encode" in str(error)
    else:
        assert layout.size_bytes >= 0


HOSTILE = {
    "not json": b"{",
    "no pair": b"[1]",
    "unknown dtype": b'["<q9",[1]]',
    "objects": b'["|O",[1]]',
    "negative extent": b'["<f4",[-1]]',
    "no shape": b'["<f4",3]',
    "deep": b"[" * 4000,
    "huge extent text": b'["<f4",["' + b"9" * 3000 + b'"]]',
}


@pytest.mark.parametrize("encoded", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_layout_is_refused_with_a_next_step(encoded: bytes) -> None:
    if encoded == HOSTILE["huge extent text"]:
        assert Layout.from_bytes(encoded).size_bytes > 2**64  # a number like any other
    else:
        with pytest.raises(InvalidArgumentError, match=r"codec\.encode"):
            Layout.from_bytes(encoded)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("<f4", 1),
        ("<f8", 2),
        ("<i8", 3),
        (">f4", 0),
        ("<i4", 0),
        ("<f2", 0),
        ("?", 0),
        ("<M8[s]", 0),
    ],
)
def test_only_what_the_kernels_add_has_a_native_number(dtype: str, number: int) -> None:
    assert codec.encode(np.zeros(3, dtype)).dtype == number


def test_an_array_in_c_order_is_not_copied() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert np.shares_memory(np.asarray(codec.encode(array).data), array)


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[:, ::-1], np.s_[:, 1:3], np.s_[1, ::-2]])
def test_an_array_in_another_order_arrives_in_c_order(view: Any) -> None:
    array = np.arange(24.0).reshape(4, 6)[view]
    back = there_and_back(array)
    np.testing.assert_array_equal(back, array)
    assert back.flags.c_contiguous


def test_fortran_order_arrives_in_c_order() -> None:
    array = np.asfortranarray(np.arange(24.0).reshape(4, 6))
    np.testing.assert_array_equal(there_and_back(array), array)


def test_a_number_is_an_array_without_dimensions() -> None:
    back = there_and_back(np.float32(2.5))  # type: ignore[arg-type]
    assert back.shape == ()
    assert back == np.float32(2.5)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_array_keeps_its_shape(shape: tuple[int, ...]) -> None:
    assert there_and_back(np.empty(shape, np.float32)).shape == shape


def test_a_decoded_array_keeps_its_buffer_alive() -> None:
    buffer = bytearray(codec.encode(np.arange(3.0)).data.tobytes())
    array = codec.decode(codec.encode(np.arange(3.0)).layout, buffer)
    array[0] = 7
    assert np.frombuffer(buffer)[0] == 7


REFUSED = {
    "object dtype": np.array([{}, None]),
    "objects inside a structure": np.zeros(2, [("a", "f4"), ("b", "O")]),
    "masked array": np.ma.masked_array([1.0], [True]),
    "dict": {"a": 1},
    "list": [1.0, 2.0],
    "bytes": b"abc",
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_array_of_plain_bytes_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"numpy array|Python objects"):
        codec.encode(value)


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="describes 24 bytes, the object has 23"):
        codec.decode(codec.encode(np.zeros(3)).layout, bytes(23))
