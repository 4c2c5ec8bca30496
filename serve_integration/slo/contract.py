"""The contract of a pipeline: caps and replicas that keep an objective, and what each rate brings.

Pure: it asks the simulation of queueing.py. A plan is chosen in three steps:

    caps      for each stage the largest batch that takes, twice, no more than the stage's share of
              the latency: a query waits for at most one running batch and then runs in its own
    growth    replicas for the rate times a headroom, which grows until the objective is met
    trimming  one replica less, or another cap, wherever the objective is still met

Each step is judged by the same arrivals, and the result by others.
Source: design decision 32; Vortex 5.2 and 8 (caps, the contract); InferLine (a planner that
simulates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hoplite_ray.serve.errors import UnattainableError
from hoplite_ray.serve.slo.profile import Profile
from hoplite_ray.serve.slo.queueing import HOP_S, Outcome, StageModel, poisson, simulate

_QUERIES_MIN = 5_000  # of a simulation
_QUERIES_MAX = 100_000
_MISSES = 100  # that a simulation is to tell from twice as many, at the tolerated share
_BATCHES = 2  # that a query takes part in: the running one, for which it waits, and its own
_TAIL = 0.95  # of service times, by which caps are chosen
_HEADROOM = 1.1  # between two steps of growth
_MORE_MAX = 20  # replicas that are added because of other arrivals
_HEADROOM_MAX = 8.0  # times the replicas that the mean needs


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """A service-level objective: of `rate_per_s` queries at most a share `miss` takes longer.

    latency_s:   from when a query reaches the ingress until its answer leaves it, in seconds.
    rate_per_s:  queries a second, at random.
    miss:        the share of queries that may take longer.

    Raises:      ValueError for a value that it can't have.
    Source:      Vortex 8.
    """

    latency_s: float
    rate_per_s: float
    miss: float = 0.01

    def __post_init__(self) -> None:
        for name in ("latency_s", "rate_per_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"SLO: {name}={value!r} must be a number above 0, and finite")
        if not isinstance(self.miss, int | float) or not 0 < self.miss < 1:
            raise ValueError(
                f"SLO: miss={self.miss!r} must be a share between 0 and 1, as 0.01; no queue of "
                "queries at random keeps 0"
            )


@dataclass(frozen=True, slots=True)
class Prediction:
    """The latencies to expect at one rate.

    rate_per_s:      of queries that come at random, or of the arrivals that were given.
    p50_s, p99_s:    the latency that half, and 99 %, of the queries do not exceed, in seconds.
    miss:            the share of queries that take longer than the objective's latency.
    outcome:         the whole distribution, and the load of each stage.
    """

    rate_per_s: float
    p50_s: float
    p99_s: float
    miss: float
    outcome: Outcome

    def __str__(self) -> str:
        return (
            f"{self.rate_per_s:8.1f}/s: p50 {1000 * self.p50_s:8.1f} ms, "
            f"p99 {1000 * self.p99_s:8.1f} ms, misses {100 * self.miss:6.2f} %"
        )


@dataclass(frozen=True, slots=True)
class Graph:
    """A pipeline as a plan sees it: its stages without caps and replicas, in order.

    stages:     by name, each after its inputs.
    costs:      of one replica, by stage.
    ingresses:  replicas of the ingress.
    hop_s:      one way of an edge, in seconds.
    """

    stages: Mapping[str, StageModel]
    costs: Mapping[str, float]
    ingresses: int = 2
    hop_s: float = HOP_S


@dataclass(frozen=True, slots=True)
class Contract:
    """Caps and replicas for an objective, and the latencies that follow from them."""

    slo: SLO
    graph: Graph
    seed: int = 0

    @property
    def cost(self) -> float:
        """The cost of all replicas."""
        return math.fsum(
            self.graph.costs[name] * each.replicas for name, each in self.graph.stages.items()
        )

    @property
    def limiting_stage(self) -> str:
        """The stage whose capacity ends first when the rate grows."""
        stages = self.graph.stages
        return min(stages, key=lambda name: (_capacity(stages[name]), name))

    @property
    def capacity_per_s(self) -> float:
        """The rate beyond which queries come faster than the limiting stage answers them."""
        return _capacity(self.graph.stages[self.limiting_stage])

    def curve(self, rate_per_s: float | None = None) -> Prediction:
        """Predict the latencies of queries that come at random; None: at the objective's rate.

        Cost:  a simulation of thousands of queries, some 10 us for each of them and each stage.
        """
        rate = self.slo.rate_per_s if rate_per_s is None else rate_per_s
        if not 0 < rate < math.inf:
            raise ValueError(f"rate_per_s={rate!r} must be a number above 0, and finite")
        return self.predict(poisson(rate, _query_count(self.slo), self.seed))

    def predict(self, arrivals_s: list[float]) -> Prediction:
        """Predict the latencies of queries that come at these times, in ascending seconds."""
        if len(arrivals_s) < 2 or arrivals_s != sorted(arrivals_s):
            raise ValueError("arrivals_s are to be at least two times, in ascending order")
        outcome = _run(self.slo, self.graph, arrivals_s, self.seed)
        lasted_s = max(arrivals_s[-1] - arrivals_s[0], 1e-9)
        return Prediction(
            (len(arrivals_s) - 1) / lasted_s,
            outcome.quantile_s(0.5),
            outcome.quantile_s(0.99),
            outcome.miss(self.slo.latency_s),
            outcome,
        )


def agree(slo: SLO, graph: Graph, *, replicas_max: int = 1000, seed: int = 0) -> Contract:
    """Choose caps and replicas for an objective, at a low cost.

    graph:  with the profiles; its caps and replicas are not looked at.

    Raises:  UnattainableError if no number of replicas up to `replicas_max` a stage keeps the
             objective; it names the stage and the numbers that stand in the way.
    Cost:    some 20 to 60 simulations.
    """
    _check_latency(slo, graph)
    grown = _grow(slo, graph, replicas_max, seed)
    judge = _judge(slo, seed)
    chosen = _trim(grown, judge)
    for _ in range(_MORE_MAX):
        if _judge(slo, seed + 1)(chosen):
            return Contract(slo, chosen, seed)
        chosen = _add_to_busiest(chosen, slo, seed + 1, replicas_max)  # seed's arrivals were lucky
    raise _why_unattainable(slo, graph, chosen, replicas_max, seed + 1)


def _check_latency(slo: SLO, graph: Graph) -> None:
    """Raise UnattainableError if too many queries that meet an idle pipeline would be late.

    If one stage is slow and the others are as fast as they ever are, a query is late already.
    """
    for slow, stage in graph.stages.items():

        def alone_s(name: str, slow: str = slow) -> float:
            share = 1 - slo.miss if name == slow else 0.0
            return graph.stages[name].profile.quantile_s(1, share)

        path, longest_s = _longest_path(graph, alone_s)
        if slow in path and longest_s > slo.latency_s:
            own_s = stage.profile.quantile_s(1, 1 - slo.miss)
            raise UnattainableError(
                f"{1000 * slo.latency_s:g} ms can't be kept at any rate: a share of {slo.miss:g} "
                f"of the queries takes at least {1000 * longest_s:.1f} ms alone, by "
                f"{' and '.join(path)}, and {slow} has {1000 * own_s:.1f} ms of them; give a "
                f"longer latency_s, or a faster {slow}"
            )


def _longest_path(graph: Graph, weight_s: Callable[[str], float]) -> tuple[list[str], float]:
    """Return the stages of the longest way through the graph, and its seconds with all hops."""
    best: dict[str, tuple[float, list[str]]] = {}
    for name, each in graph.stages.items():
        before_s, path = max((best[of] for of in each.inputs), default=(0.0, []))
        best[name] = before_s + weight_s(name) + 2 * graph.hop_s, [*path, name]
    longest_s, path = best[next(reversed(list(graph.stages)))]
    return path, longest_s


def _grow(slo: SLO, graph: Graph, replicas_max: int, seed: int) -> Graph:
    """Return the first graph that keeps the objective while the headroom grows.

    Caps are those of the stages' shares; with half of these shares where that does not do.
    """
    judge = _judge(slo, seed)
    tried: Graph | None = None
    for part in (1.0, 0.5, 0.25):
        capped = _with_caps(graph, slo, part)
        for headroom in _headrooms():
            grown = _with_replicas(capped, slo.rate_per_s * headroom)
            most = max(each.replicas for each in grown.stages.values())
            if most > replicas_max:
                break
            if grown == tried:
                continue
            tried = grown
            if judge(grown):
                return grown
    raise _why_unattainable(slo, graph, tried, replicas_max, seed)


def _headrooms() -> Iterator[float]:
    headroom = 1.0
    while headroom <= _HEADROOM_MAX:
        yield headroom
        headroom *= _HEADROOM


def _why_unattainable(
    slo: SLO, graph: Graph, tried: Graph | None, replicas_max: int, seed: int
) -> UnattainableError:
    capped = _with_caps(graph, slo, 1.0)
    name = min(capped.stages, key=lambda each: _capacity(replace(capped.stages[each], replicas=1)))
    stage = replace(capped.stages[name], replicas=1)
    each_s = _capacity(stage)
    if slo.rate_per_s > each_s * replicas_max:
        return UnattainableError(
            f"{slo.rate_per_s:g} queries a second need {math.ceil(slo.rate_per_s / each_s)} "
            f"replicas of {name}, each of which answers {each_s:.1f}/s in batches of {stage.cap}, "
            f"and replicas_max={replicas_max}; give a lower rate_per_s, or more replicas"
        )
    missed = 1.0
    if tried is not None:
        arrivals = poisson(slo.rate_per_s, _query_count(slo), seed)
        outcome = _run(slo, tried, arrivals, seed)
        missed = outcome.miss(slo.latency_s)
    tails = {name: each.profile.quantile_s(1, 0.99) for name, each in graph.stages.items()}
    worst = max(tails, key=lambda name: tails[name])
    return UnattainableError(
        f"{100 * missed:.2f} % of the queries take longer than {1000 * slo.latency_s:g} ms with "
        f"{_HEADROOM_MAX:g} times the replicas that the rate needs, and miss={slo.miss:g}: 1 % of "
        f"{worst}'s single queries take {1000 * tails[worst]:.1f} ms or more; give a longer "
        "latency_s or a larger miss"
    )


def _trim(graph: Graph, judge: Callable[[Graph], bool]) -> Graph:
    """Return a graph with as few replicas as the objective needs, stage by stage.

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


def _add_to_busiest(graph: Graph, slo: SLO, seed: int, replicas_max: int) -> Graph:
    """Return the graph with one more replica of the stage where queries wait longest."""
    arrivals = poisson(slo.rate_per_s, _query_count(slo), seed)
    loads = _run(slo, graph, arrivals, seed).loads
    name = max(loads, key=lambda each: (loads[each].wait_s, each))
    stage = graph.stages[name]
    if stage.replicas >= replicas_max:
        raise _why_unattainable(slo, graph, graph, replicas_max, seed)
    more = replace(stage, replicas=stage.replicas + 1)
    return replace(graph, stages={**graph.stages, name: more})


def _judge(slo: SLO, seed: int) -> Callable[[Graph], bool]:
    """Return a function that says whether a graph keeps the objective on certain arrivals."""
    count = _query_count(slo)
    arrivals = poisson(slo.rate_per_s, count, seed)

    def keeps(graph: Graph) -> bool:
        if any(_capacity(each) < slo.rate_per_s for each in graph.stages.values()):
            return False
        return _run(slo, graph, arrivals, seed, slo.miss * count).is_whole

    return keeps


def _run(
    slo: SLO, graph: Graph, arrivals_s: list[float], seed: int, misses_max: float = math.inf
) -> Outcome:
    return simulate(
        graph.stages,
        arrivals_s,
        seed=seed,
        latency_s=slo.latency_s,
        misses_max=misses_max,
        hop_s=graph.hop_s,
        ingresses=graph.ingresses,
    )


def _query_count(slo: SLO) -> int:
    return min(max(math.ceil(_MISSES / slo.miss), _QUERIES_MIN), _QUERIES_MAX)


def _capacity(stage: StageModel) -> float:
    """The queries a second that all replicas of a stage answer in batches of its cap."""
    return stage.replicas * stage.profile.throughput_per_s(stage.cap)


def _caps(profile: Profile) -> list[int]:
    """Return the caps to choose from: the measured sizes up to the knee."""
    return [size for size in profile.sizes if size <= profile.knee]


def _with_caps(graph: Graph, slo: SLO, part: float) -> Graph:
    """Return the graph with the largest caps that keep `part` of each stage's share."""

    def tail_s(name: str) -> float:
        return graph.stages[name].profile.quantile_s(1, _TAIL)

    path, longest_s = _longest_path(graph, tail_s)
    hops_s = 2 * graph.hop_s * len(path)
    stretch = (slo.latency_s - hops_s) / max(longest_s - hops_s, 1e-9)
    stages = {}
    for name, each in graph.stages.items():
        share_s = part * stretch * tail_s(name)
        fits = [
            size
            for size in _caps(each.profile)
            if _BATCHES * each.profile.quantile_s(size, _TAIL) <= share_s
        ]
        cap = max(fits, default=_caps(each.profile)[0])
        stages[name] = replace(each, cap=cap)
    return replace(graph, stages=stages)


def _with_replicas(graph: Graph, rate_per_s: float) -> Graph:
    """Return the graph with the replicas that a rate needs."""
    stages = {
        name: replace(
            each, replicas=math.ceil(rate_per_s / each.profile.throughput_per_s(each.cap))
        )
        for name, each in graph.stages.items()
    }
    return replace(graph, stages=stages)
