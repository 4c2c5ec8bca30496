"""Time limits while a slow call is under way: a next life of the node, a steward's start."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import GetTimeoutError, NodeLostError
from hoplite_ray.plugin.handle import fetching
from hoplite_ray.plugin.handle.fetching import PendingValue
from hoplite_ray.plugin.node.start import NodePlace
from hoplite_ray.plugin.process import attachment
from hoplite_ray.plugin.process.anchors import AnchorSupply
from hoplite_ray.plugin.process.attachment import Attachment
from hoplite_ray.plugin.process.sharing import SharedCall
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation
from hoplite_ray.values import deadlines
from hoplite_ray.values.codec import encode
from hoplite_ray.values.deadlines import deadline_in

STORE = SimpleNamespace(is_alive=True)
NOW = 0.0  # a deadline that has passed


class Slow:
    """A call that ends when it is told to; it counts how often it was made."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.made = 0
        self.answer: Any = "answer"

    def __call__(self, *_: object, **__: object) -> Any:
        self.made += 1
        self.has_begun.set()
        assert self.may_end.wait(60)
        return self.answer


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may_end.set()


def shared(call: Callable[[], Any]) -> SharedCall[Any]:
    return SharedCall("test", call, lambda: "it has not come")


def test_a_caller_whose_limit_ends_leaves_and_the_call_goes_on(slow: Slow) -> None:
    call = shared(slow)
    for _ in range(2):
        with pytest.raises(GetTimeoutError, match=r"it has not come after .* s; raise timeout_s"):
            call.result(NOW)
    assert slow.has_begun.wait(60) and slow.made == 1
    slow.may_end.set()
    assert call.result() == "answer"


def test_callers_of_the_moment_have_one_call(slow: Slow) -> None:
    call = shared(slow)
    with pytest.raises(GetTimeoutError):
        call.result(NOW)  # from here on the call is under way
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(call.result, time.monotonic() + 60) for _ in range(4)]
        with pytest.raises(GetTimeoutError):
            call.result(NOW)
        assert slow.has_begun.wait(60) and slow.made == 1
        slow.may_end.set()
        assert [each.result() for each in answers] == 4 * ["answer"]


@pytest.mark.parametrize("timeout_s", [None, math.inf, 1e300])
def test_a_limit_may_be_longer_than_any_clock(timeout_s: float | None) -> None:
    assert shared(lambda: 7).result(deadline_in(timeout_s)) == 7


def test_a_call_that_fails_is_made_again_for_the_next_caller() -> None:
    answers = iter([OSError("no"), 7])

    def call() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    some = shared(call)
    with pytest.raises(OSError, match="no"):
        some.result()
    assert some.result() == 7


@pytest.fixture
def between_lives(tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> Attachment:
    """An attachment whose node has died; the next life begins when `slow` may end."""
    slow.answer = SimpleNamespace(socket="")
    monkeypatch.setattr(attachment, "ensure_node", slow)
    monkeypatch.setattr(seams, "stay_connected", lambda connection: nullcontext())
    here = Attachment.__new__(Attachment)
    here.place, here.connection, here._store = NodePlace("", tmp_path), b"", None
    here._node = None  # type: ignore[assignment]
    here._renewal = SharedCall("renewal", here._renew, lambda: "the node has no next life")
    monkeypatch.setattr(attachment, "StoreClient", lambda socket: STORE)
    return here


def test_limits_hold_while_the_node_is_between_two_lives(
    between_lives: Attachment, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case review_02."""
    here = between_lives
    monkeypatch.setattr(fetching, "attachment", lambda deadline: here)
    with pytest.raises(GetTimeoutError, match="no next life"):
        here.put(bytes(28), encode(np.zeros(3)), incarnation=1, timeout_s=0.01)
    with pytest.raises(GetTimeoutError, match="no next life"):
        here.delete(bytes(28), timeout_s=0.01)
    with pytest.raises(GetTimeoutError, match="no next life"):
        PendingValue(bytes(28), 1, deadline=NOW)
    slow.may_end.set()
    assert here.store is STORE
    assert slow.made == 1


def test_each_try_has_what_is_left_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case review_02."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    here = Attachment.__new__(Attachment)
    here._store = STORE  # type: ignore[assignment]
    left: list[float | None] = []

    def lost(left_s: float | None) -> None:
        left.append(left_s)
        clock.now_s += 3.0
        raise NodeLostError("gone")

    async def lost_async(left_s: float | None) -> None:
        lost(left_s)

    def begin(store: Any) -> Any:
        return SimpleNamespace(result=lost, result_async=lost_async)

    with pytest.raises(NodeLostError):
        here._retry(begin, 7.0)
    assert left == [7.0, 4.0, 1.0]
    monkeypatch.setattr(fetching, "attachment", lambda deadline: here)
    with pytest.raises(NodeLostError):
        asyncio.run(fetching.retry(begin, clock.now_s + 7.0))
    assert left[3:] == [7.0, 4.0, 1.0]


def test_the_limit_of_a_coroutine_holds_while_no_thread_is_free(slow: Slow) -> None:
    """Case review_02."""

    async def waits() -> None:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            others = asyncio.get_running_loop().run_in_executor(None, slow)
            with pytest.raises(GetTimeoutError, match="no thread free"):
                await fetching.in_thread(time.monotonic() + 0.01, int)
            slow.may_end.set()
            await others

    asyncio.run(waits())


def test_limits_hold_while_a_steward_is_about_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case review_02."""
    place = NodePlace("", tmp_path)
    life = StewardIncarnation(place)
    supply = AnchorSupply(place, lambda: None)
    monkeypatch.setattr(supply, "_ask", lambda: (life.number, ["anchor"] * 32))
    with life.announce_end():
        assert StewardIncarnation.use(place, timeout_s=0.0) is None
        with pytest.raises(GetTimeoutError, match=r"not answered for 0.01 s"):
            supply.take(0.01)
    assert StewardIncarnation.use(place) == life.number
    assert supply.take() == "anchor"
