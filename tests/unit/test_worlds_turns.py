"""Collectives and sends that two threads begin at once go one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.worlds.core import sending
from hoplite_ray.worlds.core.sending import Sending, Sendings
from hoplite_ray.worlds.ops.collectives import Call


class Turns(list[Any]):
    """Has another thread run at the moment when a thread has looked at it, or has added to it."""

    def __init__(self, moment: str, other: Callable[[], None]) -> None:
        super().__init__()
        self._moment = moment
        self._other: Callable[[], None] | None = other

    def append(self, turn: Any) -> None:
        super().append(turn)
        self._switch("added")

    def __iter__(self) -> Iterator[Any]:
        seen = list(super().__iter__())
        self._switch("looked")
        return iter(seen)

    def _switch(self, moment: str) -> None:
        other, is_now = self._other, moment == self._moment
        if is_now and other is not None:
            self._other = None
            other()


@pytest.mark.parametrize("moment", ["looked", "added"])
def test_of_two_collectives_that_are_called_at_once_one_waits_for_the_other(moment: str) -> None:
    """Case review_18."""
    calls: list[Call] = []
    world: Any = SimpleNamespace(rank=0, size=2, rounds=0)

    def call() -> None:
        calls.append(Call(world, "barrier", "uint8"))

    world.turns = Turns(moment, call)
    call()
    one, other = calls
    waits = [each._turn in before._before for each, before in ((one, other), (other, one))]
    assert sorted(waits) == [False, True], "exactly one of them waits"


def test_of_two_sends_that_are_queued_at_once_one_waits_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sendings = Sendings()
    is_locked: list[bool] = []

    class Made(Sending):
        def __init__(self, before: Sending | None) -> None:
            is_locked.append(sendings._lock.locked())  # no other looks at the last one meanwhile
            super().__init__(before)

    monkeypatch.setattr(sending, "Sending", Made)
    with sendings.queued(1) as first, sendings.queued(1) as second:
        assert second.before is first
    assert is_locked == [True, True] and not sendings
