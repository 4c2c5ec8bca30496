"""The contract of a pipeline: caps and replicas that keep an objective, and what each rate brings.

Several pipelines with shared stages have one contract: a shared stage has the rate of all of them,
and the smallest of the shares that their latencies leave it.

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
from collections.abc import Mapping
from dataclasses import dataclass

from hoplite_ray.serve.slo.objective import (
    SLO,
    Graph,
    Prediction,
    count_queries,
    draw_arrivals,
    find_capacity,
    find_rates,
    predict_latencies,
    simulate_graph,
)
from hoplite_ray.serve.slo.queueing import poisson
from hoplite_ray.serve.slo.search import (
    add_to_busiest,
    check_latencies,
    explain_refusal,
    grow,
    make_judge,
    share_latency,
    trim,
)

__all__ = [
    "SLO",
    "Contract",
    "Graph",
    "Prediction",
    "SharedContract",
    "agree",
    "agree_together",
]

_MORE_MAX = 20  # replicas that are added because of other arrivals
_TAIL = 0.95  # of service times, by which stages share a latency


@dataclass(frozen=True, slots=True)
class SharedContract:
    """Caps and replicas for the objectives of several pipelines, and the latencies that follow.

    slos:  the objectives, by pipeline.
    """

    slos: Mapping[str, SLO]
    graph: Graph
    seed: int = 0

    @property
    def cost(self) -> float:
        """The cost of all replicas; those of a shared stage count once."""
        return _cost(self.graph)

    @property
    def limiting_stage(self) -> str:
        """The stage whose capacity ends first when all rates grow alike."""
        stages, rates = self.graph.stages, find_rates(self.slos, self.graph)
        return min(stages, key=lambda name: (find_capacity(stages[name]) / rates[name], name))

    @property
    def capacity(self) -> float:
        """How many times all rates fit, until the limiting stage falls behind."""
        name = self.limiting_stage
        return find_capacity(self.graph.stages[name]) / find_rates(self.slos, self.graph)[name]

    def share_latency(self) -> dict[str, float]:
        """Return the seconds that a query may spend at each stage, waiting and running.

        A stage's share is as large as a full batch of it (p95) is long. A shared stage has the
        smallest of its shares.
        """
        stages = self.graph.stages
        return share_latency(
            self.slos,
            self.graph,
            lambda name: stages[name].profile.quantile_s(stages[name].cap, _TAIL),
        )

    def curve(self, times: float = 1.0) -> dict[str, Prediction]:
        """Predict the latencies of each pipeline when all rates are so many times the objectives'.

        Cost:  a simulation of tens of thousands of queries, some 10 us for each and each stage.
        """
        if not 0 < times < math.inf:
            raise ValueError(f"times={times!r} must be a number above 0, and finite")
        return self.predict(draw_arrivals(self.slos, self.seed, times))

    def predict(self, arrivals_s: Mapping[str, list[float]]) -> dict[str, Prediction]:
        """Predict the latencies of queries that come at these times, in ascending seconds.

        arrivals_s:  of each pipeline, by a clock that all share.
        """
        if arrivals_s.keys() != self.slos.keys():
            raise ValueError(
                f"arrivals_s are of {sorted(arrivals_s)}; give those of {sorted(self.slos)}"
            )
        for name, each in arrivals_s.items():
            if len(each) < 2 or each != sorted(each):
                of = f" of pipeline {name}" if name else ""
                raise ValueError(f"arrivals_s{of} are to be at least two times, in ascending order")
        outcomes = simulate_graph(self.slos, self.graph, arrivals_s, self.seed)
        return {
            name: predict_latencies(slo, arrivals_s[name], outcomes[name])
            for name, slo in self.slos.items()
        }


@dataclass(frozen=True, slots=True)
class Contract:
    """Caps and replicas for an objective, and the latencies that follow from them."""

    slo: SLO
    graph: Graph
    seed: int = 0

    @property
    def cost(self) -> float:
        """The cost of all replicas."""
        return _cost(self.graph)

    @property
    def limiting_stage(self) -> str:
        """The stage whose capacity ends first when the rate grows."""
        return SharedContract({"": self.slo}, self.graph).limiting_stage

    @property
    def capacity_per_s(self) -> float:
        """The rate beyond which queries come faster than the limiting stage answers them."""
        return find_capacity(self.graph.stages[self.limiting_stage])

    def share_latency(self) -> dict[str, float]:
        """Return the seconds that a query may spend at each stage, as `SharedContract` does."""
        return SharedContract({"": self.slo}, self.graph).share_latency()

    def curve(self, rate_per_s: float | None = None) -> Prediction:
        """Predict the latencies of queries that come at random; None: at the objective's rate.

        Cost:  a simulation of thousands of queries, some 10 us for each of them and each stage.
        """
        rate = self.slo.rate_per_s if rate_per_s is None else rate_per_s
        if not 0 < rate < math.inf:
            raise ValueError(f"rate_per_s={rate!r} must be a number above 0, and finite")
        return self.predict(poisson(rate, count_queries(self.slo), self.seed))

    def predict(self, arrivals_s: list[float]) -> Prediction:
        """Predict the latencies of queries that come at these times, in ascending seconds."""
        shared = SharedContract({"": self.slo}, self.graph, self.seed)
        return shared.predict({"": arrivals_s})[""]


def agree(slo: SLO, graph: Graph, *, replicas_max: int = 1000, seed: int = 0) -> Contract:
    """Choose caps and replicas for an objective, at a low cost.

    graph:  with the profiles; its caps and replicas are not looked at.

    Raises:  UnattainableError if no number of replicas up to `replicas_max` a stage keeps the
             objective; it names the stage and the numbers that stand in the way.
    Cost:    some 20 to 60 simulations.
    """
    shared = agree_together({"": slo}, graph, replicas_max=replicas_max, seed=seed)
    return Contract(slo, shared.graph, seed)


def agree_together(
    slos: Mapping[str, SLO], graph: Graph, *, replicas_max: int = 1000, seed: int = 0
) -> SharedContract:
    """Choose caps and replicas with which each pipeline of a graph keeps its own objective.

    Raises:  UnattainableError like `agree`; it names the pipeline, too.
    """
    check_latencies(slos, graph)
    judge = make_judge(slos, graph, seed)
    chosen = trim(grow(slos, graph, replicas_max, seed), judge)
    judge_others = make_judge(slos, graph, seed + 1)
    for _ in range(_MORE_MAX):
        if judge_others(chosen):
            return SharedContract(slos, chosen, seed)
        chosen = add_to_busiest(chosen, slos, seed + 1, replicas_max)  # seed's arrivals were lucky
    raise explain_refusal(slos, graph, chosen, replicas_max, seed + 1)


def _cost(graph: Graph) -> float:
    return math.fsum(graph.costs[name] * each.replicas for name, each in graph.stages.items())
