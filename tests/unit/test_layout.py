"""Layouts: one spelling each, total on hostile bytes, and texts that name what differs."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values import dtypes
from hoplite_ray.values.layout import LAYOUT_BYTES_MAX, REDUCE_OPS, Layout, check_reducible
from tests.unit.values import values

ONE = np.zeros(2)
NATIVE = Path(__file__).parents[2] / "native"


@given(values)
def test_a_layout_survives_its_bytes(value: Any) -> None:
    layout = Layout.of(value)
    again = Layout.from_bytes(layout.to_bytes())
    assert again == layout
    assert hash(again) == hash(layout)
    assert (again.tree, again.leaves) == (layout.tree, layout.leaves)


@given(values, values)
def test_layouts_differ_in_a_way_that_can_be_said(one: Any, other: Any) -> None:
    first, second = Layout.of(one), Layout.of(other)
    assert (first == second) == (first.to_bytes() == second.to_bytes())
    assert (first == second) == (first.difference(second) == "")


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="put the object with this version"):
        Layout.from_bytes(encoded)


@given(values, st.data())
def test_a_layout_with_a_few_other_bytes_is_refused_or_a_layout(value: Any, data: Any) -> None:
    encoded = bytearray(Layout.of(value).to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(32, 126))
    try:
        layout = Layout.from_bytes(bytes(encoded))
    except InvalidArgumentError as error:
        assert "put the object with this version" in str(error)
    else:
        assert layout.to_bytes() == encoded


HOSTILE = {
    "not json": b"{",
    "nothing": b"",
    "null": b"null",
    "no pair": b"[1]",
    "unknown dtype": b'[[["numpy","<q9"]],[0,1]]',
    "another name of a dtype": b'[[["numpy","<f4"]],[0,1]]',
    "not numpy's": b'[[["numpy","complex64"]],[0,1]]',
    "not torch's": b'[[["torch","<f4"]],[0,1]]',
    "nobody's": b'[[["cupy","float32"]],[0,1]]',
    "dtype of a number": b'[[["numpy",4]],[0,1]]',
    "objects": b'[[["numpy","|O"]],[0,1]]',
    "objects inside": b'[[["numpy","[[\\"a\\",\\"|O\\"]]"]],[0,1]]',
    "strange structure": b'[[["numpy","[[\\"a\\",null],5]"]],[0,1]]',
    "negative extent": b'[[["numpy","float32"]],[0,-1]]',
    "dtype that comes later": b'[[["numpy","float32"],["numpy","float64"]],{"list":[[1,1],[0,1]]}]',
    "number with a shape": b'[[["python","int"]],{"list":[[0,1]]}]',
    "str without a length": b'[[["python","str"]],{"list":[[0]]}]',
    "not Python's": b'[[["python","float32"]],{"list":[[0]]}]',
    "class without a name": b'[[],{"NamedTuple":[]}]',
    "class of a number": b'[[],{"NamedTuple":[1,[]]}]',
    "fields of numbers": b'[[],{"dataclass":["a:B",[1],null]}]',
    "too few fields": b'[[],{"dataclass":["a:B",["x"],null,null]}]',
    "short form of nothing": b"{}",
    "short form without parts": b'{"kind":"dict","leaves":1,"parts":[],"hash":"%s"}' % (b"0" * 32),
    "short form of a list": b'{"kind":[],"leaves":1,"parts":[[14,9]],"hash":"%s"}' % (b"0" * 32),
    "short form without a head": b'{"kind":"dict","leaves":1,"parts":[[1,9]],"hash":"%s"}'
    % (b"0" * 32),
    "short form of another hash": b'{"kind":"dict","leaves":1,"parts":[[14,9]],"hash":"00"}',
    "negative short form": b'{"kind":"dict","leaves":-1,"parts":[[14,9]],"hash":"%s"}'
    % (b"0" * 32),
    "extent true": b'[[["numpy","float32"]],[0,true]]',
    "extent of text": b'[[["numpy","float32"]],[0,"1"]]',
    "too large": b'[[["numpy","float32"]],[0,%d]]' % 2**63,
    "extent of many digits": b'[[["numpy","float32"]],[0,' + b"9" * 3000 + b"]]",
    "extent of too many digits": b'[[["numpy","float32"]],[0,' + b"9" * 9000 + b"]]",
    "no dtype of this number": b'[[["numpy","float32"]],[1,1]]',
    "negative number": b'[[["numpy","float32"]],[-1,1]]',
    "leaf of nothing": b'[[["numpy","float32"]],[]]',
    "unused dtype": b'[[["numpy","float32"],["numpy","float64"]],[0,1]]',
    "dtype twice": b'[[["numpy","float32"],["numpy","float32"]],{"list":[[0,1],[1,1]]}]',
    "spaces": b'[[["numpy", "float32"]],[0,1]]',
    "container": b'[[],{"set":[]}]',
    "again nothing": b"[[],0]",
    "again what comes later": b'[[["numpy","float32"]],{"list":[0,[0,1]]}]',
    "again itself": b'[[["numpy","float32"]],{"list":[[0,1],1]}]',
    "again a negative": b'[[["numpy","float32"]],{"list":[[0,1],-1]}]',
    "again true": b'[[["numpy","float32"]],{"list":[[0,1],[0,1],true]}]',
    "again a fraction": b'[[["numpy","float32"]],{"list":[[0,1],0.0]}]',
    "order of nothing": b'[[["numpy","float32"]],[0,1],0]',
    "order that is true": b'[[["numpy","int8"],["numpy","int16"]],{"list":[[0,1],[1,1]]},true]',
    "order of one dtype": b'[[["numpy","float32"]],[0,1],1]',
    "two orders": b'[[["numpy","int8"],["numpy","int16"]],{"list":[[0,1],[1,1]]},1,1]',
    "two containers": b'[[],{"list":[],"tuple":[]}]',
    "no container": b"[[],{}]",
    "list of text": b'[[],{"list":"ab"}]',
    "dict of text": b'[[],{"dict":"ab"}]',
    "list of a number": b'[[],{"list":5}]',
    "key without a value": b'[[],{"dict":["a"]}]',
    "key twice": b'[[],{"dict":["a",{"list":[]},"a",{"list":[]}]}]',
    "key of a dict": b'[[],{"dict":[{},{"list":[]}]}]',
    "deep json": b"[" * 4000,
    "deep tree": b"[[]," + b'{"list":[' * 70 + b"]}" * 70 + b"]",
}


@pytest.mark.parametrize("encoded", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_layout_is_refused_with_a_next_step(encoded: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="put the object with this version"):
        Layout.from_bytes(encoded)


def test_the_bytes_are_short_and_never_change() -> None:
    value = {"w": np.zeros((3, 4), "f4"), ("b", 1): [np.zeros(2, ">f8"), (np.float32(1),)]}
    assert Layout.of(value).to_bytes() == (
        b'[[["numpy","float32"],["numpy",">f8"]],'
        b'{"dict":["w",[0,3,4],["b",1],{"list":[[1,2],{"tuple":[[0]]}]}]}]'
    )


def test_further_names_of_an_array_are_short_and_never_change() -> None:
    """Case 03."""
    embed, norm = np.zeros((3, 4), "f4"), np.zeros(4, "f4")
    value = {"embed": embed, "norm": norm, "heads": [norm, (embed,)]}
    assert Layout.of(value).to_bytes() == (
        b'[[["numpy","float32"]],'
        b'{"dict":["embed",[0,3,4],"norm",[0,4],"heads",{"list":[1,{"tuple":[0]}]}]}]'
    )


def test_a_layout_of_a_writer_that_stores_each_name_apart_is_read() -> None:
    """Case 03."""
    layout = Layout.from_bytes(b'[[["numpy","float32"]],{"list":[[0,32],[0,32]]}]')
    assert [leaf.offset for leaf in layout.leaves] == [0, 128]


def test_an_array_has_shape_and_dtype_and_a_container_says_that_it_has_none() -> None:
    layout = Layout.of(np.zeros((3, 5), "f4"))
    assert (layout.shape, layout.dtype, layout.dtype_name) == ((3, 5), np.float32, "float32")
    assert (layout.kind, layout.is_array, str(layout)) == ("numpy", True, "float32[3, 5]")
    of_two = Layout.of(OrderedDict(a=np.zeros(1), b=np.zeros(2)))
    assert (of_two.kind, of_two.is_array) == ("OrderedDict", False)
    assert (str(of_two), of_two.size_bytes) == ("OrderedDict of 2 arrays", 80)
    for attribute in ("shape", "dtype", "dtype_name"):
        with pytest.raises(InvalidArgumentError, match="OrderedDict of 2 arrays has no one shape"):
            getattr(of_two, attribute)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (np.zeros(2), np.zeros(3), "value is float64[2] in one and float64[3] in the other"),
        (
            {"a": np.zeros(2), "b": [np.zeros(1)]},
            {"a": np.zeros(2), "b": [np.zeros(1, "f4")]},
            'value["b"][0] is float64[1] in one and float32[1] in the other',
        ),
        (
            {"a": np.zeros(2)},
            {"b": np.zeros(2)},
            'one has value["a"] where the other has value["b"]',
        ),
        (
            {"a": ONE, "b": ONE},
            {"a": ONE, "b": np.zeros(2)},
            'value["b"] shares its memory with an earlier array in one of them only',
        ),
        (
            [np.zeros(2)],
            (np.zeros(2),),
            "one is a list of 1 arrays and the other a tuple of 1 arrays, of other containers",
        ),
    ],
)
def test_a_difference_names_the_first_leaf(one: Any, other: Any, difference: str) -> None:
    assert Layout.of(one).difference(Layout.of(other)) == difference


FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = [name for name in dtypes.NATIVE if "int" in name]


@pytest.mark.parametrize("dtype", dtypes.NATIVE)
@pytest.mark.parametrize("op", REDUCE_OPS)
def test_what_can_be_reduced(op: Any, dtype: str) -> None:
    layout = Layout.of({"a": np.zeros(2, "f4"), "b": np.zeros(2, dtype)})
    if (op == "mean" and dtype not in FLOATS) or (dtype == "bool" and op not in ("min", "max")):
        with pytest.raises(InvalidArgumentError, match=rf'{op} .* value\["b"\], which is {dtype}'):
            check_reducible(layout, op)
    else:
        check_reducible(layout, op)
    assert sorted([*FLOATS, *INTEGERS, "bool"]) == sorted(dtypes.NATIVE)


def test_each_name_of_an_array_is_looked_at_for_a_reduce() -> None:
    """Case 03."""
    array = np.zeros(2)
    check_reducible(Layout.of([array, array]), "sum")
    with pytest.raises(InvalidArgumentError, match=r"does not take value\[1\], which is <M8"):
        check_reducible(Layout.of([array, ONE.view("M8[s]"), array]), "sum")


@pytest.mark.parametrize("dtype", [">f4", "c8", "M8[s]", "U3"])
def test_opaque_bytes_cannot_be_reduced(dtype: str) -> None:
    with pytest.raises(InvalidArgumentError, match="convert it to one of float32"):
        check_reducible(Layout.of(np.zeros(2, dtype)), "sum")


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="op is 'median'; it takes sum, max, min"):
        check_reducible(Layout.of(np.zeros(2)), "median")  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_native_core() -> None:
    limits, types = (
        (NATIVE / "base/limits.h").read_text(),
        (NATIVE / "plan/messages/dtypes.h").read_text(),
    )
    kibibytes = re.search(r"kLayoutBytesMax = (\d+)_KiB", limits)
    assert kibibytes is not None
    assert int(kibibytes[1]) << 10 == LAYOUT_BYTES_MAX
    for enum, numbers in [
        ("DType", {"opaque": dtypes.OPAQUE, **dtypes.NATIVE, "same": dtypes.SAME}),
        ("ReduceOp", REDUCE_OPS),
    ]:
        body = re.search(rf"enum class {enum} : .*?{{(.*?)}}", types, re.DOTALL)
        assert body is not None
        native = re.findall(r"k(\w+) = (\d+)", body[1])
        assert {name.lower(): int(number) for name, number in native} == numbers
