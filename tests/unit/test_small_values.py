"""Values that travel in their handles, without Ray and without a node."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from hoplite_ray.plugin.handle import making
from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX, Array
from hoplite_ray.plugin.handle.writable import SmallWritable
from hoplite_ray.plugin.process.known_puts import KnownPut, KnownPuts
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.values.codec import describe_empty, encode
from hoplite_ray.values.layout import Layout

VALUE = {"w": np.arange(6, dtype=np.int16).reshape(2, 3), "b": [np.ones(3), np.zeros(0)]}


def assert_is_value(value: Any) -> None:
    assert value["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [each.tolist() for each in value["b"]] == [[1, 1, 1], []]


@pytest.fixture(autouse=True)
def _no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*asked: Any) -> None:
        pytest.fail("a small value has asked for the node")

    for module in ("array", "making", "fetching"):
        monkeypatch.setattr(f"hoplite_ray.plugin.handle.{module}.attachment", refuse)


@pytest.mark.parametrize("size_bytes", [0, 1, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1])
def test_the_bound_of_small_values_is_64_kib(size_bytes: int) -> None:
    layout = Layout.of(np.zeros(size_bytes, np.uint8))
    assert making.is_small(layout) == (size_bytes <= 64 << 10)


def test_each_use_of_a_small_value_is_the_callers_own() -> None:
    array = making.make_small(encode(VALUE))
    array.prefetch()
    for take in (array.copy, array.numpy, lambda: asyncio.run(take_awaited(array))):
        taken = take()
        assert_is_value(taken)
        taken["w"][:] = -1
    assert_is_value(array.copy())
    with pytest.raises(ValueError, match="read-only"):
        array["w"][0, 0] = 1
    assert pickle.loads(pickle.dumps(array))["w"].sum() == 15


async def take_awaited(array: Array) -> Any:
    return await array


@pytest.mark.parametrize("size_bytes", [0, 100, SMALL_BYTES_MAX])
def test_a_small_handle_travels_with_its_bytes_and_without_an_anchor(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    array = making.make_small(encode(np.ones(size_bytes, np.uint8)))
    monkeypatch.setattr(seams, "is_ray_pickling", lambda: True)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    received = pickle.loads(pickled, buffers=buffers)
    assert received._anchor is None and type(received._data) is bytes
    assert received.copy().tolist() == [1] * size_bytes
    assert len(pickled) < 500, "Ray writes many bytes from where they are"


def test_what_is_written_in_place_is_the_handles_after_the_seal() -> None:
    array = making.make_small_empty(describe_empty(4, "float32", "numpy"))
    array[:] = 1
    view = np.asarray(array)
    array._seal()
    with pytest.raises(TypeError, match="immutable"):
        array[0] = 2
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 2
    assert array.copy().tolist() == [1, 1, 1, 1]


def test_threads_that_seal_get_the_same_bytes() -> None:
    writing = SmallWritable(describe_empty(4, "float32", "numpy"))
    part = writing.value[:]
    part[:] = 1
    sealed: list[bytes] = []
    threads = [threading.Thread(target=lambda: sealed.append(writing.seal())) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    part[:] = 7  # a view from before, which no other process sees
    assert {writing.seal(), *sealed} == {np.ones(4, np.float32).tobytes()}


def test_known_puts_are_bounded_by_count_and_by_bytes() -> None:
    forty = KnownPut(1, encode(np.zeros(40, np.uint8)))
    layout_bytes = len(Layout.of(np.zeros(40, np.uint8)).to_bytes())
    known = KnownPuts(puts_max=3, bytes_max=2 * (40 + layout_bytes))
    ids = [bytes([n]) * 28 for n in range(8)]
    for each in ids[:4]:
        known.add(each, KnownPut(1))
    assert [known.find(each) is not None for each in ids[:4]] == [False, True, True, True]
    for each in ids[4:6]:
        known.add(each, forty)
    known.add(ids[5], forty)  # again, which counts once
    assert [known.find(each) is not None for each in ids[:6]] == [False] * 3 + [True] * 3
    known.add(ids[6], forty)
    assert [known.find(each) is not None for each in ids[3:7]] == [False, False, True, True]
    known.add(ids[7], KnownPut(1, encode(np.zeros(200, np.uint8))))
    assert all(known.find(each) is None for each in ids)
