"""Replicas are killed, replaced and updated under load: every query has its one right answer."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from hoplite_ray.serve import PoisonousQueryError, pipeline, stage
from tests.ray.raycluster import eventually
from tests.serve.applications import (
    LIGHT,
    Cross,
    Deadly,
    DeadlyTogether,
    DeadlyToRead,
    Search,
    Slow,
    Text,
    Vision,
)
from tests.serve.conftest import Application, Node
from tests.serve.test_pipeline import KEY, four_stages

QUERIES = range(100, 160)
NEW_S = 150.0  # for an answer that waits for two new replicas, one after the other
STAGES = {"text": 2, "vision": 2, "cross": 2, "search": 1}  # and their replicas


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test orders a replica's death: see `Mortal`."""
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def application(node: Node, orders: Path) -> Iterator[Application]:
    app = four_stages(str(orders), replicas=1, deadline_s=100.0)  # as `check` waits
    started = Application("deaths", app)
    yield started
    started.delete()


def begun(application: Application) -> list[Any]:
    return [application.ask(query) for query in QUERIES]


def check(asked: list[Any]) -> None:
    answers = [each.result(timeout_s=100) for each in asked]
    expected = [{"found": query + 1 + 10 * query + KEY} for query in QUERIES]
    assert answers == expected * (len(asked) // len(expected))


def kept(application: Application) -> dict[str, int]:
    """What the process that outlives all replicas has: an edge that was forgotten shows here.

    Of its threads ours alone: gRPC and Python's executor have more or fewer as they have work.
    """
    (pid,) = application.pids("ingress")
    threads = Counter[str]()
    for each in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended since
            name = (each / "comm").read_text().strip()
            if name.startswith("hoplite-"):
                threads[name] += 1
    return {**threads, "descriptors": psutil.Process(pid).num_fds()}


def assert_replaced(application: Application, alive: set[int], killed: int) -> None:
    """So many of those that were alive die, and all stages have all their replicas again."""

    def dead() -> set[int]:
        return {pid for pid in alive if not psutil.pid_exists(pid)}

    def is_whole() -> bool:
        pids = {stage: set(application.pids(stage)) for stage in STAGES}
        return all(len(pids[each]) == STAGES[each] and not pids[each] & dead() for each in STAGES)

    assert eventually(lambda: len(dead()) == killed, within_s=30)
    assert eventually(is_whole, within_s=60)


@pytest.mark.parametrize(
    "moment",
    [
        # A replica that dies in a batch: the queries below that kill.
        pytest.param("batch", marks=pytest.mark.slow),
        "frame",
        # A join with one of two inputs, and attempts of both: tests/unit/test_serve_joins.py.
        pytest.param("half", marks=pytest.mark.slow),
    ],
)
def test_replicas_that_die_at_any_step_cost_no_answer_and_leave_nothing(
    application: Application, orders: Path, moment: str
) -> None:
    check(begun(application))
    before = kept(application)
    alive = {pid for stage in STAGES for pid in application.pids(stage)}
    asked = begun(application)
    if moment == "batch":  # one of each stage, by its own hand
        for each in (Text, Vision, Cross, Search):
            (orders / f"{each.user_class.__name__}-batch").touch()
    elif moment == "frame":  # what is sent to them meanwhile is never taken
        stopped = [application.pids(stage)[0] for stage in STAGES]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        asked += begun(application)
        time.sleep(0.5)
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    else:  # both of a join have one of two inputs
        (orders / "Vision-half").touch()
    asked += begun(application)
    check(asked)
    assert_replaced(application, alive, 2 if moment == "half" else len(STAGES))
    check(begun(application))
    assert eventually(
        lambda: all(count <= before.get(each, 0) for each, count in kept(application).items()),
        within_s=60,
    ), (before, kept(application))


def test_who_had_asked_an_ingress_that_died_asks_again_by_the_same_id(
    application: Application,
) -> None:
    (last,) = application.pids("search")
    os.kill(last, signal.SIGSTOP)  # so that none is answered before
    asked = {query: application.ask_as(query, f"again-{query}") for query in QUERIES}
    time.sleep(1)
    application.kill_one_of("ingress")
    os.kill(last, signal.SIGCONT)
    again = 0
    for query, response in asked.items():
        try:
            answer = response.result(timeout_s=60)
        except ray.exceptions.RayActorError:
            answer = application.answer_as(query, f"again-{query}")
            again += 1
        assert answer == {"found": query + 1 + 10 * query + KEY}
    assert again > 0


@pytest.mark.slow  # asked all the while it is updated: test_built.py
def test_what_is_under_way_in_an_update_is_answered(application: Application) -> None:
    old = {pid for stage in STAGES for pid in application.pids(stage)}
    before = begun(application)
    Application("deaths", four_stages(replicas=1))
    check(before + begun(application))
    while not old.isdisjoint(pid for stage in STAGES for pid in application.pids(stage)):
        check(begun(application))  # the last of the old ones answer what they have


SCALES = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": 2,
    "upscale_delay_s": 0,
    "downscale_delay_s": 1,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 2,  # which Serve wants to be more than that interval, 10 s by default
}


@pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")
def test_serve_scales_by_what_comes_over_edges_and_no_answer_is_lost(node: Node) -> None:
    slow = stage(max_batch=1, autoscaling_config=SCALES, **LIGHT)(Slow)
    application = Application("slow", pipeline(slow=slow, replicas=1))
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "killings",
    [
        (-1, DeadlyToRead()),
        # In `make test`, tests/unit/test_serve_stages.py shows that such an answer kills in its
        # batch, and tests/unit/test_serve_edges.py that the caller knows of a query that runs.
        pytest.param((-4, -5), marks=pytest.mark.slow),
    ],
    ids=["in its batch or when it is read", "when its answer is packed or amid its work"],
)
def test_a_query_that_kills_is_given_up_and_others_are_answered(
    node: Node, killings: tuple[Any, ...]
) -> None:
    application = Application("deadly", pipeline(only=Deadly, replicas=1, deadline_s=NEW_S))
    assert [application.answer(query) for query in range(5)] == list(range(5))
    for killing in killings:
        with pytest.raises(Exception, match=PoisonousQueryError.__name__):
            application.ask(killing).result(timeout_s=NEW_S)
        assert application.ask(7).result(timeout_s=NEW_S) == 7
    application.delete()


@pytest.mark.slow  # what has killed runs alone: tests/unit/test_serve_batching.py
@pytest.mark.timeout(300)
def test_what_is_in_one_batch_with_a_query_that_kills_is_answered(node: Node) -> None:
    app = pipeline(only=DeadlyTogether, replicas=1, deadline_s=NEW_S)
    application = Application("together", app)
    asked = [application.ask(query) for query in (*range(20), -1, *range(20, 40))]
    killing = asked.pop(20)
    with pytest.raises(Exception, match=PoisonousQueryError.__name__):
        killing.result(timeout_s=NEW_S)
    assert [each.result(timeout_s=NEW_S) for each in asked] == list(range(40))
    application.delete()
