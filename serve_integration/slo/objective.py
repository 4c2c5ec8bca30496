"""Objectives of pipelines, the graphs that are to keep them, and what a simulation says of these.

Pure: it asks the simulation of queueing.py. All tables of objectives are by pipeline; the only
pipeline of a graph is called "".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hoplite_ray.serve.slo.queueing import (
    HOP_S,
    Outcome,
    StageModel,
    Stream,
    poisson,
    simulate_together,
)

_QUERIES_MIN = 5_000  # of a simulation
_QUERIES_MAX = 100_000
_MISSES = 100  # that a simulation is to tell from twice as many, at the tolerated share
_TOGETHER = 4  # times the queries of one objective: the most that several have together

Inputs = Mapping[str, tuple[str, ...]]  # of each stage, each after its inputs


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
    """Pipelines as a plan sees them: their stages without caps and replicas.

    stages:     by name; of one pipeline, each after its inputs.
    costs:      of one replica, by stage.
    ingresses:  replicas of the ingress.
    hop_s:      one way of an edge to a stage whose profile says nothing of it, in seconds.
    pipelines:  the inputs of each pipeline's stages, in order; none: the stages are one pipeline.
    """

    stages: Mapping[str, StageModel]
    costs: Mapping[str, float]
    ingresses: int = 2
    hop_s: float = HOP_S
    pipelines: Mapping[str, Inputs] = field(default_factory=dict)

    @property
    def ways(self) -> Mapping[str, Inputs]:
        """The inputs of each pipeline's stages; the only one is called ""."""
        return self.pipelines or {"": {name: each.inputs for name, each in self.stages.items()}}

    def mean_hop_s(self, stage: str) -> float:
        """Return the mean way of a query to a stage, in seconds."""
        return self.stages[stage].mean_hop_s(self.hop_s)


def simulate_graph(
    slos: Mapping[str, SLO],
    graph: Graph,
    arrivals_s: Mapping[str, list[float]],
    seed: int,
    *,
    gives_up: bool = False,
) -> dict[str, Outcome]:
    """Simulate a graph; with `gives_up` until a pipeline has missed its objective."""
    streams = {}
    for name, inputs in graph.ways.items():
        slo, arrivals = slos[name], arrivals_s[name]
        misses_max = slo.miss * len(arrivals) if gives_up else math.inf
        streams[name] = Stream(inputs, arrivals, slo.latency_s, misses_max)
    return simulate_together(
        graph.stages, streams, seed=seed, hop_s=graph.hop_s, ingresses=graph.ingresses
    )


def predict_latencies(slo: SLO, arrivals_s: list[float], outcome: Outcome) -> Prediction:
    """Return what a simulation of these arrivals says."""
    lasted_s = max(arrivals_s[-1] - arrivals_s[0], 1e-9)
    return Prediction(
        (len(arrivals_s) - 1) / lasted_s,
        outcome.quantile_s(0.5),
        outcome.quantile_s(0.99),
        outcome.miss(slo.latency_s),
        outcome,
    )


def draw_arrivals(slos: Mapping[str, SLO], seed: int, times: float = 1.0) -> dict[str, list[float]]:
    """Return arrivals at random, at so many times the objectives' rates, over one time for all.

    The pipeline with the fewest queries for its objective decides the time, within a limit of all
    queries together.
    """
    lasts_s = max(count_queries(slo) / slo.rate_per_s for slo in slos.values())
    most = _TOGETHER * max(count_queries(slo) for slo in slos.values())
    lasts_s = min(lasts_s, most / math.fsum(slo.rate_per_s for slo in slos.values()))
    return {
        name: poisson(
            times * slo.rate_per_s,
            max(round(slo.rate_per_s * lasts_s), 2),
            f"{seed} {name}" if name else seed,
        )
        for name, slo in slos.items()
    }


def count_queries(slo: SLO) -> int:
    """Return the queries of a simulation that is to judge an objective."""
    return min(max(math.ceil(_MISSES / slo.miss), _QUERIES_MIN), _QUERIES_MAX)


def find_rates(slos: Mapping[str, SLO], graph: Graph) -> dict[str, float]:
    """Return the queries a second that each stage gets from all pipelines."""
    return {
        stage: math.fsum(slos[name].rate_per_s for name, way in graph.ways.items() if stage in way)
        for stage in graph.stages
    }


def find_capacity(stage: StageModel) -> float:
    """Return the queries a second that all replicas of a stage answer in batches of its cap."""
    return stage.replicas * stage.profile.throughput_per_s(stage.cap)
