"""Profiles and plans with real replicas: the profile is the stage's, the plan is what runs."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
import ray

from hoplite_ray import serve
from tests.ray.raycluster import eventually
from tests.serve.conftest import Application, Node
from tests.serve.test_pipeline import metric_names, series

_FIXED_S, _EACH_S = 0.02, 0.004


@serve.stage(ray_actor_options={"num_cpus": 0})
class Sleeps:
    def __init__(self, start_s: float = 0.0) -> None:
        time.sleep(start_s)

    def __call__(self, queries: list[Any]) -> list[Any]:
        time.sleep(_FIXED_S + _EACH_S * len(queries))
        return queries


@serve.stage(ray_actor_options={"num_cpus": 0})
class Adds:
    def __call__(self, left: list[Any], right: list[Any]) -> list[Any]:
        time.sleep(0.002)
        return [a + b for a, b in zip(left, right, strict=True)]


@serve.stage(ray_actor_options={"num_cpus": 0})
class Fails:
    def __call__(self, queries: list[Any]) -> list[Any]:
        raise ArithmeticError("it always fails")


def test_a_profile_is_of_the_stage_where_it_runs(node: Node) -> None:
    stage = Sleeps.bind(0.05)
    profile = serve.profile(stage, range(3), (1, 8), beside=[(Sleeps, [1])], budget_s=0.5)
    assert (profile.stage, profile.sizes) == ("Sleeps", (1, 8))
    assert profile.start_s >= 0.05
    assert profile.where["options"] == {"num_cpus": 0} and profile.where["beside"] == ["Sleeps"]
    for batch in profile.batches:
        assert len(batch.service_s) >= 20
        assert batch.service_s[0] >= _FIXED_S + _EACH_S * batch.size
        assert batch.memory_bytes > 10 << 20


def test_a_plan_runs_as_it_says(node: Node) -> None:
    profiles = {
        "left": serve.profile(Sleeps, [1], (1, 2, 4), budget_s=0.2),
        "right": serve.profile(Sleeps, [1], (1, 2, 4), budget_s=0.2),
        "sum": serve.profile(
            Adds.after("left", "right"), [{"left": 1, "right": 2}], (1, 4), budget_s=0.2
        ),
    }
    pipeline = serve.pipeline(left=Sleeps, right=Sleeps, sum=Adds.after("left", "right"))
    plan = serve.plan(pipeline, serve.SLO(latency_s=0.5, rate_per_s=120), profiles)
    app = Application("planned", plan.application)
    assert app.answer(4) == 8
    for name, count in plan.replicas.items():
        assert len(app.pids(name)) == count, name
    shares_ms = {name: 1000 * share_s for name, share_s in plan.share_latency().items()}
    label = r'ray_hoplite_serve_budget_ms\{[^}]*application="planned"[^}]*deployment="(\w+)"'

    def read_budgets() -> dict[str, float]:
        found = series(node, "ray_hoplite_serve_budget_ms")
        return {each[1]: value for name, value in found.items() if (each := re.match(label, name))}

    assert eventually(lambda: read_budgets().keys() == shares_ms.keys(), within_s=60)
    assert read_budgets() == pytest.approx(shares_ms)
    wanted = {f"ray_hoplite_serve_{name}" for name in ("budget_queries_total", "spent_ms_bucket")}
    assert eventually(lambda: wanted <= metric_names(node), within_s=60)
    app.delete()


def test_what_a_stage_raises_ends_its_profile(node: Node) -> None:
    with pytest.raises(ray.exceptions.RayTaskError, match="it always fails"):
        serve.profile(Fails, [1], (1,), budget_s=0.1)


def test_a_profile_without_room_names_the_stage(node: Node) -> None:
    greedy = Sleeps.options(ray_actor_options={"num_cpus": 1000})
    with pytest.raises(TimeoutError, match="Sleeps was not profiled within 1 s; look"):
        serve.profile(greedy, [1], (1,), timeout_s=1)


def test_running_replicas_are_a_profile_too(node: Node) -> None:
    app = Application("seen", serve.pipeline(only=Sleeps.options(num_replicas=2)))
    for number in range(8):
        assert app.answer(number) == number
    seen = serve.observe("only", "seen")
    assert seen.sizes == (1,) and len(seen.batches[0].service_s) == 8
    assert seen.batches[0].service_s[0] >= _FIXED_S + _EACH_S
    assert len(seen.hops_s) == 8 and 0 <= seen.hops_s[0] < 10


def test_misses_late_queries_and_drift_are_metrics(node: Node) -> None:
    stage = replace(Sleeps, expected_s=(0.001,), max_batch=1)  # 24 times as long as this profile
    app = Application("missing", serve.pipeline(only=stage, latency_s=0.03, replicas=1))
    asked = [app.ask(number) for number in range(60)]
    assert [each.result(timeout_s=60) for each in asked] == list(range(60))
    wanted = {f"ray_hoplite_serve_{name}" for name in ("drift", "late_total", "missed_total")}
    assert eventually(lambda: wanted <= metric_names(node), within_s=60)
    app.delete()
