"""The steward's list of bare sources that it leaves to its callers, without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.errors import WrongTypeError
from hoplite_ray.plugin.steward import bare_sources
from hoplite_ray.plugin.steward.bare_sources import BareSources
from hoplite_ray.plugin.steward.source import Source
from hoplite_ray.plugin.surface import bare_reader


def source() -> Any:
    return Source(3, object())  # type: ignore[arg-type] # a ref, which nothing here looks into


def meet(sources: BareSources, caller: str = "us") -> asyncio.Task[Any]:
    return asyncio.ensure_future(sources.request_read(caller, b"answer", source(), "node", True))


async def ask_first(sources: BareSources) -> tuple[Any, asyncio.Task[Any]]:
    asked = asyncio.ensure_future(sources.next_for("us"))
    await asyncio.sleep(0)
    met = meet(sources)
    return await asked, met


async def ask_later(sources: BareSources) -> tuple[Any, asyncio.Task[Any]]:
    met = meet(sources)
    await asyncio.sleep(0)
    return await sources.next_for("us"), met


@pytest.mark.parametrize("order", [ask_first, ask_later])
def test_a_caller_hears_of_a_source_whenever_it_asks(order: Any) -> None:
    async def run() -> None:
        sources = BareSources()
        (wanted,), met = await order(sources)
        assert (wanted.answer, wanted.index, wanted.node) == (b"answer", 3, "node")
        assert wanted.is_large and len(wanted.refs) == 1
        sources.deliver(wanted.key, [wanted.refs[0]])
        assert await met is wanted.refs[0]
        sources.deliver(wanted.key, [wanted.refs[0]])  # sent twice
        assert not sources._callers and not sources._results

    asyncio.run(run())


def test_what_is_wrong_with_a_source_is_raised() -> None:
    async def run() -> None:
        sources = BareSources()
        (wanted,), met = await ask_first(sources)
        sources.deliver(wanted.key, WrongTypeError("source 3 returned str"))
        with pytest.raises(WrongTypeError, match="source 3"):
            await met

    asyncio.run(run())


def test_a_question_ends_with_a_call_that_had_bare_sources_or_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        sources = BareSources()
        (wanted,), met = await ask_first(sources)
        sources.deliver(wanted.key, [wanted.refs[0]])
        await met
        asked = asyncio.ensure_future(sources.next_for("us"))
        await asyncio.sleep(0)
        sources.end_call("us", b"a call without bare sources")
        sources.end_call("others", b"answer of theirs")
        await asyncio.sleep(0)
        assert not asked.done()
        sources.end_call("us", b"answer")
        assert await asked == []
        monkeypatch.setattr(bare_sources, "_POLL_S", 0.0)
        assert await sources.next_for("us") == []
        assert not sources._callers and not sources._answers

    asyncio.run(run())


def test_a_source_whose_call_has_ended_is_forgotten() -> None:
    async def run() -> None:
        sources = BareSources()
        met = meet(sources)
        await asyncio.sleep(0)
        met.cancel()
        with pytest.raises(asyncio.CancelledError):
            await met
        assert not sources._results and not sources._callers["us"].bare

    asyncio.run(run())


class Asked:
    """A steward that has nothing to be read; it says when it is asked."""

    def __init__(self, question_s: float = 0.01) -> None:
        self.is_asked, self.is_over = threading.Event(), threading.Event()
        self.bare_sources = SimpleNamespace(remote=self._ask)
        self._question_s = question_s

    def _ask(self, caller: str) -> list[Any]:
        self.is_asked.set()
        self.is_over.wait(self._question_s)
        return []


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """A process without readers; each item ends one of its calls."""
    found: list[Callable[[], None]] = []
    monkeypatch.setattr(bare_reader, "_readers", [])
    monkeypatch.setattr(
        bare_reader.seams, "add_settled_callback", lambda result, end: found.append(end)
    )
    monkeypatch.setattr(bare_reader.seams, "wait_for_answer", lambda ask, connection: ask())
    return found


def test_each_steward_is_asked_while_a_call_of_it_is_pending(
    ends: list[Callable[[], None]],
) -> None:
    here: Any = SimpleNamespace(connection=b"here")
    stewards = [Asked(), Asked()]
    try:
        for number, steward in enumerate(stewards):
            result: Any = SimpleNamespace(binary=lambda number=number: bytes([number]))
            bare_reader.attend(here, steward, "us", result)
            assert steward.is_asked.wait(10)
        stewards[0].is_asked.clear()
        assert stewards[0].is_asked.wait(10), "its call is pending still"
        assert len(bare_reader._readers) == 2
    finally:
        for end in ends:
            end()
    while not any(each.is_idle for each in bare_reader._readers):
        pass
    bare_reader.attend(here, Asked(), "us", result)
    assert len(bare_reader._readers) == 2, "an idle one is used again"
    ends[-1]()


def test_a_call_finds_the_question_of_the_last_one_open(ends: list[Callable[[], None]]) -> None:
    here: Any = SimpleNamespace(connection=b"here")
    result: Any = SimpleNamespace(binary=lambda: b"answer")
    steward = Asked(question_s=60)
    bare_reader.attend(here, steward, "us", result)
    assert steward.is_asked.wait(10)
    ends[0]()
    steward.is_asked.clear()
    bare_reader.attend(here, steward, "us", result)
    assert not steward.is_asked.wait(0.1) and len(bare_reader._readers) == 1
    ends[1]()
    steward.is_over.set()


def test_a_reader_whose_question_outlasts_its_call_asks_no_other_steward(
    ends: list[Callable[[], None]],
) -> None:
    here: Any = SimpleNamespace(connection=b"here")
    result: Any = SimpleNamespace(binary=lambda: b"answer")
    old, new = Asked(question_s=60), Asked()
    bare_reader.attend(here, old, "us", result)
    assert old.is_asked.wait(10)
    ends[0]()  # the call ends, and its question doesn't
    bare_reader.attend(here, new, "us", result)
    assert new.is_asked.wait(10), "it does not wait for the end of the other question"
    ends[1]()
    old.is_over.set()


def test_a_reader_that_is_about_to_ask_asks_no_other_steward(
    ends: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Any = SimpleNamespace(connection=b"here")
    result: Any = SimpleNamespace(binary=lambda: b"answer")
    old, new = Asked(), Asked()
    goes_on = threading.Event()

    class Held(Queue[Any]):
        """Holds its reader after it has taken a question."""

        def empty(self) -> bool:
            goes_on.wait(10)
            return super().empty()

    monkeypatch.setattr(bare_reader, "Queue", Held)
    bare_reader.attend(here, old, "us", result)
    ends[0]()  # the call is over before the steward is asked
    bare_reader.attend(here, new, "us", result)
    assert len(bare_reader._readers) == 2
    goes_on.set()
    assert new.is_asked.wait(10)
    ends[1]()
