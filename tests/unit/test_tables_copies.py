"""Copies of a table's values: a small one comes with the call, and a live node costs no thread."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from hoplite_ray.plugin.handle import fetching
from hoplite_ray.plugin.handle.array import SMALL_BYTES_MAX
from hoplite_ray.plugin.steward.keeping import keep_copies
from hoplite_ray.plugin.tables.values import _find_sources
from hoplite_ray.values.codec import Encoded, decode_copy, encode

HALF = SMALL_BYTES_MAX // 2


class Ended:
    """An operation that has ended."""

    def __init__(self, result: Any) -> None:
        self.ended = result

    async def result_async(self, timeout_s: float | None) -> Any:
        return self.ended


class Store:
    """A store of encoded values; it notes what is asked of it."""

    def __init__(self, values: dict[bytes, Encoded]) -> None:
        self.values = values
        self.gets: list[bytes] = []

    def begin_get_encoded(self, object_id: bytes) -> Ended:
        self.gets.append(object_id)
        return Ended(self.values[object_id])

    def begin_put(self, object_id: bytes, value: Encoded) -> Ended:
        self.values[object_id] = value
        return Ended(None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A live store, which no thread has to find."""

    async def refuse(*_: Any) -> Any:
        raise AssertionError("a thread is asked though the node lives")

    made = Store({})
    monkeypatch.setattr(fetching, "live_store", lambda: made)
    monkeypatch.setattr(fetching, "in_thread", refuse)
    return made


@pytest.mark.parametrize(
    ("sizes", "gets"), [((0, 100), 0), ((HALF, HALF), 0), ((HALF, HALF + 1), 2)], ids=str
)
def test_small_values_come_with_the_call_and_others_are_fetched(
    store: Store, sizes: tuple[int, int], gets: int
) -> None:
    arrays = [np.arange(size, dtype=np.uint8) for size in sizes]
    first, second = [b"1", b"2"], [b"3", b"4"]
    values = [encode({"a": each}) for each in arrays]
    store.values.update(zip(first, values, strict=True))
    sources = _find_sources(first, values)
    asyncio.run(keep_copies(list(zip(sources, second, strict=True))))
    assert len(store.gets) == gets
    for target, array in zip(second, arrays, strict=True):
        assert (decode_copy(store.values[target])["a"] == array).all()
