"""Plans of pipelines that share stages: each objective holds, and a shared stage is sized once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hoplite_ray import serve
from hoplite_ray.serve.errors import UnattainableError
from hoplite_ray.serve.slo.contract import (
    SLO,
    Contract,
    Graph,
    SharedContract,
    agree,
    agree_together,
)
from hoplite_ray.serve.slo.objective import draw_arrivals, find_capacity, find_rates
from hoplite_ray.serve.slo.profile import BatchProfile, Profile
from hoplite_ray.serve.slo.queueing import StageModel, Stream, poisson, simulate_together
from tests.unit.serve_profiles import line

SIZES = (1, 4, 16)
PROFILES = {
    "text": line(0.02, 0.002, jitter=0.05, sizes=SIZES),
    "rank": line(0.01, 0.004, jitter=0.05, sizes=SIZES),
    "speak": line(0.04, 0.002, jitter=0.05, sizes=SIZES),
}
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "search": {"text": (), "rank": ("text",)},
    "chat": {"text": (), "speak": ("text",)},
}
OBJECTIVES = [
    {
        "search": SLO(latency_s=0.2, rate_per_s=120),
        "chat": SLO(latency_s=0.4, rate_per_s=90),
    },
    {
        "search": SLO(latency_s=0.2, rate_per_s=400),
        "chat": SLO(latency_s=0.3, rate_per_s=150, miss=0.02),
    },
    {
        "search": SLO(latency_s=0.12, rate_per_s=100, miss=0.05),
        "chat": SLO(latency_s=0.5, rate_per_s=450, miss=0.05),
    },
]


def make_graph(ways: dict[str, dict[str, tuple[str, ...]]] = WAYS) -> Graph:
    models = {name: StageModel(profile, 1, 1) for name, profile in PROFILES.items()}
    return Graph(models, dict.fromkeys(models, 1.0), pipelines=ways)


def make_part(name: str) -> Graph:
    """Return the graph of one pipeline alone."""
    models = {
        each: StageModel(PROFILES[each], 1, 1, befores) for each, befores in WAYS[name].items()
    }
    return Graph(models, dict.fromkeys(models, 1.0))


@cache
def reach(number: int) -> SharedContract:
    """Return the contract for one of the objectives."""
    return agree_together(OBJECTIVES[number], make_graph())


@cache
def reach_apart(number: int) -> dict[str, Contract]:
    """Return the contracts that the same pipelines have each by itself."""
    return {name: agree(slo, make_part(name)) for name, slo in OBJECTIVES[number].items()}


@pytest.mark.parametrize("number", range(len(OBJECTIVES)))
def test_every_pipeline_keeps_its_objective_on_other_arrivals(number: int) -> None:
    contract, slos = reach(number), OBJECTIVES[number]
    for expected in (contract.curve(), contract.predict(draw_arrivals(slos, seed=99))):
        for name, slo in slos.items():
            assert expected[name].miss <= 1.5 * slo.miss, name
    assert contract.capacity >= 1


@pytest.mark.parametrize("number", range(len(OBJECTIVES)))
def test_together_they_need_no_more_replicas_than_apart(number: int) -> None:
    together, apart = reach(number), reach_apart(number)
    assert together.cost <= sum(each.cost for each in apart.values())
    texts = sum(each.graph.stages["text"].replicas for each in apart.values())
    assert together.graph.stages["text"].replicas <= texts


def test_a_shared_stage_saves_replicas() -> None:
    assert reach(0).cost < sum(each.cost for each in reach_apart(0).values())


@pytest.mark.parametrize("number", range(len(OBJECTIVES)))
def test_no_choice_of_caps_and_replicas_is_cheaper(number: int) -> None:
    graph, contract, slos = make_graph(), reach(number), OBJECTIVES[number]
    arrivals, rates = draw_arrivals(slos, seed=5), find_rates(slos, graph)
    streams = {
        name: Stream(WAYS[name], arrivals[name], slo.latency_s, slo.miss * len(arrivals[name]))
        for name, slo in slos.items()
    }
    for replicas in itertools.product(range(1, 8), repeat=3):
        if sum(replicas) != contract.cost - 1:
            continue
        for caps in itertools.product(SIZES, repeat=3):
            stages = {
                name: replace(each, cap=cap, replicas=count)
                for (name, each), cap, count in zip(
                    graph.stages.items(), caps, replicas, strict=True
                )
            }
            if any(find_capacity(each) < rates[name] for name, each in stages.items()):
                continue
            outcomes = simulate_together(stages, streams)
            assert not all(each.is_whole for each in outcomes.values()), (caps, replicas)


def test_a_pipeline_alone_has_the_contract_that_it_has_by_itself() -> None:
    alone = reach_apart(0)["search"]
    shared = agree_together({"": alone.slo}, make_part("search"))
    assert shared.graph == alone.graph
    assert shared.curve()[""] == alone.curve()


def test_the_curve_rises_for_all_and_the_limit_is_named() -> None:
    slos, contract = OBJECTIVES[0], reach(0)
    points = [contract.curve(times) for times in (0.3, 1.0, 1.5 * contract.capacity)]
    for name in slos:
        assert [each[name].p99_s for each in points] == sorted(each[name].p99_s for each in points)
    stages, rates = contract.graph.stages, find_rates(slos, contract.graph)
    spare = {name: find_capacity(each) / rates[name] for name, each in stages.items()}
    assert contract.capacity == min(spare.values()) == spare[contract.limiting_stage]
    assert rates == {"text": 210, "rank": 120, "speak": 90}
    limited = [name for name, way in WAYS.items() if contract.limiting_stage in way]
    assert all(points[2][name].miss > 0.1 for name in limited)


_SLOW = Profile("Slow", (BatchProfile(1, (0.01,) * 97 + (0.5,) * 3),))


@pytest.mark.parametrize(
    ("chat", "options", "why"),
    [
        (SLO(latency_s=0.03, rate_per_s=1), {}, "pipeline chat: 30 ms can't be kept at any rate"),
        (
            SLO(latency_s=0.4, rate_per_s=200),
            {"replicas_max": 1},
            "320 queries a second need 2 replicas of text",
        ),
    ],
)
def test_objectives_that_can_not_be_had_name_the_pipeline_or_the_shared_stage(
    chat: SLO, options: dict[str, Any], why: str
) -> None:
    slos = {"search": OBJECTIVES[0]["search"], "chat": chat}
    with pytest.raises(UnattainableError, match=why):
        agree_together(slos, make_graph(), **options)


def test_the_pipeline_that_misses_most_is_named() -> None:
    profiles = {"text": line(0.01, 0.001), "slow": _SLOW, "other": _SLOW}
    stages = {name: StageModel(profile, 1, 1) for name, profile in profiles.items()}
    uneven = {"text": (), "slow": ("text",), "other": ("slow",)}
    ways: dict[str, Any] = {"fast": {"text": ()}, "uneven": uneven}
    graph = Graph(stages, dict.fromkeys(stages, 1.0), pipelines=ways)
    slos = {
        "fast": SLO(latency_s=0.4, rate_per_s=20),
        "uneven": SLO(latency_s=0.4, rate_per_s=20, miss=0.05),
    }
    with pytest.raises(UnattainableError, match=r"pipeline uneven: .* 1 % of slow's single"):
        agree_together(slos, graph)


def test_arrivals_cover_one_time_and_have_a_limit_together() -> None:
    slos = {"many": SLO(latency_s=1, rate_per_s=1000), "few": SLO(latency_s=1, rate_per_s=10)}
    arrivals = draw_arrivals(slos, seed=1)
    assert sum(map(len, arrivals.values())) == pytest.approx(40_000, abs=2)
    assert arrivals["many"][-1] == pytest.approx(arrivals["few"][-1], rel=0.2)
    assert draw_arrivals({"": slos["many"]}, 7) == {"": poisson(1000, 10_000, 7)}


def test_arrivals_are_of_all_pipelines_in_order() -> None:
    contract = reach(0)
    with pytest.raises(ValueError, match=r"arrivals_s are of \['search'\]; give those of \['chat'"):
        contract.predict({"search": [0.0, 1.0]})
    with pytest.raises(ValueError, match="of pipeline chat are to be at least two"):
        contract.predict({"search": [0.0, 1.0], "chat": [1.0, 0.0]})
    with pytest.raises(ValueError, match="times=0"):
        contract.curve(0)


@serve.stage
class Stage:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


def make_application() -> serve.Pipelines:
    return serve.pipelines(
        search=serve.pipeline(text=Stage, rank=Stage.after("text")),
        chat=serve.pipeline(text=Stage, speak=Stage.after("text"), deadline_s=9.0, replicas=3),
    )


@cache
def make_plan() -> serve.SharedPlan:
    return serve.plan(make_application(), OBJECTIVES[0], PROFILES, late="drop")


def test_the_application_has_the_plans_caps_replicas_and_latencies() -> None:
    plan = make_plan()
    assert plan.graph.ingresses == 3
    for name, slo in OBJECTIVES[0].items():
        spec = plan.application.specs[name]
        assert spec.latency_s == slo.latency_s
        for stage, each in spec.stages.items():
            assert each.max_batch == plan.caps[stage] and each.late.value == "drop"
            assert each.serve_options["num_replicas"] == plan.replicas[stage]
            assert each.budget_s == plan.share_latency()[stage]
            assert each.inputs == WAYS[name][stage]
    assert plan.application.specs["chat"].deadline_s == 9.0
    assert plan.pipelines.stages["text"].max_batch == 32, "as it was"


def test_a_shared_plan_explains_itself_pipeline_by_pipeline() -> None:
    text = str(make_plan())
    for words in (
        "2 pipelines; cost",
        "search: 200 ms for all but 1 % of 120 queries a second; expected",
        "chat: 400 ms for all but 1 % of 90",
        "; for search and chat",
        "times all rates it falls behind",
    ):
        assert words in text


def test_a_shared_plan_draws_the_curve_of_each_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    figure = make_plan().plot([0.3, 1.0, 1.4], path)
    above, below = figure.axes
    labels = above.get_legend_handles_labels()[1]
    assert labels == [
        f"{name} {each}" for name in ("search", "chat") for each in ("p50", "p99", "promised")
    ]
    drawn = [list(line.get_ydata()) for line in below.get_lines() if len(line.get_xdata()) == 3]
    predicted = [make_plan().curve(times) for times in (0.3, 1.0, 1.4)]
    assert drawn == [[100 * each[name].miss for each in predicted] for name in ("search", "chat")]
    assert b"times the rates of all pipelines" in path.read_bytes()


def test_a_shared_plan_is_placed_by_the_rate_of_all_pipelines() -> None:
    plan = make_plan()
    components = plan.components({name: {"gpu": each} for name, each in PROFILES.items()})
    assert {each.name: each.visits for each in components} == pytest.approx(
        {"text": 1.0, "rank": 120 / 210, "speak": 90 / 210}
    )


@pytest.mark.parametrize(
    ("slo", "kind", "why"),
    [
        (OBJECTIVES[0]["search"], TypeError, r"an SLO\(...\) of each of \['search', 'chat'\]"),
        ({"search": OBJECTIVES[0]["search"]}, ValueError, "objectives are of .'search'.; give"),
    ],
)
def test_objectives_are_those_of_all_pipelines(slo: Any, kind: type[Exception], why: str) -> None:
    with pytest.raises(kind, match=why):
        serve.plan(make_application(), slo, PROFILES)


def test_a_pipeline_has_one_objective() -> None:
    slos: Any = OBJECTIVES[0]
    with pytest.raises(TypeError, match="of a pipeline takes one SLO"):
        serve.plan(serve.pipeline(text=Stage), slos, {"text": PROFILES["text"]})
