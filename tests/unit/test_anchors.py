"""The supply of anchors under many takers, with a steward that is made up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray.errors import GetTimeoutError, HopliteError
from hoplite_ray.plugin.node.start import NodePlace
from hoplite_ray.plugin.process import anchors
from hoplite_ray.plugin.process.anchors import AnchorSupply
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation

TAKERS = 40  # more than one call to the steward brings


class Watched(queue.SimpleQueue[Any]):
    """Tells of everybody who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.waiting.release()
        return super().get(block, timeout)


@pytest.fixture
def supply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[AnchorSupply, StewardIncarnation]:
    monkeypatch.setattr(anchors, "_TAKE_S", 5.0)
    place = NodePlace("", tmp_path)
    life = StewardIncarnation(place)
    return AnchorSupply(place, lambda: None), life


def all_wait(supply: AnchorSupply, answer: Callable[[], Any]) -> Callable[[], Any]:
    """The steward's `answer`, of which the first comes when all takers wait for it."""
    watched = supply._ready = Watched()
    calls = count()

    def asked() -> Any:
        if next(calls) == 0:
            for _ in range(TAKERS):
                watched.waiting.acquire()
        return answer()

    return asked


def test_more_wait_at_once_than_one_call_brings(
    supply: tuple[AnchorSupply, StewardIncarnation], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, life = supply
    names = count()

    def answer() -> tuple[int, list[int]]:
        return life.number, [next(names) for _ in range(anchors._ANCHORS_PER_CALL)]

    monkeypatch.setattr(some, "_ask", all_wait(some, answer))
    with ThreadPoolExecutor(TAKERS) as pool:
        taken = list(pool.map(lambda _: some.take(), range(TAKERS)))
    assert len(set(taken)) == TAKERS


def test_who_waits_while_a_call_fails_is_served_by_the_next(
    supply: tuple[AnchorSupply, StewardIncarnation], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, life = supply
    answers = iter([OSError("no"), *([(life.number, list(range(anchors._ANCHORS_PER_CALL)))] * 9)])

    def answer() -> Any:
        told = next(answers)
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(some, "_ask", all_wait(some, answer))

    def take(_: int) -> str:
        try:
            some.take()
        except HopliteError as error:
            return str(error)
        return "taken"

    with ThreadPoolExecutor(TAKERS) as pool:
        told = list(pool.map(take, range(TAKERS)))
    assert told.count("taken") == TAKERS - 1  # one hears of it
    assert "the steward of this Ray node does not answer: no" in told


def test_a_call_that_failed_while_no_taker_waited_fails_no_later_taker(
    supply: tuple[AnchorSupply, StewardIncarnation], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, life = supply
    names, calls = count(), count(1)

    def answer() -> tuple[int, list[int]]:
        if next(calls) == 2:
            raise OSError("no")
        return life.number, [next(names) for _ in range(anchors._ANCHORS_PER_CALL)]

    monkeypatch.setattr(some, "_ask", answer)
    for _ in range(3 * anchors._ANCHORS_PER_CALL):
        some.take()
        with some._refill_lock:
            pass  # the call that this has begun has ended
    assert next(calls) > 4, "calls have succeeded after the one that failed"


def test_a_limit_of_the_callers_own_ends_the_wait(
    supply: tuple[AnchorSupply, StewardIncarnation], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, _ = supply
    answered = threading.Event()
    monkeypatch.setattr(some, "_ask", answered.wait)
    with pytest.raises(GetTimeoutError, match=r"not answered for 0.01 s"):
        some.take(0.01)
    monkeypatch.setattr(anchors, "_TAKE_S", 0.02)
    for limit_s in (None, 60.0):
        with pytest.raises(HopliteError, match=r"not answered for 0.02 s") as caught:
            some.take(limit_s)
        assert not isinstance(caught.value, GetTimeoutError)
    answered.set()
