"""Replicas are killed, replaced and updated under load: every query has its one right answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from hoplite_ray.serve import PoisonousQueryError, pipeline
from tests.serve.applications import Deadly, Slow
from tests.serve.conftest import Application
from tests.serve.test_pipeline import KEY, four_stages

QUERIES = range(100, 160)


@pytest.fixture(scope="module")
def application(node: str) -> Iterator[Application]:
    started = Application("deaths", four_stages(replicas=1))
    yield started
    started.delete()


def begun(application: Application) -> list[Any]:
    return [application.ask(query) for query in QUERIES]


def check(asked: list[Any]) -> None:
    answers = [each.result(timeout_s=100) for each in asked]
    expected = [{"found": query + 1 + 10 * query + KEY} for query in QUERIES]
    assert answers == expected * (len(asked) // len(expected))


@pytest.mark.parametrize("stage", ["text", "vision", "cross", "search"])
def test_a_replica_that_dies_costs_no_answer(application: Application, stage: str) -> None:
    application.answer(100)
    before = begun(application)
    application.kill_one_of(stage)  # search has one replica alone, which Serve replaces
    check(before + begun(application))


def test_what_is_under_way_in_an_update_is_answered(application: Application) -> None:
    stages = ("text", "vision", "cross", "search")
    old = {pid for stage in stages for pid in application.pids(stage)}
    before = begun(application)
    Application("deaths", four_stages(replicas=1))
    check(before + begun(application))
    while not old.isdisjoint(pid for stage in stages for pid in application.pids(stage)):
        check(begun(application))  # the last of the old ones answer what they have


def test_serve_scales_by_what_comes_over_edges_and_no_answer_is_lost(node: str) -> None:
    application = Application("slow", pipeline(slow=Slow, replicas=1))
    asked = deque(application.ask(number) for number in range(20))
    number, answers = 20, []
    while len(application.pids("slow")) < 2:
        asked.append(application.ask(number))
        number += 1
        answers.append(asked.popleft().result(timeout_s=60))
    answers += [each.result(timeout_s=60) for each in asked]
    while len(application.pids("slow")) > 1:
        answers.append(application.answer(number))
        number += 1
    assert answers == list(range(number))
    application.delete()


def test_a_query_that_kills_is_given_up_and_others_are_answered(node: str) -> None:
    application = Application("deadly", pipeline(only=Deadly, replicas=1))
    assert [application.answer(query) for query in range(5)] == list(range(5))
    with pytest.raises(Exception, match=PoisonousQueryError.__name__):
        application.answer(-1)
    assert application.answer(7) == 7
    application.delete()
