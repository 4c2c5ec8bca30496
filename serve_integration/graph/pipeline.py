"""A graph of stages as one Serve application. Queries come in by its ingress, answers go out there.

The ingress sends a query to the first stages. Each stage sends its answer to the next stages over
edges, and keeps it until they have answered. So when a replica dies, another one of its stage takes
over, and no stage before it runs again, except when inputs of a join can't meet any more. The
ingress then asks the query again as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Never

from ray import serve
from ray.serve import Application

from hoplite_ray.serve.graph.binding import bind_stages, consumers, merge_inputs, sort_stages
from hoplite_ray.serve.graph.ingress import (
    INGRESS,
    INGRESS_REPLICAS,
    EdgesName,
    Ingress,
    check_ingress,
    check_limit,
    in_seconds,
    ingress_options,
    merge_stages,
)
from hoplite_ray.serve.seams import bound_deployment
from hoplite_ray.serve.stages.declare import AnyStage, Stage, StageLike


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """All that makes a pipeline: its stages in order, and the arguments of `pipeline`.

    latency_s:  the latency that is promised; None if none is.
    """

    stages: Mapping[str, AnyStage]
    edges: EdgesName
    deadline_s: float
    replicas: int
    latency_s: float | None

    def build(self, ingress: type[Ingress] = Ingress) -> Application:
        """Return the Serve application. A subclass of its ingress may make queries itself.

        Raises:  ValueError for a stage that is to park its replicas with edges="serve".
        """
        nodes, keys = bind_stages({"": self.stages}, self.edges)
        inputs = {name: each.inputs for name, each in self.stages.items()}
        options = ingress_options(self.replicas, self.deadline_s)
        return serve.deployment(**options)(ingress).bind(
            nodes, inputs, self.edges, self.deadline_s, self.latency_s, keys=keys
        )


class Pipeline(Application):
    """A pipeline as an application of Ray Serve. `pipeline` makes one.

    spec:  what it was made of.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        super().__init__(bound_deployment(spec.build()))
        self.spec = spec

    @property
    def stages(self) -> Mapping[str, AnyStage]:
        """The stages by name, each after its inputs."""
        return self.spec.stages

    def replace(self, **changes: Any) -> Pipeline:
        """Return a pipeline that differs in these fields of its spec."""
        return Pipeline(replace(self.spec, **changes))


def pipeline(
    stages: Mapping[str, StageLike] | None = None,
    /,
    *unnamed: Never,
    edges: EdgesName = "worlds",
    deadline_s: float = 60.0,
    deadline_ms: float | None = None,
    latency_s: float | None = None,
    replicas: int = INGRESS_REPLICAS,
    **named: StageLike,
) -> Pipeline:
    """Return a Serve application of stages: `serve.run(pipeline(a=A, b=B.after("a")))`.

    A mapping does the same, and may use any name: `pipeline({"edges": A, "replicas": B})`.
    `handle.remote(x)` answers one query; over HTTP a query and its answer are JSON. The answer of
    the last stage is the query's answer.

    edges:        "worlds"; "serve" runs the same stages over plain handles, for comparison. Then
                  `key` and `near` of stages have no effect.
    deadline_s:   of each query, from when it reaches the ingress. Then TimeoutError.
    deadline_ms:  the same in milliseconds. Deprecated.
    latency_s:    the latency that is promised. Queries that take longer are answered, and counted
                  as `serve_missed`. `serve.plan` gives it.
    replicas:     of the ingress.

    Raises:  ValueError if the stages are no graph: an input that is not there, a circle, or several
             last stages; also for a stage with `starts_parked` and edges="serve"; TypeError for a
             stage without a name.
    """
    if unnamed or not isinstance(stages, Mapping | None):
        raise TypeError("stages of a pipeline have names: pipeline(text=Text), not pipeline(Text)")
    graph = merge_stages(stages or {}, named)
    check_ingress(edges, replicas)
    deadline_s = in_seconds(deadline_s, deadline_ms)
    if latency_s is not None:
        check_limit("latency_s", latency_s, "seconds")
    order = topological_order(graph)
    ordered = {name: graph[name] for name in order}
    return Pipeline(PipelineSpec(ordered, edges, deadline_s, replicas, latency_s))


def topological_order(stages: Mapping[str, AnyStage]) -> list[str]:
    """Return the names of stages, each after its inputs.

    Raises:  ValueError if there is no such order, or not exactly one last stage.
    """
    if not stages:
        raise ValueError("a pipeline has at least one stage: pipeline(name=Stage)")
    if INGRESS in stages:
        raise ValueError(f"no stage can be called {INGRESS!r}, as the one where queries come in is")
    for name, each in stages.items():
        if not isinstance(each, Stage):
            raise ValueError(f"{name}={each!r} is no stage; decorate the class with @stage")
        for before in each.inputs:
            if before not in stages:
                raise ValueError(
                    f"stage {name} is after {before!r}, which is none of {sorted(stages)}"
                )
    order, waiting = sort_stages(merge_inputs({"": stages}))
    if waiting:
        raise ValueError(f"stages {waiting} wait for themselves: what each is after comes after it")
    last = [name for name in order if not consumers(stages, name)]
    if len(last) != 1:
        raise ValueError(f"stages {last} are all last; the answer is one stage's")
    return order
