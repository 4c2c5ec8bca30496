"""Contracts: they keep the objective, are as cheap as any, and say why one can't be had."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from hoplite_ray.serve.errors import UnattainableError
from hoplite_ray.serve.slo.contract import SLO, Graph, agree
from hoplite_ray.serve.slo.profile import BatchProfile, Profile
from hoplite_ray.serve.slo.queueing import StageModel, poisson, simulate
from tests.unit.serve_profiles import line


def graph(**stages: tuple[Profile, tuple[str, ...]]) -> Graph:
    models = {name: StageModel(profile, 1, 1, inputs) for name, (profile, inputs) in stages.items()}
    return Graph(models, dict.fromkeys(models, 1.0))


INCAST = graph(
    text=(line(0.02, 0.002, jitter=0.05), ()),
    vision=(line(0.04, 0.001, jitter=0.05), ()),
    cross=(line(0.005, 0.0005, jitter=0.05), ("text", "vision")),
)
CHAIN = graph(a=(line(0.02, 0.002), ()), b=(line(0.01, 0.004), ("a",)))
OBJECTIVES = [
    SLO(latency_s=latency_s, rate_per_s=rate, miss=miss)
    for latency_s, rate, miss in ((0.2, 300, 0.01), (0.12, 200, 0.01), (0.4, 120, 0.05))
]


@pytest.mark.parametrize("slo", OBJECTIVES)
@pytest.mark.parametrize("pipeline", [INCAST, CHAIN])
def test_a_contract_keeps_its_objective_on_other_arrivals(slo: SLO, pipeline: Graph) -> None:
    contract = agree(slo, pipeline)
    arrivals = poisson(slo.rate_per_s, 20_000, seed=99)
    assert contract.predict(arrivals).miss <= 1.5 * slo.miss
    assert contract.capacity_per_s >= slo.rate_per_s
    assert contract.curve().miss <= slo.miss


@pytest.mark.parametrize("slo", OBJECTIVES)
def test_no_choice_of_caps_and_replicas_is_cheaper(slo: SLO) -> None:
    contract = agree(slo, CHAIN)
    arrivals = poisson(slo.rate_per_s, 5_000, seed=5)
    for caps in itertools.product((1, 2, 4, 8, 16, 32), repeat=2):
        for replicas in itertools.product(range(1, 8), repeat=2):
            if sum(replicas) != contract.cost - 1:
                continue
            stages = {
                name: replace(each, cap=cap, replicas=count)
                for (name, each), cap, count in zip(
                    CHAIN.stages.items(), caps, replicas, strict=True
                )
            }
            outcome = simulate(
                stages, arrivals, latency_s=slo.latency_s, misses_max=slo.miss * len(arrivals)
            )
            assert not outcome.is_whole, (caps, replicas)


def test_costs_decide_where_replicas_are_saved() -> None:
    slo = SLO(latency_s=0.1, rate_per_s=400)
    cheap_b = agree(slo, replace(CHAIN, costs={"a": 10.0, "b": 1.0}))
    cheap_a = agree(slo, replace(CHAIN, costs={"a": 1.0, "b": 10.0}))
    assert cheap_b.graph.stages["a"].replicas <= cheap_a.graph.stages["a"].replicas
    assert cheap_a.graph.stages["b"].replicas <= cheap_b.graph.stages["b"].replicas


def test_the_curve_rises_and_names_the_stage_that_limits() -> None:
    contract = agree(OBJECTIVES[0], INCAST)
    points = [contract.curve(rate) for rate in (30, 150, 300, 1.3 * contract.capacity_per_s)]
    assert [each.p99_s for each in points] == sorted(each.p99_s for each in points)
    assert points[0].miss == 0 and points[-1].miss > 0.1
    stages = contract.graph.stages
    least = min(
        stages, key=lambda n: stages[n].replicas * stages[n].profile.throughput_per_s(stages[n].cap)
    )
    assert contract.limiting_stage == least
    assert "p99" in str(points[0])


_SLOW = Profile("Slow", (BatchProfile(1, (0.01,) * 97 + (0.5,) * 3),))
_TWICE_SLOW = graph(s=(_SLOW, ()), t=(_SLOW, ("s",)))


@pytest.mark.parametrize(
    ("slo", "pipeline", "options", "why"),
    [
        (SLO(latency_s=0.03, rate_per_s=1), INCAST, {}, "by vision and cross, and vision has 4"),
        (SLO(latency_s=0.2, rate_per_s=1e5), INCAST, {"replicas_max": 9}, "replicas of text, each"),
        (SLO(latency_s=0.2, rate_per_s=9), _TWICE_SLOW, {}, "s has 500.0 ms of them"),
        (
            SLO(latency_s=0.4, rate_per_s=20, miss=0.05),
            _TWICE_SLOW,
            {},
            "1 % of s's single queries take 500.0 ms",
        ),
    ],
)
def test_an_objective_that_can_not_be_had_is_refused_with_its_reason(
    slo: SLO, pipeline: Graph, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnattainableError, match=why):
        agree(slo, pipeline, **options)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"latency_s": 0, "rate_per_s": 1}, "latency_s=0"),
        ({"latency_s": 1, "rate_per_s": float("inf")}, "rate_per_s=inf"),
        ({"latency_s": 1, "rate_per_s": 1, "miss": 0}, "keeps 0"),
        ({"latency_s": "1", "rate_per_s": 1}, "latency_s='1'"),
    ],
)
def test_what_is_no_objective_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SLO(**values)


@pytest.mark.parametrize("arrivals", [[], [1.0], [2.0, 1.0]])
def test_arrivals_ascend(arrivals: list[float]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        agree(OBJECTIVES[0], CHAIN).predict(arrivals)
