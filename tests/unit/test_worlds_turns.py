"""Collectives and sends that two threads begin at once go one after the other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.worlds.core import sending
from hoplite_ray.worlds.core.sending import Sending, Sendings
from hoplite_ray.worlds.core.waiting import Turn
from hoplite_ray.worlds.gpu.nccl import Gpu
from hoplite_ray.worlds.ops import membership
from hoplite_ray.worlds.ops.call import Call
from hoplite_ray.worlds.ops.membership import Membership


def test_of_two_collectives_that_are_called_at_once_one_waits_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case review_18."""
    edges: Any = SimpleNamespace(transport=lambda rank: "tcp")
    loans: Any = None
    world = Membership("w", 1, 0, 2, edges, Gpu("there is none"), loans)
    is_locked: list[bool] = []

    class Made(Turn):
        def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
            is_locked.append(world._turns_lock.locked())  # no other thread looks meanwhile
            super().__init__(loop)

    monkeypatch.setattr(membership, "Turn", Made)
    one, other = (Call(world, "barrier", "uint8") for _ in range(2))
    assert (one._before, other._before) == ([], [one._turn]), "exactly one of them waits"
    assert is_locked == [True, True]
    world.end_turn(one._turn)
    assert Call(world, "barrier", "uint8")._before == [other._turn]


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
