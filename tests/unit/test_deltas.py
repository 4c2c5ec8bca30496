"""Deltas over buffers: round trips of drawn values, steps in one pass, and wrong uses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hoplite_ray import _native
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values import deltas
from hoplite_ray.values.codec import encode
from hoplite_ray.values.layout import Layout

NO_LIMIT = 1 << 30

Bytes = npt.NDArray[np.uint8]

DTYPES = ("uint8", "int16", "float16", "float32", "float64", "int64", "complex64", "<U2", "bool")


@st.composite
def values(draw: st.DrawFn) -> dict[str, npt.NDArray[Any]]:
    """Draw a dict of arrays of any dtypes and small shapes, from raw bits: NaN and -0 included."""
    value = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=40))
        size_bytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
        seed = draw(st.integers(0, 2**32 - 1))
        bits = np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)
        value[name] = bits.view(dtype).reshape(shape)
    return value


def join(data: list[memoryview]) -> Bytes:
    return np.frombuffer(b"".join(data), np.uint8)


def change(value: dict[str, npt.NDArray[Any]], share: float, seed: int) -> dict[str, Any]:
    """Flip a bit of about this share of the bytes."""
    generator = np.random.default_rng(seed)
    changed = {}
    for name, array in value.items():
        bits = np.frombuffer(array.tobytes(), np.uint8)
        flips = (generator.random(bits.size) < share) * generator.integers(1, 256, bits.size)
        changed[name] = (bits ^ flips.astype(np.uint8)).view(array.dtype).reshape(array.shape)
    return changed


@settings(max_examples=150, deadline=None)
@given(values(), st.sampled_from([0.0, 0.02, 0.3, 1.0]), st.integers(1, 5), st.integers(0, 1000))
def test_deltas_give_the_last_value(
    first: dict[str, Any], share: float, count: int, seed: int
) -> None:
    layout = Layout.of(first)
    history = [first]
    for step in range(count):
        history.append(change(history[-1], share, seed + step))
    encoded = [encode(value).data for value in history]
    found = []
    for before, after in pairwise(encoded):
        target = np.zeros(layout.size_bytes, np.uint8)
        delta = _native.find_delta(
            join(before),
            after,
            deltas.list_ranges(layout),
            limit_bytes=NO_LIMIT,
            target=target,
        )
        assert delta is not None
        assert np.array_equal(target, join(after))
        found.append(delta)
    base, expected = join(encoded[0]), join(encoded[-1])
    beside = np.full(layout.size_bytes, 0xEE, np.uint8)
    deltas.apply_deltas(found, base, beside)
    assert np.array_equal(beside, expected)
    in_place = base.copy()
    deltas.apply_deltas(found, in_place, in_place)
    assert np.array_equal(in_place, expected)
    assert _native.describe_delta(found[-1])["size_bytes"] == layout.size_bytes


def weights(seed: int = 0, changed: int = 0) -> npt.NDArray[np.int16]:
    """Return 1 MiB of elements, of which the first `changed` are others than without it."""
    array = np.random.default_rng(seed).integers(0, 1000, 512 << 10).astype(np.int16)
    array[:changed] += 1
    return array


def test_delta_of_few_changes_is_small_and_of_many_is_none() -> None:
    layout = Layout.of(weights())
    base = weights()
    delta = deltas.find_delta(layout, base, [weights(changed=1000)])
    assert delta is not None
    assert delta.nbytes < 3200
    assert _native.describe_delta(delta)["changed"] == 1000
    target = np.zeros_like(base)
    dense = weights(changed=400_000)
    assert deltas.find_delta(layout, base, [dense], target=target) is None
    assert np.array_equal(target, dense)
    assert deltas.find_delta(layout, base, [dense], share_max=1.2) is not None


def test_small_values_have_no_delta() -> None:
    base = np.zeros(_native.INLINE_BYTES_MAX, np.uint8)
    assert deltas.find_delta(Layout.of(base), base, [base]) is None
    longer = np.zeros(_native.INLINE_BYTES_MAX + 1, np.uint8)
    assert deltas.find_delta(Layout.of(longer), longer, [longer]) is not None


def test_what_is_worth_it() -> None:
    size_bytes = 100 << 20
    assert deltas.are_worth_it([3 << 20] * 5, size_bytes)
    assert not deltas.are_worth_it([3 << 20] * 20, size_bytes)
    assert not deltas.are_worth_it([], size_bytes)
    assert not deltas.are_worth_it([100], _native.INLINE_BYTES_MAX)


def test_ranges_are_runs_of_one_width() -> None:
    value = {
        "a": np.zeros(64, np.float16),
        "b": np.zeros(32, np.int16),
        "c": np.zeros(3, np.int64),
        "d": np.zeros(4, "<U3"),
        "e": np.zeros(10, np.float32),
    }
    # In the order of native dtypes: opaque, float32, int64, float16 and int16 together.
    layout = Layout.of(value)
    assert deltas.list_ranges(layout) == [(64, 1), (64, 4), (64, 8), (192, 2)]
    assert deltas.list_ranges(Layout.of(np.zeros(0))) == []


BASE = bytes(range(256)) * 512
RANGES = [(len(BASE), 2)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"data": [BASE[1:]]}, "131071"),
        ({"data": [BASE, b"x"]}, "131073"),
        ({"target": bytearray(10)}, "target 10"),
        ({"data": [BASE[:7], BASE[7:]]}, "inside an element"),
        ({"ranges": [(10, 2)]}, "10"),
        ({"ranges": [(len(BASE), 3)]}, "elements of 3"),
        ({"ranges": []}, "0 bytes"),
    ],
)
def test_wrong_data_is_refused(arguments: dict[str, Any], text: str) -> None:
    given_ = {"data": [BASE], "ranges": RANGES, "limit_bytes": NO_LIMIT} | arguments
    with pytest.raises(InvalidArgumentError, match=text):
        _native.find_delta(BASE, **given_)


def test_target_that_overlaps_is_refused() -> None:
    memory = bytearray(BASE) + bytearray(2)
    view = memoryview(memory)
    low, high = view[: len(BASE)], view[2:]
    for base, data in ((low, BASE), (BASE, low)):
        with pytest.raises(InvalidArgumentError, match="overlaps"):
            _native.find_delta(base, [data], RANGES, limit_bytes=NO_LIMIT, target=high)
    delta = _native.find_delta(BASE, [BASE], RANGES, limit_bytes=NO_LIMIT)
    assert delta is not None
    with pytest.raises(InvalidArgumentError, match="overlaps"):
        deltas.apply_deltas([delta], low, high)


def test_read_only_target_is_refused() -> None:
    with pytest.raises(BufferError):
        _native.find_delta(BASE, [BASE], RANGES, limit_bytes=NO_LIMIT, target=BASE)


def test_corrupt_deltas_and_other_bases_are_refused() -> None:
    layout = Layout.of(weights())
    base, after = weights(), weights(changed=100)
    delta = deltas.find_delta(layout, base, [after])
    assert delta is not None
    target = np.zeros_like(base)
    with pytest.raises(InvalidArgumentError, match="the base is not the one"):
        deltas.apply_deltas([delta], weights(seed=1), target)
    with pytest.raises(InvalidArgumentError, match="not made for the version"):
        deltas.apply_deltas([delta, delta], base, target)
    with pytest.raises(InvalidArgumentError, match="corrupt"):
        deltas.apply_deltas([bytes(delta)[:-1]], base, target)
    wrong = bytearray(delta)
    wrong[-1] ^= 1
    with pytest.raises(InvalidArgumentError, match="corrupt"):
        deltas.apply_deltas([wrong], base, target)
    with pytest.raises(InvalidArgumentError, match="pass 1 to 32"):
        deltas.apply_deltas([], base, target)
    with pytest.raises(InvalidArgumentError, match="doesn't fit"):
        deltas.apply_deltas([delta], base, target[1:])
