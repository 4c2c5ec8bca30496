"""A pipeline under virtual time: known queues, joins, drops, and the same result from one seed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.serve.slo.queueing import (
    StageModel,
    Stream,
    poisson,
    simulate,
    simulate_together,
)
from hoplite_ray.serve.stages.batching import Late
from tests.unit.serve_profiles import line

_HOP_S = 0.001


def test_a_query_alone_takes_its_way_and_back() -> None:
    stages = {
        "text": StageModel(line(0.01, 0.001), 8, 1),
        "vision": StageModel(line(0.05, 0.001), 8, 1),
        "cross": StageModel(line(0.02, 0.001), 8, 1, ("text", "vision")),
    }
    outcome = simulate(stages, [0.0, 10.0], hop_s=_HOP_S)
    assert outcome.latencies_s == pytest.approx([0.051 + 0.021 + 4 * _HOP_S] * 2)
    assert outcome.loads["cross"].batch == 1


def test_ways_that_were_seen_take_the_place_of_the_constant() -> None:
    seen = {"text": (0.001,), "vision": (0.004,), "cross": (0.002, 0.01)}
    stages = {
        "text": StageModel(line(0.01, 0.001, hops_s=seen["text"]), 8, 1),
        "vision": StageModel(line(0.05, 0.001, hops_s=seen["vision"]), 8, 1),
        "cross": StageModel(line(0.02, 0.001, hops_s=seen["cross"]), 8, 1, ("text", "vision")),
    }
    outcome = simulate(stages, [10.0 * each for each in range(400)], hop_s=_HOP_S)
    alone_s = [each - 0.051 - 0.021 - 2 * 0.004 for each in outcome.latencies_s]
    assert 2 * 0.002 <= min(alone_s) < 0.006 and 0.018 < max(alone_s) <= 2 * 0.01
    assert sum(alone_s) / 400 == pytest.approx(2 * 0.006, rel=0.05)


@pytest.mark.parametrize(
    ("shares", "second_s"),
    [
        # The second query comes at 0.15 s. Its batch ends at 0.25 s.
        ((0.0, 0.0, 0.0), 0.2),
        ((0.9, 0.0, 0.0), 0.25),  # the first answer comes back to the stage amid this batch
        ((0.4, 0.0, 0.0), 0.2),  # most of the time the stage passes messages on
        ((0.0, 0.9, 0.9), 0.2),  # these stages run no batch meanwhile
    ],
)
def test_an_answer_waits_for_a_batch_that_keeps_the_interpreter(
    shares: tuple[float, float, float], second_s: float
) -> None:
    kept, middle, last = shares
    stages = {
        "kept": StageModel(line(0.1, 0.0, loop_share=kept), 1, 1),
        "middle": StageModel(line(0.05, 0.0, loop_share=middle), 1, 1, ("kept",)),
        "last": StageModel(line(0.05, 0.0, loop_share=last), 1, 1, ("middle",)),
    }
    outcome = simulate(stages, [0.0, 0.15], hop_s=0.0)
    assert outcome.latencies_s == pytest.approx([second_s, 0.2])


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_single_queries_wait_as_long_as_theory_says(busy: float) -> None:
    service_s = 0.01
    stages = {"stage": StageModel(line(0.0, service_s), 1, 1)}
    outcome = simulate(stages, poisson(busy / service_s, 40_000, seed=1), hop_s=0.0)
    # Pollaczek and Khinchine, for random arrivals and equal service times
    expected_s = busy * service_s / (2 * (1 - busy))
    assert outcome.loads["stage"].wait_s == pytest.approx(expected_s, rel=0.08)
    assert outcome.loads["stage"].busy == pytest.approx(busy, rel=0.02)


def test_a_measured_stage_has_the_tail_that_was_measured() -> None:
    """20 ms and 2 ms a query in batches of 16 at 0.8 of 308 a second: p99 is 100 to 111 ms."""
    stages = {"stage": StageModel(line(0.02, 0.002, jitter=0.02), 16, 1)}
    outcome = simulate(stages, poisson(0.8 * 308, 20_000, seed=1), hop_s=0.0)
    assert outcome.quantile_s(0.99) == pytest.approx(0.105, rel=0.08)


def test_batches_overtake_none_and_each_query_is_answered_once() -> None:
    stages = {
        "a": StageModel(line(0.02, 0.001, jitter=0.3), 8, 3),
        "b": StageModel(line(0.01, 0.002, jitter=0.3), 8, 2, ("a",)),
    }
    arrivals = poisson(200, 3000, seed=2)
    outcome = simulate(stages, arrivals)
    assert len(outcome.latencies_s) == len(arrivals) and outcome.is_whole
    assert all(math.isfinite(each) for each in outcome.latencies_s)


def test_the_same_seed_gives_the_same_latencies_and_another_one_others() -> None:
    stages = {"a": StageModel(line(0.02, 0.001, jitter=0.3), 8, 3)}
    arrivals = poisson(200, 500, seed=2)
    once, again, other = (simulate(stages, arrivals, seed=seed) for seed in (1, 1, 2))
    assert once == again
    assert once.latencies_s != other.latencies_s


def test_it_gives_up_after_too_many_misses() -> None:
    stages = {"a": StageModel(line(0.02, 0.001), 1, 1)}
    outcome = simulate(stages, poisson(100, 5000, seed=1), latency_s=0.05, misses_max=10)
    assert not outcome.is_whole
    assert len(outcome.latencies_s) < 500


def test_a_stage_without_room_refuses() -> None:
    stages = {"a": StageModel(line(1.0, 0.0), 1, 1)}
    outcome = simulate(stages, [0.001 * n for n in range(5000)])
    assert sum(math.isinf(each) for each in outcome.latencies_s) == 5000 - 4096 - 5


def test_a_query_that_is_dropped_at_one_input_of_a_join_is_missed_once() -> None:
    stages = {
        "slow": StageModel(line(0.05, 0.02), 4, 1, late=Late.DROP),
        "fast": StageModel(line(0.01, 0.0), 8, 1, late=Late.DROP),
        "join": StageModel(line(0.01, 0.0), 8, 2, ("slow", "fast"), Late.DROP),
    }
    arrivals = poisson(100, 2000, seed=1)
    outcome = simulate(stages, arrivals, latency_s=0.3)
    assert len(outcome.latencies_s) == 2000
    in_time = 2000 * (1 - outcome.miss(0.3))
    assert in_time > 0.8 * 4 / 0.13 * arrivals[-1], "the slow stage's capacity"


@st.composite
def _pipelines(draw: st.DrawFn) -> dict[str, StageModel]:
    """Graphs of up to five stages, whose last one is after all that have no other consumer."""
    stages: dict[str, StageModel] = {}
    count = draw(st.integers(1, 4))
    for number in range(count):
        inputs = draw(st.sets(st.sampled_from(sorted(stages)))) if stages else set()
        profile = line(draw(st.sampled_from([0.0, 0.01])), 0.002, jitter=0.1)
        late = draw(st.sampled_from(list(Late)))
        cap, replicas = draw(st.integers(1, 9)), draw(st.integers(1, 3))
        stages[f"s{number}"] = StageModel(profile, cap, replicas, tuple(sorted(inputs)), late)
    used = {each for stage in stages.values() for each in stage.inputs}
    ends = tuple(sorted(stages.keys() - used))
    stages["last"] = StageModel(line(0.001, 0.001), 8, 1, ends)
    return stages


@settings(max_examples=60, deadline=None)
@given(_pipelines(), st.integers(0, 5), st.sampled_from([20.0, 200.0, 2000.0]))
def test_any_graph_answers_all_that_it_does_not_drop(
    stages: dict[str, StageModel], seed: int, rate: float
) -> None:
    arrivals = poisson(rate, 120, seed)
    outcome = simulate(stages, arrivals, seed=seed, latency_s=0.2)
    assert len(outcome.latencies_s) == len(arrivals)
    drops = any(each.late is Late.DROP for each in stages.values())
    assert drops or all(math.isfinite(each) for each in outcome.latencies_s)
    assert all(0 <= each.busy <= 1 + 1e-9 for each in outcome.loads.values())


_CHAIN = {"a": (), "b": ("a",)}


def _models(names: str) -> dict[str, StageModel]:
    return {name: StageModel(line(0.01, 0.002), 4, 1) for name in names}


def test_pipelines_without_a_shared_stage_are_as_each_alone() -> None:
    arrivals = {"one": poisson(90, 800, seed=1), "two": poisson(60, 500, seed=2)}
    ways = {"one": _CHAIN, "two": {"c": (), "d": ("c",)}}
    streams = {name: Stream(ways[name], arrivals[name], 0.1) for name in ways}
    together = simulate_together(_models("abcd"), streams)
    for name, stream in streams.items():
        alone = simulate_together(_models("abcd"), {name: stream})[name]
        assert together[name].latencies_s == alone.latencies_s


def test_the_queries_of_pipelines_alike_are_as_those_of_one() -> None:
    arrivals = poisson(120, 900, seed=3)
    split = {"one": arrivals[::3], "two": sorted({*arrivals} - {*arrivals[::3]})}
    only = simulate_together(_models("a"), {"all": Stream({"a": ()}, arrivals, 0.2)})["all"]
    streams = {name: Stream({"a": ()}, each, 0.2) for name, each in split.items()}
    together = simulate_together(_models("a"), streams)
    found = {
        at_s: latency_s
        for name, each in split.items()
        for at_s, latency_s in zip(each, together[name].latencies_s, strict=True)
    }
    assert [found[at_s] for at_s in arrivals] == list(only.latencies_s)
    assert together["one"].loads == together["two"].loads == only.loads


def test_a_shared_stage_may_be_at_another_place_in_each_pipeline() -> None:
    streams = {
        "first": Stream({"a": ()}, [0.0, 5.0]),
        "after": Stream({"b": (), "a": ("b",)}, [1.0, 7.0]),
        "last": Stream({"a": (), "b": (), "c": ("a", "b")}, [3.0, 9.0]),
    }
    outcomes = simulate_together(_models("abc"), streams, hop_s=_HOP_S)
    for name, stages in (("first", 1), ("after", 2), ("last", 2)):
        expected_s = stages * (0.012 + 2 * _HOP_S)
        assert outcomes[name].latencies_s == pytest.approx([expected_s] * 2)
        assert outcomes[name].loads.keys() == streams[name].inputs.keys()


def test_it_gives_up_when_one_pipeline_misses_too_often() -> None:
    streams = {
        "one": Stream({"a": ()}, poisson(20, 500, seed=1), 1.0, misses_max=5),
        "two": Stream({"a": ()}, poisson(20, 500, seed=2), 0.011, misses_max=5),
    }
    outcomes = simulate_together(_models("a"), streams)
    assert not any(each.is_whole for each in outcomes.values())
    assert all(len(each.latencies_s) < 100 for each in outcomes.values())


def test_a_shared_stage_keeps_the_latencies_of_pipelines_with_unlike_later_stages() -> None:
    """With one order and one mean of later stages, 0.9 and 6.3 % would miss."""
    sizes = (1, 2, 4, 8, 16)
    stages = {
        "text": StageModel(line(0.02, 0.002, jitter=0.05, sizes=sizes), 16, 1),
        "rank": StageModel(line(0.01, 0.002, jitter=0.05, sizes=sizes), 16, 2),
        "speak": StageModel(line(0.15, 0.005, jitter=0.05, sizes=sizes), 8, 6),
    }
    rate = 0.6 * 308 / 2  # of the shared stage's capacity
    search = Stream({"text": (), "rank": ("text",)}, poisson(rate, 6000, "a"), 0.2)
    chat = Stream({"text": (), "speak": ("text",)}, poisson(rate, 6000, "b"), 0.45)
    outcomes = simulate_together(stages, {"search": search, "chat": chat})
    assert outcomes["search"].miss(0.2) <= 0.001 and outcomes["chat"].miss(0.45) <= 0.001
