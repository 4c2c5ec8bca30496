"""Serve's controller runs the policy that scales ahead of the queries."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
from ray import serve as ray_serve

from hoplite_ray.serve import pipeline, scale_ahead, stage
from hoplite_ray.serve.stages.parking import PARKED_KEY
from tests.ray.raycluster import eventually
from tests.serve.applications import LIGHT, Parks, Slow, SlowMarks
from tests.serve.conftest import Application, Node
from tests.serve.test_pipeline import series

RATES = (4.0, 25.0)  # queries a second, in turns
TURN_S = 3.0


def make_application(
    hold_s: float, prepared: int = 0, user_class: Any = Slow, max_batch: int = 1
) -> Any:
    config = scale_ahead(
        min_replicas=1,
        max_replicas=2 + prepared,
        initial_replicas=1 + prepared,
        latency_s=0.3,
        capacity_per_s=10,
        service_s=0.1,
        hold_s=hold_s,
        prepared=prepared,
    )
    options: dict[str, Any] = {"starts_parked": prepared > 0, "autoscaling_config": config}
    slow = stage(max_batch=max_batch, **options, **LIGHT)(user_class)
    return pipeline(slow=slow, replicas=1, deadline_s=120.0)


@pytest.mark.slow  # in virtual time: test_serve_ahead_policy.py
def test_a_stage_is_scaled_by_its_reports_and_back_after_a_redeployment(node: Node) -> None:
    application = Application("ahead", make_application(60.0))
    asked = deque(application.ask(number) for number in range(20))
    number, answers = 20, []
    while len(application.pids("slow")) < 2:
        asked.append(application.ask(number))
        number += 1
        answers.append(asked.popleft().result(timeout_s=60))
    Application("ahead", make_application(2.0))  # the controller makes the policy anew
    answers += [each.result(timeout_s=60) for each in asked]
    assert answers == list(range(number))
    assert eventually(lambda: len(application.pids("slow")) == 1, within_s=60)
    application.delete()


def test_parked_replicas_are_released_by_a_notice(node: Node) -> None:
    config = scale_ahead(min_replicas=1, max_replicas=3, initial_replicas=2, prepared=1)
    parks = Parks.options(autoscaling_config=config)
    handle = ray_serve.run(parks.bind(), name="parks", route_prefix=None)

    def answer() -> set[bool]:
        return {handle.remote(0).result(timeout_s=60) for _ in range(20)}

    assert eventually(lambda: answer() == {True, False}, within_s=30), "one of the two is released"
    ray_serve.delete("parks")


def count_parked(application: str) -> tuple[int, int]:
    """Return how many replicas of the stage are parked, and how many there are."""
    handle: Any = ray_serve.get_deployment_handle("slow", application)
    told = handle.broadcast("record_autoscaling_stats").results(timeout_s=30)
    return sum(each[PARKED_KEY] for each in told), len(told)


def test_the_policy_releases_a_prepared_replica_of_a_stage_when_queries_come(node: Node) -> None:
    application = Application("prepared", make_application(60.0, prepared=1))
    assert eventually(lambda: count_parked("prepared") == (1, 2), within_s=30)
    first = set(application.pids("slow"))
    asked = deque(application.ask(number) for number in range(20))
    number, answers = 20, []
    while count_parked("prepared")[1] - count_parked("prepared")[0] < 2:
        asked.append(application.ask(number))
        number += 1
        answers.append(asked.popleft().result(timeout_s=60))
    answers += [each.result(timeout_s=60) for each in asked]
    assert answers == list(range(number))
    assert first <= set(application.pids("slow"))
    of_stage = re.compile(r'(?=.*application="prepared")(?=.*deployment="slow")')
    gauges = [f"ray_hoplite_serve_{name}_per_s" for name in ("arrivals", "forecast")]

    def read_rates() -> list[float]:
        """The rates that the policy has shown from Serve's controller."""
        found = [series(node, name) for name in gauges]
        return [value for each in found for name, value in each.items() if of_stage.search(name)]

    assert eventually(lambda: len(read_rates()) == 2, within_s=60)
    assert min(read_rates()) >= 0
    application.delete()


class Load:
    """Asks queries at the rates of RATES until it is stopped."""

    def __init__(self, application: Application) -> None:
        self.asked: list[Any] = []
        self._application = application
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def stop(self) -> list[Any]:
        """Return the answers to all queries."""
        self._is_over.set()
        self._thread.join()
        return [each.result(timeout_s=150) for each in self.asked]

    def _ask(self) -> None:
        began_s = time.monotonic()
        while not self._is_over.is_set():
            turn = int((time.monotonic() - began_s) / TURN_S)
            query = {"query": len(self.asked), "pids": []}
            self.asked.append(self._application.ask(query))
            self._is_over.wait(1 / RATES[turn % len(RATES)])


def kill_one(application: Application, *, is_parked: bool) -> bool:
    """Kill a replica that is parked, or one that answers; returns whether there was one."""
    asked = [application.ask({"query": -1, "pids": []}) for _ in range(8)]
    active = {each.result(timeout_s=150)["pids"][0] for each in asked}
    alive = set(application.pids("slow"))
    if victims := alive - active if is_parked else alive & active:
        with suppress(ProcessLookupError):
            os.kill(min(victims), signal.SIGKILL)
    return bool(victims)


@pytest.mark.slow  # it kills replicas for a minute
@pytest.mark.timeout(400)
def test_no_query_is_lost_when_replicas_die_while_they_scale_park_and_update(node: Node) -> None:
    application = Application("dying", make_application(3.0, 1, SlowMarks))
    assert eventually(lambda: count_parked("dying") == (1, 2), within_s=30)
    load = Load(application)
    killed = {is_parked: 0 for is_parked in (True, False)}

    def kill_some(rounds: int) -> None:
        for number in range(rounds):
            time.sleep(TURN_S)
            is_parked = number % 2 == 0
            killed[is_parked] += kill_one(application, is_parked=is_parked)

    kill_some(3)
    before = set(application.pids("slow"))

    def update_stage() -> None:
        changed = make_application(3.0, 1, SlowMarks, max_batch=2)
        with suppress(RuntimeError):  # Serve says so when new replicas die, and goes on
            Application("dying", changed)

    update = threading.Thread(target=update_stage)
    update.start()
    kill_some(3)
    update.join()
    kill_some(3)
    answers = load.stop()
    assert [each["query"] for each in answers] == list(range(len(load.asked)))
    assert all(len(each["pids"]) == 1 for each in answers)
    assert killed[True] > 1 and killed[False] > 2, killed
    assert not before & set(application.pids("slow")), "the update is complete"
    application.delete()
