"""What is sent to several stages: by its id where the store is there in time."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hoplite_ray import GetTimeoutError
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.frames import Message
from hoplite_ray.serve.errors import StoredLostError
from hoplite_ray.serve.routing import handoff
from hoplite_ray.serve.routing.handoff import Stored

LARGE = np.zeros(1 << 20, np.uint8)


@pytest.fixture(autouse=True)
def no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "_no_get_until_s", 0.0)


def test_a_store_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    is_there = threading.Event()
    puts: list[Any] = []

    def put(value: Any, message: Any) -> Any:
        puts.append(value)
        assert is_there.wait(30)
        return Stored(b"id", value)

    monkeypatch.setattr(handoff, "_put", put)

    async def run() -> None:
        began_s = time.monotonic()
        assert await handoff.share(LARGE, 2, "the query", 0.2) is LARGE
        assert await handoff.share(LARGE, 2, "the query", 60.0) is LARGE, "it is still starting"
        assert time.monotonic() - began_s < 10
        assert len(puts) == 1
        is_there.set()
        await asyncio.gather(*handoff._overdue_puts)
        await asyncio.sleep(0.01)
        assert isinstance(await handoff.share(LARGE, 2, "the query", 60.0), Stored)

    asyncio.run(run())


def test_the_first_one_may_take_as_long_as_a_store_takes_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits_s: list[float] = []

    def empty(size_bytes: int, dtype: str, *, timeout_s: float) -> Any:
        limits_s.append(timeout_s)
        if timeout_s < 10 and len(limits_s) == 1:
            raise GetTimeoutError("the steward of this Ray node has not answered for 1 s")
        return np.empty(size_bytes, dtype)

    kept = SimpleNamespace(nbytes=LARGE.nbytes, _object_id=b"id")

    def array(value: Any, *, timeout_s: float) -> Any:
        assert timeout_s == limits_s[-1], "a seal has a limit, too"
        return kept

    monkeypatch.setattr(handoff, "hoplite_ray", SimpleNamespace(empty=empty, array=array))
    monkeypatch.setattr(metrics, "count", lambda *_, **__: None)
    monkeypatch.setattr(handoff, "_no_store_until_s", 0.0)
    monkeypatch.setattr(handoff, "_has_put", False)
    puts = [handoff._put(LARGE, Message.pack(0, 0, LARGE)) for _ in range(2)]
    assert all(isinstance(each, Stored) for each in puts)
    assert limits_s[0] > 10 > limits_s[1], "a full store is waited for a moment"


def test_who_has_no_store_in_time_asks_for_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(handoff, "attachment", lambda: is_over.wait(30))

    async def run() -> None:
        try:
            with pytest.raises(StoredLostError, match="no store here yet"):
                await handoff.fetch(Stored(b"id"), 0.2)
        finally:
            is_over.set()

    asyncio.run(run())


def test_a_node_that_starts_again_stops_no_loop_and_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case review_06."""
    is_over = threading.Event()
    threads: list[int] = []

    class Attachment:
        @property
        def store(self) -> Any:
            threads.append(threading.get_ident())
            assert is_over.wait(10)
            raise OSError("no space left on device")

    monkeypatch.setattr(handoff, "attachment", Attachment)

    async def run() -> None:
        waiting = [asyncio.create_task(handoff.fetch(Stored(b"id"), 60.0)) for _ in range(10)]
        for _ in range(3):  # the loop goes on
            await asyncio.to_thread(lambda: None)
        is_over.set()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, StoredLostError) and "no space left" in str(ended)

    asyncio.run(run())
    assert len(threads) == 1 and threads[0] != threading.get_ident()


def test_a_store_that_does_not_answer_costs_a_share_of_one_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case u5_handoff: a node that is stopped, not dead."""
    limits_s: list[float] = []

    class Stopped:
        def begin_get(self, object_id: bytes, *, exists: bool) -> Any:
            return SimpleNamespace(result_async=self._never)

        async def _never(self, timeout_s: float) -> Any:
            limits_s.append(timeout_s)
            raise GetTimeoutError("its node does not answer")

    monkeypatch.setattr(handoff, "attachment", lambda: SimpleNamespace(store=Stopped()))

    async def take(timeout_s: float, why: str) -> None:
        with pytest.raises(StoredLostError, match=why):
            await handoff.fetch(Stored(b"id"), timeout_s)

    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        asyncio.run(take(0.001, "."))
        assert not caplog.records, "a query that is nearly late tells nothing of the store"
        limits_s.clear()
        asyncio.run(take(600.0, "does not answer"))
        assert len(limits_s) == 1 and limits_s[0] <= 300.0, "the sender needs the rest"
        asyncio.run(take(600.0, "asked again later"))
        assert len(limits_s) == 1
        monkeypatch.setattr(handoff, "_no_get_until_s", 0.0)
        asyncio.run(take(600.0, "does not answer"))
        assert len(limits_s) == 2
    assert len(caplog.records) == 2 and "does not answer" in caplog.text


def test_a_store_that_refuses_by_any_error_costs_no_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case review_03."""
    asked: list[int] = []

    def empty(size_bytes: int, dtype: str, *, timeout_s: float) -> Any:
        asked.append(size_bytes)
        raise ValueError("arena_bytes=48 differs from what the cluster's first job fixed")

    monkeypatch.setattr(handoff, "hoplite_ray", SimpleNamespace(empty=empty))
    monkeypatch.setattr(handoff, "_no_store_until_s", 0.0)
    monkeypatch.setattr(handoff, "_is_logged", False)

    async def run() -> None:
        for _ in range(2):
            assert await handoff.share(LARGE, 2, "the query", 60.0) is LARGE
        assert len(asked) == 1, "it is not asked again at once"
        monkeypatch.setattr(handoff, "_no_store_until_s", 0.0)
        assert await handoff.share(LARGE, 2, "the query", 60.0) is LARGE
        assert len(asked) == 2

    with caplog.at_level("WARNING", logger="hoplite_ray.serve"):
        asyncio.run(run())
    assert len(caplog.records) == 1 and "arena_bytes=48" in caplog.text


def test_what_can_not_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match=r"the answer of stage a can't be sent \(TypeError: .*lock"):
        asyncio.run(handoff.share(threading.Lock(), 2, "the answer of stage a", 60.0))
