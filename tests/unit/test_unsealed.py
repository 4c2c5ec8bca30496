"""Memory that is sealed: what fails, or is given up, does not count as done."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import GetTimeoutError, StoreFullError
from hoplite_ray.unsealed import Unsealed
from hoplite_ray.values.codec import Template
from hoplite_ray.values.layout import Layout


class Seal:
    """A seal that ends with each of `ends` in turn, and then well."""

    def __init__(self, *ends: type[BaseException]) -> None:
        self.ends = list(ends)
        self.count = 0

    def begin(self) -> Any:
        self.count += 1
        return self

    def result(self, timeout_s: float | None) -> None:
        if self.ends:
            raise self.ends.pop(0)

    async def result_async(self, timeout_s: float | None) -> None:
        self.result(timeout_s)


def unsealed(seal: Seal) -> Unsealed:
    layout = Layout.of(np.zeros(4, np.uint8))
    return Unsealed(Template(layout, []), bytearray(layout.size_bytes), seal.begin)


@pytest.mark.parametrize("end", [StoreFullError, GetTimeoutError, KeyboardInterrupt])
def test_a_seal_that_fails_is_repeated_until_it_has_succeeded(end: type[BaseException]) -> None:
    made = unsealed(seal := Seal(end, end))
    for _ in range(2):
        with pytest.raises(end):
            made.seal()
        assert not made.is_sealed
    made.seal()
    assert made.is_sealed
    made.seal()
    assert seal.count == 3


def test_a_seal_that_is_awaited_likewise() -> None:
    made = unsealed(seal := Seal(asyncio.CancelledError))

    async def awaited() -> None:
        with pytest.raises(asyncio.CancelledError):
            await made.seal_async()
        assert not made.is_sealed
        await made.seal_async()

    asyncio.run(awaited())
    assert made.is_sealed
    assert seal.count == 2
