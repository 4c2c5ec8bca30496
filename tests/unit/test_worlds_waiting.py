"""Waiting in event loops: one of each thread, which come and go as they like."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary, ref

import pytest

from hoplite_ray.worlds.core import waiting


class Slow(WeakKeyDictionary[Any, Any]):
    """A table that others change while it is looked through."""

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            time.sleep(0.02)
            yield each


def test_loops_of_many_threads_may_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_waiters", Slow())

    async def wait_in_it(number: int) -> None:
        await asyncio.sleep(0.01 * number)
        waiter = waiting.loop_waiter()
        await asyncio.sleep(0.2)  # so that no loop has ended when another one begins
        assert waiting.loop_waiter() is waiter

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda number: asyncio.run(wait_in_it(number)), range(6)))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_in_it(0))
    assert list(waiting._waiters) == [loop]
    loop.close()


def test_a_loop_that_is_gone_leaves_nothing() -> None:
    async def waiter() -> ref[waiting.LoopWaiter]:
        return ref(waiting.loop_waiter())

    made = asyncio.run(waiter())
    gc.collect()
    assert made() is None
