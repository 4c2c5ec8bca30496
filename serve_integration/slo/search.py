"""The search for caps and replicas that keep the objectives of a graph's pipelines, at a low cost.

Pure. contract.py has its three steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from hoplite_ray.serve.errors import UnattainableError
from hoplite_ray.serve.slo.objective import (
    SLO,
    Graph,
    Inputs,
    draw_arrivals,
    find_capacity,
    find_rates,
    simulate_graph,
)
from hoplite_ray.serve.slo.profile import Profile

_BATCHES = 2  # that a query takes part in: the running one, for which it waits, and its own
_TAIL = 0.95  # of service times, by which caps are chosen
_HEADROOM = 1.1  # between two steps of growth
_HEADROOM_MAX = 8.0  # times the replicas that the mean needs


def check_latencies(slos: Mapping[str, SLO], graph: Graph) -> None:
    """Raise UnattainableError if too many queries that meet idle stages would be late.

    If one stage is slow and the others are as fast as they ever are, a query is late already.
    """
    for pipeline, way in graph.ways.items():
        slo = slos[pipeline]
        for slow in way:

            def alone_s(name: str, slow: str = slow, miss: float = slo.miss) -> float:
                return graph.stages[name].profile.quantile_s(1, 1 - miss if name == slow else 0.0)

            path, longest_s = _longest_path(way, graph, alone_s)
            if slow in path and longest_s > slo.latency_s:
                own_s = graph.stages[slow].profile.quantile_s(1, 1 - slo.miss)
                raise UnattainableError(
                    f"{_prefix(pipeline)}{1000 * slo.latency_s:g} ms can't be kept at any rate: a "
                    f"share of {slo.miss:g} of the queries takes at least {1000 * longest_s:.1f} "
                    f"ms alone, by {' and '.join(path)}, and {slow} has {1000 * own_s:.1f} ms of "
                    f"them; give a longer latency_s, or a faster {slow}"
                )


def _prefix(pipeline: str) -> str:
    return f"pipeline {pipeline}: " if pipeline else ""


def _longest_path(
    way: Inputs, graph: Graph, weight_s: Callable[[str], float]
) -> tuple[list[str], float]:
    """Return the stages of the longest way through a pipeline, and its seconds with all hops."""
    best: dict[str, tuple[float, list[str]]] = {}
    for name, inputs in way.items():
        before_s, path = max((best[of] for of in inputs), default=(0.0, []))
        best[name] = before_s + weight_s(name) + 2 * graph.mean_hop_s(name), [*path, name]
    longest_s, path = best[next(reversed(list(way)))]
    return path, longest_s


def grow(slos: Mapping[str, SLO], graph: Graph, replicas_max: int, seed: int) -> Graph:
    """Return the first graph that keeps the objectives while the headroom grows.

    Caps are those of the stages' shares; with half of these shares where that does not do.
    """
    judge, rates = make_judge(slos, graph, seed), find_rates(slos, graph)
    tried: Graph | None = None
    for part in (1.0, 0.5, 0.25):
        capped = _with_caps(graph, slos, part)
        for headroom in _headrooms():
            grown = _with_replicas(capped, rates, headroom)
            most = max(each.replicas for each in grown.stages.values())
            if most > replicas_max:
                break
            if grown == tried:
                continue
            tried = grown
            if judge(grown):
                return grown
    raise explain_refusal(slos, graph, tried, replicas_max, seed)


def _headrooms() -> Iterator[float]:
    headroom = 1.0
    while headroom <= _HEADROOM_MAX:
        yield headroom
        headroom *= _HEADROOM


def explain_refusal(
    slos: Mapping[str, SLO], graph: Graph, tried: Graph | None, replicas_max: int, seed: int
) -> UnattainableError:
    """Return the error for objectives that can't be had; `tried` are the last replicas."""
    capped = _with_caps(graph, slos, 1.0)
    rates = find_rates(slos, graph)
    each_s = {
        name: find_capacity(replace(each, replicas=1)) for name, each in capped.stages.items()
    }
    name = max(each_s, key=lambda each: rates[each] / each_s[each])
    if rates[name] > each_s[name] * replicas_max:
        return UnattainableError(
            f"{rates[name]:g} queries a second need {math.ceil(rates[name] / each_s[name])} "
            f"replicas of {name}, each of which answers {each_s[name]:.1f}/s in batches of "
            f"{capped.stages[name].cap}, and replicas_max={replicas_max}; give a lower "
            "rate_per_s, or more replicas"
        )
    missed = dict.fromkeys(slos, 1.0)
    if tried is not None:
        outcomes = simulate_graph(slos, tried, draw_arrivals(slos, seed), seed)
        missed = {each: outcomes[each].miss(slo.latency_s) for each, slo in slos.items()}
    pipeline = max(slos, key=lambda each: missed[each] / slos[each].miss)
    slo = slos[pipeline]
    tails = {each: graph.stages[each].profile.quantile_s(1, 0.99) for each in graph.ways[pipeline]}
    worst = max(tails, key=lambda each: tails[each])
    return UnattainableError(
        f"{_prefix(pipeline)}{100 * missed[pipeline]:.2f} % of the queries take longer than "
        f"{1000 * slo.latency_s:g} ms with {_HEADROOM_MAX:g} times the replicas that the rate "
        f"needs, and miss={slo.miss:g}: 1 % of {worst}'s single queries take "
        f"{1000 * tails[worst]:.1f} ms or more; give a longer latency_s or a larger miss"
    )


def trim(graph: Graph, judge: Callable[[Graph], bool]) -> Graph:
    """Return a graph with as few replicas as the objectives need, stage by stage.

    One replica less is tried with each cap, the nearest to the present one first.
    """
    is_better = True
    while is_better:
        is_better = False
        for name in sorted(graph.stages, key=lambda each: (-graph.costs[each], each)):
            while (less := _one_less(graph, name, judge)) is not None:
                graph, is_better = less, True
    return graph


def _one_less(graph: Graph, name: str, judge: Callable[[Graph], bool]) -> Graph | None:
    stage = graph.stages[name]
    if stage.replicas == 1:
        return None
    caps = _caps(stage.profile)
    at = caps.index(stage.cap)
    for cap in sorted(caps, key=lambda each: abs(caps.index(each) - at)):
        changed = replace(stage, cap=cap, replicas=stage.replicas - 1)
        candidate = replace(graph, stages={**graph.stages, name: changed})
        if judge(candidate):
            return candidate
    return None


def add_to_busiest(graph: Graph, slos: Mapping[str, SLO], seed: int, replicas_max: int) -> Graph:
    """Return the graph with one more replica of the stage where queries wait longest."""
    outcomes = simulate_graph(slos, graph, draw_arrivals(slos, seed), seed)
    loads = {name: load for each in outcomes.values() for name, load in each.loads.items()}
    name = max(loads, key=lambda each: (loads[each].wait_s, each))
    stage = graph.stages[name]
    if stage.replicas >= replicas_max:
        raise explain_refusal(slos, graph, graph, replicas_max, seed)
    more = replace(stage, replicas=stage.replicas + 1)
    return replace(graph, stages={**graph.stages, name: more})


def make_judge(slos: Mapping[str, SLO], graph: Graph, seed: int) -> Callable[[Graph], bool]:
    """Return a function that says whether caps and replicas keep the objectives.

    It takes graphs that differ from `graph` in these, and judges all by the same arrivals.
    """
    arrivals, rates = draw_arrivals(slos, seed), find_rates(slos, graph)

    def keeps(candidate: Graph) -> bool:
        if any(find_capacity(each) < rates[name] for name, each in candidate.stages.items()):
            return False
        outcomes = simulate_graph(slos, candidate, arrivals, seed, gives_up=True)
        return all(each.is_whole for each in outcomes.values())

    return keeps


def _caps(profile: Profile) -> list[int]:
    """Return the caps to choose from: the measured sizes up to the knee."""
    return [size for size in profile.sizes if size <= profile.knee]


def _with_caps(graph: Graph, slos: Mapping[str, SLO], part: float) -> Graph:
    """Return the graph with the largest caps that keep `part` of each stage's share."""

    def tail_s(name: str) -> float:
        return graph.stages[name].profile.quantile_s(1, _TAIL)

    shares_s = share_latency(slos, graph, tail_s)
    stages = {}
    for name, each in graph.stages.items():
        fits = [
            size
            for size in _caps(each.profile)
            if _BATCHES * each.profile.quantile_s(size, _TAIL) <= part * shares_s[name]
        ]
        cap = max(fits, default=_caps(each.profile)[0])
        stages[name] = replace(each, cap=cap)
    return replace(graph, stages=stages)


def share_latency(
    slos: Mapping[str, SLO], graph: Graph, weight_s: Callable[[str], float]
) -> dict[str, float]:
    """Return each stage's share of the latency by its weight, on the longest way without hops.

    Each pipeline has a share of its latency for a stage, and the smallest one counts.
    """
    shares_s = dict.fromkeys(graph.stages, math.inf)
    for pipeline, way in graph.ways.items():
        path, longest_s = _longest_path(way, graph, weight_s)
        hops_s = 2 * math.fsum(map(graph.mean_hop_s, path))
        stretch = (slos[pipeline].latency_s - hops_s) / max(longest_s - hops_s, 1e-9)
        for name in way:
            shares_s[name] = min(shares_s[name], stretch * weight_s(name))
    return shares_s


def _with_replicas(graph: Graph, rates: Mapping[str, float], headroom: float) -> Graph:
    """Return the graph with the replicas that so many times these rates need."""
    stages = {
        name: replace(
            each,
            replicas=math.ceil(rates[name] * headroom / each.profile.throughput_per_s(each.cap)),
        )
        for name, each in graph.stages.items()
    }
    return replace(graph, stages=stages)
