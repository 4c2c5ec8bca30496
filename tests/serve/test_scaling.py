"""Serve's controller runs the policy that scales ahead of the queries."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from ray import serve as ray_serve

from hoplite_ray.serve import pipeline, scale_ahead, stage
from hoplite_ray.serve.stages.parking import PARKED_KEY
from tests.ray.raycluster import eventually
from tests.serve.applications import LIGHT, Parks, Slow
from tests.serve.conftest import Application, Node


def make_application(hold_s: float, prepared: int = 0) -> Any:
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
    return pipeline(slow=stage(max_batch=1, **options, **LIGHT)(Slow), replicas=1)


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
    application.delete()
