"""Looks of the steward at sources: all that have come meanwhile share one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hoplite_ray.plugin.steward import looking
from hoplite_ray.plugin.steward.looking import Look, Looks


@dataclass(eq=False)
class Named:
    """A source; `ref` is only handed on here."""

    size_bytes: int
    ref: Any = None


class Recorder:
    """Stands for the thread's part, and can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.failure: Exception | None = None

    def look_at(self, sources: Sequence[Named]) -> list[Look | Exception]:
        assert self.may_go.wait(60)
        self.batches.append([source.size_bytes for source in sources])
        return [self.failure or Look(source.size_bytes) for source in sources]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(looking, "_look_at", made.look_at)
    return made


def test_sources_that_come_together_share_a_look(recorder: Recorder) -> None:
    async def look() -> list[Look]:
        looks = Looks()
        return await asyncio.gather(*(looks.at(Named(size)) for size in range(1, 5)))

    assert [each.size_bytes for each in asyncio.run(look())] == [1, 2, 3, 4]
    assert recorder.batches == [[1, 2, 3, 4]]


def test_sources_that_come_during_a_look_share_the_next_one(recorder: Recorder) -> None:
    async def look() -> None:
        recorder.may_go.clear()
        looks = Looks()
        first = asyncio.ensure_future(looks.at(Named(1)))
        await asyncio.sleep(0.05)  # it is under way
        others = [asyncio.ensure_future(looks.at(Named(size))) for size in (2, 3)]
        await asyncio.sleep(0)
        recorder.may_go.set()
        await asyncio.gather(first, *others)

    asyncio.run(look())
    assert recorder.batches == [[1], [2, 3]]


def test_what_went_wrong_reaches_every_source_of_the_look_and_no_later_one(
    recorder: Recorder,
) -> None:
    async def look() -> None:
        looks = Looks()
        recorder.failure = OSError("gone")
        both = await asyncio.gather(
            *(looks.at(Named(size)) for size in (1, 2)), return_exceptions=True
        )
        assert [str(each) for each in both] == ["gone", "gone"]
        recorder.failure = None
        assert (await looks.at(Named(3))).size_bytes == 3

    asyncio.run(look())


def test_a_source_whose_call_has_ended_holds_up_no_other(recorder: Recorder) -> None:
    async def look() -> Look:
        recorder.may_go.clear()
        looks = Looks()
        ended, other = (asyncio.ensure_future(looks.at(Named(size))) for size in (1, 2))
        await asyncio.sleep(0.05)
        ended.cancel()
        recorder.may_go.set()
        return await other

    assert asyncio.run(look()).size_bytes == 2
