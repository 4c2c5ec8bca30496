"""Values to put, made by hypothesis, and whether one came back as it went in."""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

plain_dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    hnp.array_dtypes(hnp.scalar_dtypes(), allow_subarrays=True),
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = hnp.arrays(plain_dtypes, shapes) | hnp.arrays("f4", shapes).map(
    lambda array: array.astype(ml_dtypes.bfloat16)
)

plain_keys = st.one_of(
    st.text(max_size=5),
    st.integers(-(2**64) + 1, 2**64 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
)
keys = plain_keys | st.tuples(plain_keys, plain_keys)


class Pair(NamedTuple):
    one: Any
    other: Any = None


@dataclass(frozen=True, slots=True)
class Batch:
    ids: Any
    mask: Any


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=5),
)


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(keys, children, max_size=4)
    some = st.lists(children, max_size=4)
    return st.one_of(
        *(some, some.map(tuple), dicts, dicts.map(OrderedDict)),
        *(st.builds(Pair, children, children), st.builds(Batch, children, children)),
    )


some_values = st.recursive(arrays | plain, containers, max_leaves=12)
tied_values = arrays.flatmap(
    lambda array: st.recursive(st.just(array) | arrays, containers, max_leaves=12)
)
values = some_values | tied_values


def assert_same(back: Any, value: Any) -> None:
    """Containers, keys, dtypes, shapes and bytes are the same, and arrays can be written."""
    if isinstance(value, (np.ndarray, np.generic)):
        assert isinstance(back, np.ndarray)
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert back.tobytes() == value.tobytes()
        assert back.flags.writeable
        return
    assert type(back) is type(value)
    if isinstance(value, Batch):
        for field in fields(value):
            assert_same(getattr(back, field.name), getattr(value, field.name))
        return
    if isinstance(value, float | complex):
        parts = [(each.real, each.imag) for each in (complex(back), complex(value))]
        assert struct.pack("<2d", *parts[0]) == struct.pack("<2d", *parts[1])
        return
    if value is None or isinstance(value, bool | int | str | bytes):
        assert back == value
        return
    assert len(back) == len(value)
    if isinstance(value, dict):
        assert [(type(key), key) for key in back] == [(type(key), key) for key in value]
        back, value = back.values(), value.values()
    for one, other in zip(back, value, strict=True):
        assert_same(one, other)
