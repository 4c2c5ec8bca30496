"""What a query on its way does not wait for: metrics, and the thread of its stage."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hoplite_ray.serve import metrics
from hoplite_ray.serve.stages.worker import Worker

MANY = 3 * 32 + 1  # more than are told in one turn
LAST = MANY - 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Any]]:
    """What Ray is told."""
    heard: list[tuple[float, Any]] = []

    class Metric:
        def inc(self, value: float, tags: Any) -> None:
            heard.append((value, tags))
            if value == LAST:
                asyncio.get_running_loop().stop()

    monkeypatch.setattr(metrics, "_metric", lambda name: Metric())
    return heard


def test_metrics_are_told_later_in_their_order_and_at_once_outside_of_a_loop(
    told: list[tuple[float, Any]],
) -> None:
    async def note(count: int) -> None:
        for each in range(count):
            metrics.count("serve_queries", each, outcome="ok")

    asyncio.run(note(2))  # and its loop ends before it has told them
    assert told == []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(note(MANY))
    assert told == []
    loop.run_forever()  # until the last one is told
    loop.close()
    assert [value for value, _ in told] == [*range(2), *range(MANY)]
    assert told[0][1] == {"outcome": "ok"}
    metrics.count("serve_queries", 7, outcome="late")
    assert told[-1] == (7, {"outcome": "late"})


def test_a_worker_goes_on_after_what_fails_and_ends_when_it_is_closed() -> None:
    ran: list[str] = []
    ended = threading.Event()

    def fail() -> None:
        ran.append(threading.current_thread().name)
        raise SystemExit

    worker = Worker("stage-a")
    worker.submit(fail)
    worker.submit(ended.set)
    assert ended.wait(30) and ran == ["stage-a"]
    (thread,) = (each for each in threading.enumerate() if each.name == "stage-a")
    worker.close()
    thread.join(30)
    assert not thread.is_alive()
