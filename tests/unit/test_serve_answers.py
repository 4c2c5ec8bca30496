"""What several stages answer to one query, some of whose inputs have met at a join."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hoplite_ray.serve.errors import JoinLostError
from hoplite_ray.serve.routing import joint
from hoplite_ray.serve.routing.joint import ask_jointly
from hoplite_ray.serve.routing.query import Merged


async def after(seconds: float, answer: Any) -> Any:
    await asyncio.sleep(seconds)
    if isinstance(answer, Exception):
        raise answer
    return answer


def asked(*calls: tuple[float, Any], attempt: int = 1) -> Any:
    return asyncio.run(ask_jointly([after(*each) for each in calls], attempt))


def test_the_answer_is_the_one_that_is_not_merged() -> None:
    assert asked((0, Merged()), (0.01, 7)) == 7
    assert asked((0.01, 7), (0, Merged()), (0, Merged())) == 7
    assert isinstance(asked((0, Merged()), (0, Merged())), Merged)


def test_an_answer_that_is_there_waits_for_nobody() -> None:
    assert asked((0, 7), (60, Merged())) == 7
    assert asked((0, KeyError("its branch has died")), (0, 7)) == 7


def test_an_error_of_any_is_the_answer_at_once() -> None:
    with pytest.raises(KeyError):
        asked((60, 7), (0, KeyError("no")))


def test_inputs_that_have_met_without_an_answer_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "_ANSWER_S", 0.05)
    with pytest.raises(JoinLostError):
        asked((0, Merged()), (60, 7))
    assert asked((0, Merged()), (0.1, 7), attempt=60) == 7, "more time with each attempt"
    assert asked((0.1, 7), (0.2, Merged())) == 7, "none has met before, however long that takes"
