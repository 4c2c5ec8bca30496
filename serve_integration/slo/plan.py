"""Plans of pipelines: caps and replicas for an objective, and the application that has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, overload

from hoplite_ray.serve.graph.pipeline import Pipeline
from hoplite_ray.serve.graph.shared import Pipelines
from hoplite_ray.serve.placement.place import Component, Fit
from hoplite_ray.serve.slo.contract import (
    SLO,
    Contract,
    Graph,
    SharedContract,
    agree_together,
)
from hoplite_ray.serve.slo.drawing import draw_curves
from hoplite_ray.serve.slo.objective import find_capacity, find_rates
from hoplite_ray.serve.slo.profile import Profile
from hoplite_ray.serve.slo.queueing import HOP_S, StageLoad, StageModel
from hoplite_ray.serve.slo.scaling import scale_ahead
from hoplite_ray.serve.stages.batching import Late
from hoplite_ray.serve.stages.declare import AnyStage, LateName

_TAIL = 0.95  # of service times, by which slices are compared
_POINTS = 14  # of a curve
_BEYOND = 1.15  # times the capacity: where a curve ends
_PROCESS_S = 3.0  # from a replica's order to its constructor, until starts have been measured


class _Chosen:
    """The caps and replicas of a plan. A shared stage is named once."""

    __slots__ = ()

    graph: Graph

    @property
    def caps(self) -> dict[str, int]:
        """The largest batch of each stage."""
        return {name: each.cap for name, each in self.graph.stages.items()}

    @property
    def replicas(self) -> dict[str, int]:
        """The number of replicas of each stage."""
        return {name: each.replicas for name, each in self.graph.stages.items()}

    def renew(self, profiles: Mapping[str, Profile]) -> Self:
        """Return the plan with the same caps and replicas, and newer profiles.

            seen = {name: serve.observe(name) for name in plan.replicas}
            print(plan.renew(seen).predict(arrivals_s))

        It predicts from what `observe` saw: batches and edges beside all else that runs there.

        profiles:  by stage; a stage that is not named keeps its own.

        Raises:  ValueError for a profile of no stage.
        """
        if unknown := sorted(profiles.keys() - self.graph.stages.keys()):
            raise ValueError(
                f"profiles[{unknown[0]!r}] is of no stage; there are {list(self.graph.stages)}"
            )
        stages = {
            name: replace(each, profile=profiles.get(name, each.profile))
            for name, each in self.graph.stages.items()
        }
        made: Any = self  # a dataclass
        changed: Self = replace(made, graph=replace(self.graph, stages=stages))
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Contract, _Chosen):
    """A contract, and the pipeline that keeps it. `plan` makes one; `print(plan)` explains it.

    pipeline:  as it was given, without the plan's caps and replicas.
    """

    pipeline: Pipeline

    @property
    def application(self) -> Pipeline:
        """The pipeline with the plan's caps and replicas: `serve.run(plan.application)`.

        A stage with an `autoscaling_config` starts with the plan's replicas, and scales from there.
        """
        spec = self.pipeline.spec
        return self.pipeline.replace(
            stages=_plan_stages(self, spec.stages), latency_s=self.slo.latency_s
        )

    def scale(self, *, max_replicas: int, min_replicas: int = 1, **options: float) -> Pipeline:
        """Return the pipeline with the plan's caps, whose stages scale ahead of their queries.

            serve.run(plan.scale(max_replicas=20))

        Each stage starts with the plan's replicas, and is scaled for a share of the latency and of
        the misses by what its profile says: see `scale_ahead`.

        max_replicas:  of each stage.
        min_replicas:  of each stage, or the plan's if those are fewer.
        options:       of `scale_ahead`, for all stages: start_s, hold_s, spare, prepared, forecast.

        Raises:  ValueError for a plan of more replicas than `max_replicas`, and what `scale_ahead`
                 raises.
        """
        misses = dict.fromkeys(self.graph.stages, self.slo.miss / len(self.graph.stages))
        stages = _scale_stages(
            self, self.pipeline.stages, misses, max_replicas, min_replicas, options
        )
        return self.pipeline.replace(stages=stages, latency_s=self.slo.latency_s)

    def components(self, profiles: Mapping[str, Mapping[str, Profile]]) -> list[Component]:
        """Return the stages as `place` takes them, with what they do on each size of slice.

            components = plan.components({"vision": {"a30": whole, "a30-2g.12gb": half}, ...})
            print(serve.place(components, [serve.Device("gpu0", A30, "node0")]))

        A slice on which batches of the plan's cap take longer than planned (p95) is left out, so
        that the plan's latency holds on all others.

        profiles:  of each stage, by its name and by the name of the slice that it ran on.

        Raises:  ValueError for a stage without a slice that is fast enough.
        """
        return _find_components(self.graph, profiles, dict.fromkeys(self.graph.stages, 1.0))

    def plot(self, rates: Sequence[float] | None = None, path: str | Path | None = None) -> Any:
        """Draw the latency and the miss rate over the rate of queries; returns the figure.

        rates:   queries a second; None: from little to beyond the capacity.
        path:    of a file to write the figure to; its ending says the format.

        Raises:  ImportError without matplotlib.
        """
        if rates is None:
            rates = _spread(self.capacity_per_s)
        points = [self.curve(rate) for rate in rates]
        return draw_curves(
            {"": (self.slo, points)},
            rates,
            axis="queries a second",
            promised_at=self.slo.rate_per_s,
            title=self.limiting_stage + " limits",
            path=path,
        )

    def __str__(self) -> str:
        expected = self.curve()
        lines = [
            f"{1000 * self.slo.latency_s:g} ms for all but {100 * self.slo.miss:g} % of "
            f"{self.slo.rate_per_s:g} queries a second; cost {self.cost:g}",
            f"expected {str(expected).strip()}",
        ]
        for name, each in self.graph.stages.items():
            lines.append(_describe_stage(name, each, expected.outcome.loads[name]))
        limit = f"beyond {self.capacity_per_s:.0f}/s it falls behind"
        lines.append(f"{self.limiting_stage} limits: {limit}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan(SharedContract, _Chosen):
    """A contract of several pipelines, and the application that keeps it. `plan` makes one.

    pipelines:  as they were given, without the plan's caps and replicas.
    """

    pipelines: Pipelines

    @property
    def application(self) -> Pipelines:
        """The pipelines with the plan's caps and replicas: `serve.run(plan.application)`."""
        stages = _plan_stages(self, self.pipelines.stages)
        latencies_s = {name: slo.latency_s for name, slo in self.slos.items()}
        return self.pipelines.replace(stages, latency_s=latencies_s)

    def scale(self, *, max_replicas: int, min_replicas: int = 1, **options: float) -> Pipelines:
        """Return the pipelines, whose stages scale ahead of their queries.

        Arguments and errors are those of `Plan.scale`. A shared stage has the smallest of the
        shares of latency and misses that its pipelines leave it.
        """
        misses = dict.fromkeys(self.graph.stages, 1.0)
        for pipeline, way in self.graph.ways.items():
            for name in way:
                misses[name] = min(misses[name], self.slos[pipeline].miss / len(way))
        own = self.pipelines.stages
        stages = _scale_stages(self, own, misses, max_replicas, min_replicas, options)
        latencies_s = {name: slo.latency_s for name, slo in self.slos.items()}
        return self.pipelines.replace(stages, latency_s=latencies_s)

    def components(self, profiles: Mapping[str, Mapping[str, Profile]]) -> list[Component]:
        """Return the stages as `place` takes them. The arguments are those of `Plan.components`.

        Visits are those of a query of all pipelines together: a stage of one pipeline has fewer
        than 1, so the placement's rate is the sum of all pipelines' rates.
        """
        total = math.fsum(slo.rate_per_s for slo in self.slos.values())
        rates = find_rates(self.slos, self.graph)
        visits = {name: rate / total for name, rate in rates.items()}
        return _find_components(self.graph, profiles, visits)

    def plot(self, times: Sequence[float] | None = None, path: str | Path | None = None) -> Any:
        """Draw the latency and the misses of each pipeline, when all rates are many times theirs.

            shared.plot(path="curves.svg")

        times:   of the objectives' rates, all alike; None: from little to beyond the capacity.
        path:    of a file to write the figure to; its ending says the format.

        Returns: a figure of matplotlib.
        Raises:  ImportError without matplotlib.
        Cost:    a simulation for each of `times`, as `curve` has it.
        """
        if times is None:
            times = _spread(self.capacity)
        points = [self.curve(each) for each in times]
        curves = {name: (slo, [each[name] for each in points]) for name, slo in self.slos.items()}
        return draw_curves(
            curves,
            times,
            axis="times the rates of all pipelines",
            promised_at=1.0,
            title=self.limiting_stage + " limits",
            path=path,
        )

    def __str__(self) -> str:
        expected = self.curve()
        lines = [f"{len(self.slos)} pipelines; cost {self.cost:g}"]
        for name, slo in self.slos.items():
            lines.append(
                f"{name}: {1000 * slo.latency_s:g} ms for all but {100 * slo.miss:g} % of "
                f"{slo.rate_per_s:g} queries a second; expected {str(expected[name]).strip()}"
            )
        for name, each in self.graph.stages.items():
            users = [pipeline for pipeline, way in self.graph.ways.items() if name in way]
            load = expected[users[0]].outcome.loads[name]
            lines.append(f"{_describe_stage(name, each, load)}; for {' and '.join(users)}")
        lines.append(
            f"{self.limiting_stage} limits: beyond {self.capacity:.2f} times all rates it falls "
            "behind"
        )
        return "\n".join(lines)


@overload
def plan(
    application: Pipeline,
    slo: SLO,
    profiles: Mapping[str, Profile],
    *,
    late: LateName | None = ...,
    costs: Mapping[str, float] | None = ...,
    replicas_max: int = ...,
    hop_s: float = ...,
    seed: int = ...,
) -> Plan: ...


@overload
def plan(
    application: Pipelines,
    slo: Mapping[str, SLO],
    profiles: Mapping[str, Profile],
    *,
    late: LateName | None = ...,
    costs: Mapping[str, float] | None = ...,
    replicas_max: int = ...,
    hop_s: float = ...,
    seed: int = ...,
) -> SharedPlan: ...


def plan(
    application: Pipeline | Pipelines,
    slo: SLO | Mapping[str, SLO],
    profiles: Mapping[str, Profile],
    *,
    late: LateName | None = None,
    costs: Mapping[str, float] | None = None,
    replicas_max: int = 1000,
    hop_s: float = HOP_S,
    seed: int = 0,
) -> Plan | SharedPlan:
    """Choose the caps and replicas with which pipelines keep their service-level objectives.

        profiles = {"vision": serve.profile(Vision.bind(), images)}
        slo = serve.SLO(latency_s=0.2, rate_per_s=120)
        plan = serve.plan(serve.pipeline(vision=Vision), slo, profiles)
        print(plan)
        serve.run(plan.application)

    application:   a pipeline, or pipelines that share stages. The `max_batch` and `num_replicas` of
                   its stages are not looked at.
    slo:           the objective; of pipelines, that of each by its name.
    profiles:      of each stage, by its name in the pipeline.
    late:          what stages do with queries that can't be in time: "drop" answers LateError,
                   "serve" runs them behind all others; None: each stage as it is declared.
    costs:         of one replica, by stage; 1 for a stage that is not named.
    replicas_max:  of one stage.
    hop_s:         one way from a replica to the next, in seconds; more for values of many MB.
                   Profiles of `observe` have what was seen instead.

    Returns: a Plan; of pipelines, a SharedPlan. Its numbers come from the profiles: queries at
             random, no replica dies, and no stage takes the CPU of another beyond what the profile
             saw.
    Raises:  UnattainableError if the objective can't be had, with the stage and the numbers that
             stand in the way; TypeError or ValueError for an argument that is none.
    Cost:    seconds: some 20 to 60 simulations of thousands of queries; up to four times as many
             queries for pipelines that share stages.
    Source:  Vortex 5.2 and 8; InferLine (a planner that simulates).
    """
    slos = _check_objectives(application, slo)
    graph = _graph(application, profiles, late, costs or {}, hop_s)
    chosen = agree_together(slos, graph, replicas_max=replicas_max, seed=seed)
    if late is not None:
        stages = {name: each.options(late=late) for name, each in application.stages.items()}
        application = application.replace(stages=stages)
    if isinstance(application, Pipeline):
        return Plan(slo=slos[""], graph=chosen.graph, seed=seed, pipeline=application)
    return SharedPlan(slos=slos, graph=chosen.graph, seed=seed, pipelines=application)


def _check_objectives(
    application: Pipeline | Pipelines, slo: SLO | Mapping[str, SLO]
) -> Mapping[str, SLO]:
    """Return the objectives by pipeline; "" is the only one. Raises what `plan` does."""
    if isinstance(application, Pipeline):
        if not isinstance(slo, SLO):
            raise TypeError(f"plan() of a pipeline takes one SLO(...), not {slo!r:.80}")
        return {"": slo}
    if not isinstance(application, Pipelines):
        raise TypeError(
            f"plan() takes what pipeline(...) or pipelines(...) returns, not {application!r:.80}"
        )
    names = list(application.specs)
    if not isinstance(slo, Mapping) or not all(isinstance(each, SLO) for each in slo.values()):
        raise TypeError(
            f"plan() of pipelines takes an SLO(...) of each of {names}, not {slo!r:.80}"
        )
    if slo.keys() != application.specs.keys():
        raise ValueError(f"objectives are of {list(slo)}; give those of {names}")
    return {name: slo[name] for name in names}


def _describe_stage(name: str, stage: StageModel, load: StageLoad) -> str:
    """Return a line about a stage of a plan."""
    runs_s = stage.profile.quantile_s(max(round(load.batch), 1), _TAIL)
    return (
        f"  {name}: {stage.replicas} replicas, max_batch={stage.cap}, "
        f"{find_capacity(stage):.0f}/s at most; waits {1000 * load.wait_s:.1f} ms, runs "
        f"{1000 * runs_s:.1f} ms (p95) in batches of {load.batch:.1f}"
    )


def _find_components(
    graph: Graph, profiles: Mapping[str, Mapping[str, Profile]], visits: Mapping[str, float]
) -> list[Component]:
    """Return a plan's stages as components to place. Raises what `Plan.components` does."""
    found = []
    for name, stage in graph.stages.items():
        longest_s = stage.profile.quantile_s(stage.cap, _TAIL)
        fits = {
            each: fit
            for each, profile in profiles.get(name, {}).items()
            if (fit := _fit(profile, stage.cap, longest_s)) is not None
        }
        if not fits:
            raise ValueError(
                f"stage {name} is on no slice as fast as planned: a batch may take "
                f"{1000 * longest_s:.1f} ms (p95); profile it on a larger slice, or plan with "
                "the profile of a slice that you have"
            )
        found.append(Component(name, fits, visits=visits[name]))
    return found


def _graph(
    application: Pipeline | Pipelines,
    profiles: Mapping[str, Profile],
    late: LateName | None,
    costs: Mapping[str, float],
    hop_s: float,
) -> Graph:
    """Return what the plan is made of. Raises what `plan` does for profiles and costs."""
    stages = application.stages
    if not isinstance(profiles, Mapping):
        raise TypeError(
            f"plan() takes profiles by the names of the stages, {list(stages)}: "
            f"{{{next(iter(stages))!r}: serve.profile(stage, queries)}}, not {profiles!r:.80}"
        )
    if lacking := [name for name in stages if name not in profiles]:
        raise ValueError(
            f"stage {lacking[0]} has no profile among those of {list(profiles)}; make one: "
            f"profiles[{lacking[0]!r}] = serve.profile(stage, queries)"
        )
    for what, given in (("profiles", profiles), ("costs", costs)):
        if unknown := sorted(given.keys() - stages.keys()):
            raise ValueError(f"{what}[{unknown[0]!r}] is of no stage; there are {list(stages)}")
    for name, cost in costs.items():
        if not 0 < cost < math.inf:
            raise ValueError(f"costs[{name!r}]={cost!r} must be a number above 0, and finite")
    models = {
        name: StageModel(profiles[name], 1, 1, each.inputs, Late(late) if late else each.late)
        for name, each in stages.items()
    }
    unit = {name: costs.get(name, 1.0) for name in stages}
    if isinstance(application, Pipeline):
        return Graph(models, unit, application.spec.replicas, hop_s)
    ways = {
        pipeline: {name: each.inputs for name, each in spec.stages.items()}
        for pipeline, spec in application.specs.items()
    }
    return Graph(models, unit, application.replicas, hop_s, ways)


def _fit(profile: Profile, cap: int, longest_s: float) -> Fit | None:
    """Return what a replica does on a slice; None if its batches take longer."""
    if profile.quantile_s(cap, _TAIL) > longest_s:
        return None
    memory_bytes = profile.gpu_bytes(cap) or profile.memory_bytes(cap)
    return Fit(profile.throughput_per_s(cap), memory_bytes)


def _scale_stages(
    contract: Contract | SharedContract,
    stages: Mapping[str, AnyStage],
    misses: Mapping[str, float],
    max_replicas: int,
    min_replicas: int,
    options: Mapping[str, float],
) -> dict[str, AnyStage]:
    """Return stages that scale ahead, each for its share of the latency and of the misses."""
    shares_s = contract.share_latency()
    prepared = int(options.get("prepared", 0))
    scaled = {}
    for name, planned in contract.graph.stages.items():
        initial = planned.replicas + prepared
        if initial > max_replicas:
            raise ValueError(
                f"max_replicas={max_replicas!r} is less than the {initial} replicas with which "
                f"stage {name} starts; give more, or plan for a lower rate"
            )
        figures = {
            "latency_s": shares_s[name],
            "miss": misses[name],
            "capacity_per_s": planned.profile.throughput_per_s(planned.cap),
            "service_s": planned.profile.mean_s(planned.cap),
            "start_s": _PROCESS_S + planned.profile.start_s,
        }
        scaling = scale_ahead(
            min_replicas=min(min_replicas, planned.replicas),
            max_replicas=max_replicas,
            initial_replicas=initial,
            **{**figures, **options},
        )
        stage = stages[name].options(starts_parked=prepared > 0 or None)
        scaled[name] = _with_scaling(_with_cap(stage, planned, shares_s[name]), scaling)
    return scaled


def _plan_stages(
    contract: Contract | SharedContract, stages: Mapping[str, AnyStage]
) -> dict[str, AnyStage]:
    """Return stages with the caps, replicas and shares of the latency of a plan."""
    shares_s, planned = contract.share_latency(), contract.graph.stages
    return {
        name: _with_replicas(_with_cap(each, planned[name], shares_s[name]), planned[name])
        for name, each in stages.items()
    }


def _with_cap(stage: AnyStage, planned: StageModel, budget_s: float) -> AnyStage:
    """Return a stage with the plan's cap, its share of the latency, and its batches' times."""
    means_s = (planned.profile.mean_s(size + 1) for size in range(planned.cap))
    capped = stage.options(max_batch=planned.cap)
    return replace(capped, expected_s=tuple(means_s), budget_s=budget_s)


def _with_scaling(stage: AnyStage, scaling: Any) -> AnyStage:
    """Return a stage that Serve scales, whatever it has been declared with."""
    kept = {name: each for name, each in stage.serve_options.items() if name != "num_replicas"}
    return replace(stage, serve_options={**kept, "autoscaling_config": scaling})


def _with_replicas(stage: AnyStage, planned: StageModel) -> AnyStage:
    """Return a stage that has the plan's replicas, or begins with them."""
    scaling: Any = stage.serve_options.get("autoscaling_config")
    if scaling is None:
        return stage.options(num_replicas=planned.replicas)
    is_plain = isinstance(scaling, Mapping)
    fields: Mapping[str, Any] = scaling if is_plain else vars(scaling)
    bounds = {
        "initial_replicas": planned.replicas,
        "min_replicas": min(fields.get("min_replicas", 1), planned.replicas),
        "max_replicas": max(fields.get("max_replicas", 1), planned.replicas),
    }
    changed = {**scaling, **bounds} if is_plain else scaling.model_copy(update=bounds)
    return _with_scaling(stage, changed)


def _spread(capacity: float) -> list[float]:
    """Return the points of a curve, from little to beyond a capacity."""
    return [_BEYOND * capacity * (point + 1) / _POINTS for point in range(_POINTS)]
