"""A value comes back as it went in, whatever its containers, dtypes, shapes and memory order."""

from __future__ import annotations

import gc
import weakref
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from hoplite_ray.errors import HopliteError, InvalidArgumentError
from hoplite_ray.values import codec
from hoplite_ray.values.layout import Layout
from tests.unit.values import arrays, assert_same, values


def stored(value: Any) -> tuple[bytes, bytearray]:
    """The layout and the bytes as the store keeps them."""
    encoded = codec.encode(value)
    return encoded.layout.to_bytes(), bytearray(b"".join(encoded.data))


def there_and_back(value: Any) -> Any:
    return codec.decode(*stored(value))


@given(arrays)
def test_an_array_comes_back(array: Any) -> None:
    assert_same(there_and_back(array), array)


@given(values)
def test_a_value_comes_back(value: Any) -> None:
    assert_same(there_and_back(value), value)


@given(values)
def test_bytes_are_as_long_as_the_layout_says_and_parts_never_split_an_element(value: Any) -> None:
    encoded = codec.encode(value)
    parts = encoded.layout.parts
    assert sum(map(len, encoded.data)) == encoded.layout.size_bytes
    assert sum(size for _, size in parts) == encoded.layout.size_bytes
    assert len({dtype for dtype, _ in parts}) == len(parts) <= 15
    assert all(size % 64 == 0 for _, size in parts[:-1])
    assert all(size > 0 for _, size in parts)


def test_leaves_stand_in_order_of_dtype_each_at_a_multiple_of_64_bytes() -> None:
    value = {
        "a": np.zeros(3, "f8"),
        "b": np.zeros(5, "f4"),
        "c": np.zeros(9, "f8"),
        "d": [np.zeros(1, "f4")],
    }
    layout = codec.encode(value).layout
    assert [leaf.offset for leaf in layout.leaves] == [128, 0, 192, 64]
    assert layout.parts == [(1, 128), (2, 136)]


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("<f4", 1),
        ("<f8", 2),
        ("<i8", 3),
        ("bfloat16", 4),
        ("<f2", 5),
        ("|i1", 6),
        ("<i2", 7),
        ("<i4", 8),
        ("|u1", 9),
        ("<u2", 10),
        ("<u4", 11),
        ("<u8", 12),
        ("?", 13),
        (">f4", 0),
        ("<c8", 0),
        ("<M8[s]", 0),
    ],
)
def test_only_what_the_kernels_combine_has_a_native_number(dtype: str, number: int) -> None:
    array = np.zeros(3, dtype)
    assert codec.encode(array).layout.parts == [(number, array.nbytes)]


def test_an_array_in_c_order_is_not_copied() -> None:
    array = np.arange(12.0).reshape(3, 4)
    for value in (array, {"a": array, "b": [array]}):
        shared = [np.shares_memory(np.asarray(data), array) for data in codec.encode(value).data]
        assert shared.count(True) == len(shared) - shared.count(False) > shared.count(False)


def test_received_arrays_are_views_of_one_buffer() -> None:
    layout, buffer = stored({"a": np.arange(3.0), "b": np.arange(4)})
    back = codec.decode(layout, buffer)
    back["a"][0] = 7
    assert np.frombuffer(buffer)[0] == 7
    assert np.shares_memory(back["b"], np.frombuffer(buffer, np.uint8))


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[:, ::-1], np.s_[:, 1:3], np.s_[1, ::-2]])
def test_an_array_in_another_order_arrives_in_c_order(view: Any) -> None:
    array = np.arange(24.0).reshape(4, 6)[view]
    back = there_and_back(array)
    np.testing.assert_array_equal(back, array)
    assert back.flags.c_contiguous


def test_arrays_in_a_structure_arrive_bit_for_bit() -> None:
    """Case 19_every_kind_of_array, which compares lists of such arrays: numpy refuses that."""
    array = np.zeros(2, [("m", "f4", (2, 3)), ("n", "i8")])
    array["m"] = np.arange(12).reshape(2, 2, 3)
    assert_same(there_and_back(array), array)


def test_fortran_order_arrives_in_c_order() -> None:
    array = np.asfortranarray(np.arange(24.0).reshape(4, 6))
    np.testing.assert_array_equal(there_and_back(array), array)


def test_a_number_of_numpy_is_an_array_without_dimensions() -> None:
    assert_same(there_and_back(np.float32(2.5)), np.array(2.5, np.float32))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_array_keeps_its_shape(shape: tuple[int, ...]) -> None:
    assert there_and_back(np.empty(shape, np.float32)).shape == shape


@pytest.mark.parametrize("value", [{}, [], (), [{}, ()]], ids=repr)
def test_containers_without_arrays_are_objects_without_bytes(value: Any) -> None:
    assert_same(there_and_back(value), value)
    assert codec.encode(value).layout.parts == []


def test_one_array_in_two_places_is_stored_once_and_arrives_as_one() -> None:
    """Case 03."""
    array = np.arange(1000.0)
    value = [array, {"again": array, "view": array[:], "part": array[:5]}]
    assert Layout.of(value).size_bytes <= array.nbytes + 64
    back = there_and_back(value)
    assert_same(back, value)
    assert back[0] is back[1]["again"] is back[1]["view"]
    assert not np.shares_memory(back[0], back[1]["part"])


def test_equal_arrays_of_other_memory_order_dtype_or_shape_stay_apart() -> None:
    square = np.zeros((4, 4))
    others = [square.T, square.view("i8"), square.reshape(16), square.copy(), square[::-1][::-1]]
    layout = Layout.of([square, *others])
    assert len(layout.leaves) == len(others)  # the last one is `square` again
    numbers = [np.float64(1.5), np.float64(1.5)]  # whose memory is nowhere for long
    assert len(Layout.of(numbers).leaves) == 2
    assert len(Layout.of([np.empty(0), np.empty(0)]).leaves) == 2


LOOP: list[Any] = [np.zeros(1)]
LOOP.append({"back": LOOP})
DEEP: list[Any] = [np.zeros(1)]
for _ in range(64):
    DEEP = [DEEP]
DOUBLED: list[Any] = [np.zeros(1)]
for _ in range(40):
    DOUBLED = [DOUBLED, DOUBLED]
TEXT = np.array(["a"], np.dtypes.StringDType())
Point = namedtuple("Point", "x y")


def local_class() -> Any:
    return namedtuple("Local", "x y")


@dataclass
class Noted:
    x: Any


def put_note() -> Noted:
    made = Noted(np.zeros(1))
    made.note = 1  # type: ignore[attr-defined]
    return made


def unset() -> Noted:
    return object.__new__(Noted)


class Level(IntEnum):
    LOW = 1


STRUCTURES = {
    "objects": np.dtype([("a", "f4"), ("b", "O")]),
    "overlap": np.dtype({"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [0, 2]}),
}

REFUSED = {
    "objects": (np.array([{}, None]), r"^value is an array whose dtype object holds Python obj"),
    "objects in a structure": (np.zeros(2, STRUCTURES["objects"]), r"\.astype\(\)"),
    "overlapping fields": (np.zeros(2, STRUCTURES["overlap"]), "overlapping"),
    "foreign field": (np.zeros(2, [("a", ml_dtypes.bfloat16)]), "no plain description; copy its"),
    "foreign dtype": (np.zeros(2, ml_dtypes.int4), r"int4 is not one of numpy's; .*\.astype"),
    "masked array": (np.ma.masked_array([1.0], [True]), r"put its \.data and \.mask"),
    "int of 65 bits": ({"step": [2**63]}, r'^value\["step"\]\[0\] is an int of more than 64'),
    "kind of int": ([np.zeros(1), Level.LOW], r"^value\[1\] is .*\.Level; .* put int\(it\) there"),
    "array of bytes": (bytearray(b"abc"), r"^value is bytearray; .* put an array there"),
    "set": ({("a", 1): {1}}, r"^value\[\('a', 1\)\] is set"),
    "in a named tuple": ({"p": Point(np.zeros(1), {1})}, r'^value\["p"\]\.y is set'),
    "class of a function": (local_class()(1, 2), r"no import finds, .*:Local; define it at"),
    "more than fields": ([put_note()], r"Noted with an attribute beside its fields, note; make it"),
    "less than fields": ([unset()], r"Noted without a value of its field x; set it"),
    "counter": (Counter("ab"), r"^value is collections\.Counter; .* put dict\(it\)"),
    "text of any length": (TEXT, r"np\.array\(it\.tolist\(\)\)"),
    "key of bytes": ({b"a": 1}, "^value is a dict with a key of type bytes; keys are str"),
    "key of numpy": ({"x": {np.int64(1): 2}}, r'^value\["x"\] is a dict .* type numpy\.int64'),
    "key that is no number": ({float("nan"): 1}, "a key of type float"),
    "endless key": ({(10**5000,): 1}, "a key of type tuple"),
    "cycle": (LOOP, r'^value\[1\]\["back"\] is a container that holds itself; break'),
    "too deep": (DEEP, r"nested deeper than 64 containers; flatten"),
    "too many parts": (DOUBLED, r"too large, of more than 1048576 .*; put it as several"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_object_can_hold_is_refused_with_place_and_next_step(value: Any, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        codec.encode(value)


def test_parameters_of_a_large_model_fit_one_description() -> None:
    value = OrderedDict(
        (f"model.layers.{n // 10}.self_attention.query_key_value.{n % 10}.weight", np.zeros((4, 4)))
        for n in range(2000)
    )
    layout = codec.encode(value).layout
    assert len(layout.to_bytes()) < 1024
    assert Layout.from_bytes(layout.to_bytes()) == layout


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="describes 24 bytes, the object has 23"):
        codec.decode(codec.encode(np.zeros(3)).layout.to_bytes(), bytes(23))


def test_what_is_not_installed_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    layout = Layout.from_bytes(b'[[["torch","bfloat16"]],[0,2]]')
    assert (str(layout), layout.dtype_name, layout.size_bytes) == (
        "torch bfloat16[2]",
        "bfloat16",
        4,
    )
    with pytest.raises(HopliteError, match="pip install torch"):
        codec.decode(layout.to_bytes(), bytes(4))


@pytest.mark.parametrize("is_refused", [False, True])
def test_an_array_goes_with_its_last_reference(is_refused: bool) -> None:
    """Without the collector, which may come much later: the array may map the arena."""
    array = np.zeros(3)
    gone = weakref.ref(array)
    gc.disable()
    try:
        if is_refused:
            with pytest.raises(InvalidArgumentError):
                codec.encode([array, {1}])
        else:
            assert codec.encode({"a": [array]}).layout.size_bytes == 24
        del array
        assert gone() is None
    finally:
        gc.enable()
