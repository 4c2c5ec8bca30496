"""Layouts whose text is in the object's bytes: known by a hash, read once, refused if they lie."""

from __future__ import annotations

import gc
import json
import threading
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.steward.folding import SmallFold
from hoplite_ray.values import codec
from hoplite_ray.values.caches import BoundedCache
from hoplite_ray.values.dtypes import SAME
from hoplite_ray.values.layout import Layout, check_reducible, forget_texts
from hoplite_ray.values.pausing import pause_collector
from hoplite_ray.values.trees.columns import Columns
from hoplite_ray.values.trees.tree import Parts
from tests.unit.values import assert_same, values

HANDLE_BYTES_MAX = 4096


def model(count: int, *, step: int = 1, fill: float = 1.0) -> dict[str, Any]:
    """Return a state as trainers keep it: many arrays, and a few numbers and texts."""
    names = (f"model.layers.{n // 8}.self_attention.{n % 8}.weight" for n in range(count))
    weights = {name: np.full(n % 5, fill, "f4") for n, name in enumerate(names)}
    return {"weights": weights, "step": step, "rate": step / 2, "by": "adam", "best": None}


def store(value: Any) -> tuple[bytes, bytearray]:
    encoded = codec.encode(value)
    return encoded.layout.to_bytes(), bytearray(b"".join(encoded.data))


@pytest.mark.parametrize("count", [200, 40_000])
def test_a_description_is_short_and_whoever_has_the_bytes_has_the_text(count: int) -> None:
    value = model(count)
    description, data = store(value)
    assert len(description) < HANDLE_BYTES_MAX
    forget_texts()  # as in another process
    assert_same(codec.decode(description, data), value)
    layout = Layout.from_bytes(description)
    assert (layout.kind, layout.leaf_count, layout.is_array) == ("dict", count + 3, False)
    assert (layout.size_bytes, layout.parts[0][0]) == (len(data), SAME)
    assert str(layout) == f"dict of {count + 3} leaves"


def test_a_short_text_stays_in_the_description() -> None:
    layout = codec.encode(model(3)).layout
    assert layout.to_bytes().startswith(b'[[["numpy","float32"],["python","int"],')
    assert (layout.head, layout.head_bytes, SAME in dict(layout.parts)) == (b"", 0, False)


def test_another_number_or_str_of_one_length_keeps_the_layout() -> None:
    first, second = codec.encode(model(500, step=1)), codec.encode(model(500, step=9, fill=2))
    assert second.layout is first.layout
    assert first.layout.to_bytes() == second.layout.to_bytes()
    assert second.data[0] == first.data[0] == first.layout.head
    other = codec.encode({**model(500), "by": "lion2"})
    assert other.layout != first.layout


@given(values)
def test_the_layout_of_a_known_signature_is_the_one_that_is_made_anew(value: Any) -> None:
    parts = Parts(value)
    anew = Layout(Columns(parts.tree, parts.types, parts.numbers, parts.shapes))
    assert Layout.of(value).to_bytes() == Layout.of(value).to_bytes() == anew.to_bytes()


@pytest.mark.parametrize("other", [True, 1.0, (1,), (True,), "1"])
def test_keys_that_are_equal_but_of_other_types_are_other_layouts(other: Any) -> None:
    array = np.zeros(1)
    one, two = codec.encode({1: array}).layout, codec.encode({other: array}).layout
    assert one != two
    back = codec.decode(*store({other: array}))
    assert [(type(key), key) for key in back] == [(type(other), other)]


def test_numbers_of_one_type_stand_one_behind_the_other() -> None:
    value = [np.zeros(3), 1.5, True, 2.5, 7, False, 1j, b"ab", "cde", b"f"]
    layout = codec.encode(value).layout
    assert [leaf.offset for leaf in layout.leaves] == [
        *(192, 256, 384, 264, 320, 385, 0, 128, 64, 130),
    ]
    assert layout.parts == [(0, 192), (2, 128), (3, 64), (13, 2)]


def lie(description: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(description), **fields}, separators=(",", ":")).encode()


def test_a_text_of_another_hash_is_refused() -> None:
    description, data = store(model(500))
    forget_texts()
    size = Layout.from_bytes(description).head_bytes
    text = bytearray(zlib.decompressobj().decompress(data[:size]))
    text[text.index(b"layers")] = ord("m")
    packed = zlib.compress(text, 9)[:size].ljust(size, b"\0")
    with pytest.raises(InvalidArgumentError, match=r"another hash|no compressed text"):
        codec.decode(description, packed + data[size:])
    with pytest.raises(InvalidArgumentError, match="its head has another hash"):
        codec.decode(lie(description, hash="00" * 16), data)
    assert_same(codec.decode(description, data), model(500))


@pytest.mark.parametrize("at", [0, 1, 2, 50, -1])
def test_a_broken_head_is_refused(at: int) -> None:
    description, data = store(model(500))
    forget_texts()
    end = Layout.from_bytes(description).head_bytes
    data[at if at >= 0 else end + at] ^= 0x55
    with pytest.raises(InvalidArgumentError, match="put the object with this version"):
        codec.decode(description, data)


@pytest.mark.parametrize("fields", [{"kind": "list"}, {"leaves": 5}], ids=str)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_short_form_that_lies_about_the_text_is_refused(fields: Any, is_known: bool) -> None:
    description, data = store(model(500))
    if not is_known:
        forget_texts()
    with pytest.raises(InvalidArgumentError, match="its text describes another value"):
        codec.decode(lie(description, **fields), data)


def test_leaves_beyond_the_bytes_are_refused() -> None:
    description, data = store(model(500))
    parts = json.loads(description)["parts"]
    parts[1][1] -= 64
    with pytest.raises(InvalidArgumentError, match="its text describes another value"):
        codec.decode(lie(description, parts=parts), data[:-64])
    with pytest.raises(InvalidArgumentError, match=r"describes \d+ bytes, the object has"):
        codec.decode(description, data[64:])


def test_a_layout_whose_text_is_not_here_says_so() -> None:
    first, second = (Layout.from_bytes(store(model(n))[0]) for n in (400, 401))
    forget_texts()
    assert (first.size_bytes > 0, first.kind) == (True, "dict")
    with pytest.raises(InvalidArgumentError, match="dict of 403 leaves are known when its bytes"):
        _ = first.leaves
    assert "dict of 403 leaves and the other a dict of 404 leaves" in first.difference(second)
    with pytest.raises(InvalidArgumentError, match="sum does not take a dict of 403 leaves that"):
        check_reducible(first, "sum")  # which has a str


def test_texts_that_were_read_are_read_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    description, data = store(model(500))
    forget_texts()
    codec.decode(description, data)
    monkeypatch.setattr(zlib, "decompressobj", None)
    assert_same(codec.decode(description, data), model(500))


def test_a_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    cache: BoundedCache[str, int] = BoundedCache(10)
    for number, name in enumerate("abc"):
        cache.add(name, number, 4)
    assert [cache.find(name) for name in "abc"] == [None, 1, 2]
    cache.find("b")
    cache.add("d", 3, 4)
    assert [cache.find(name) for name in "bcd"] == [1, None, 3]
    cache.add("b", 5, 2)
    cache.add("e", 6, 4)
    assert [cache.find(name) for name in "bde"] == [5, 3, 6]
    cache.add("f", 7, 11)
    assert [cache.find(name) for name in "bdef"] == [None] * 4


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "mean"])
def test_a_small_value_with_a_long_layout_is_folded(op: Any) -> None:
    sources = [{f"{n:030}": np.full(3, n + each, "f4") for n in range(60)} for each in range(3)]
    encoded = [codec.encode(each) for each in sources]
    layout = Layout.from_bytes(encoded[0].layout.to_bytes())
    check_reducible(layout, op)
    fold = SmallFold(b"t" * 28, layout, op, share=None, deterministic=False)
    for index, each in enumerate(encoded):
        data = b"".join(each.data)
        fold.add(index, Array(bytes([index]) * 28, 1, layout, None, data=data))
    forget_texts()
    folded = fold.make((b"r" * 28,)).copy()
    combine = {"max": np.maximum.reduce, "min": np.minimum.reduce, "mean": np.mean}
    combine |= {"sum": np.sum, "prod": np.prod}
    for name, array in folded.items():
        stacked = np.stack([each[name] for each in sources])
        np.testing.assert_array_equal(array, combine[op](stacked, axis=0))


def test_numbers_of_python_are_combined_as_their_dtypes() -> None:
    layout = Layout.of({"step": 3, "loss": 0.5})
    check_reducible(layout, "sum")
    with pytest.raises(InvalidArgumentError, match=r'mean does not take value\["step"\], which is'):
        check_reducible(layout, "mean")
    check_reducible(Layout.of({"loss": 0.5}), "mean")
    with pytest.raises(InvalidArgumentError, match=r'sum does not .*, which is bool; use "max"'):
        check_reducible(Layout.of({"done": True}), "sum")
    with pytest.raises(InvalidArgumentError, match=r"which is str of 4 bytes; take it out"):
        check_reducible(Layout.of({"by": "adam"}), "max")
    with pytest.raises(InvalidArgumentError, match=r"which is complex; convert it to one of"):
        check_reducible(Layout.of([1j]), "sum")


def test_the_collector_runs_again_after_all_pauses() -> None:
    entered, leave = threading.Event(), threading.Event()

    def pause() -> None:
        with pause_collector():
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=pause)
    with pause_collector():
        assert not gc.isenabled()
        other.start()
        assert entered.wait(60)
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(KeyError), pause_collector():
            raise KeyError
        assert not gc.isenabled()
    finally:
        gc.enable()
