"""Several pipelines as one Serve application, whose stages of one name are one deployment.

A query carries the name of its pipeline, and a stage sends its answer on to the next stages of that
pipeline. So the replicas, queues and batches of a shared stage serve the queries of all.
Source: Vortex 5.1.1, a component that several pipelines share.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Never

from ray import serve
from ray.serve import Application

from hoplite_ray.serve.graph.binding import bind_stages, merge_inputs, sort_stages
from hoplite_ray.serve.graph.http import answer_http, is_json, respond_error
from hoplite_ray.serve.graph.ingress import QUERY, Asker, ingress_options
from hoplite_ray.serve.graph.pipeline import Pipeline, PipelineSpec
from hoplite_ray.serve.routing.keys import Rule
from hoplite_ray.serve.routing.outlet import close_all, open_outlets
from hoplite_ray.serve.seams import bound_deployment
from hoplite_ray.serve.stages.declare import AnyStage


@dataclass(frozen=True, slots=True)
class Route:
    """A pipeline as the ingress knows it; `inputs` are those of each stage, each after them."""

    inputs: Mapping[str, tuple[str, ...]]
    deadline_s: float
    latency_s: float | None


class Pipelines(Application):
    """Several pipelines as one application of Ray Serve. `pipelines` makes one.

    specs:  what each pipeline was made of, by its name.
    """

    def __init__(self, specs: Mapping[str, PipelineSpec]) -> None:
        super().__init__(bound_deployment(_build(specs)))
        self.specs = dict(specs)

    @property
    def stages(self) -> dict[str, AnyStage]:
        """The stages of all pipelines by name; `after` is that of one of them."""
        return {name: each for spec in self.specs.values() for name, each in spec.stages.items()}

    @property
    def replicas(self) -> int:
        """The replicas of the ingress: as many as the pipeline has that asks for most."""
        return max(spec.replicas for spec in self.specs.values())

    def replace(self, stages: Mapping[str, AnyStage], **changes: Mapping[str, Any]) -> Pipelines:
        """Return pipelines with other stages of these names, each after its own inputs.

        changes:  new values of a field of the specs, by pipeline.
        """
        specs = {}
        for pipeline, spec in self.specs.items():
            changed = {
                name: replace(stages.get(name, each), inputs=each.inputs)
                for name, each in spec.stages.items()
            }
            own = {field: values[pipeline] for field, values in changes.items()}
            specs[pipeline] = replace(spec, stages=changed, **own)
        return Pipelines(specs)


def pipelines(
    named: Mapping[str, Pipeline] | None = None, /, *unnamed: Never, **more: Pipeline
) -> Pipelines:
    """Return several pipelines as one Serve application, in which they share stages.

        application = serve.pipelines(
            search=serve.pipeline(text=Text, rank=Rank.after("text"), latency_s=0.2),
            chat=serve.pipeline(text=Text, speak=Speak.after("text"), latency_s=0.5),
        )
        handle = ray_serve.run(application)
        handle.remote("a question", pipeline="chat")

    A stage of one name is one deployment, which serves the queries of all pipelines that have it.
    It may be after one stage in one pipeline, and after another one or none in another. Over HTTP
    the last part of the path is the pipeline: `/search`. The ingress has as many replicas as the
    pipeline that asks for most.

    A mapping does the same: `pipelines({"search": pipeline(...)})`.

    Raises:  TypeError for what is no pipeline; ValueError for a name that is no part of a path, a
             stage that differs between pipelines, pipelines with unlike `edges`, or stages that
             pipelines put in opposite orders.
    Source:  Vortex 5.1.1.
    """
    if unnamed or not isinstance(named, Mapping | None):
        raise TypeError("pipelines have names: pipelines(search=pipeline(...))")
    if twice := (named or {}).keys() & more.keys():
        raise ValueError(f"{min(twice)} is in the mapping and a keyword; name each pipeline once")
    specs: dict[str, PipelineSpec] = {}
    for name, each in {**(named or {}), **more}.items():
        if not isinstance(each, Pipeline):
            raise TypeError(f"{name}={each!r} is no pipeline; give what pipeline(...) returns")
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"a pipeline can't be called {name!r}: its name is a part of a path")
        specs[name] = each.spec
    if not specs:
        raise ValueError("give at least one pipeline: pipelines(search=pipeline(...))")
    for (one, first), (other, second) in itertools.combinations(specs.items(), 2):
        if first.edges != second.edges:
            raise ValueError(
                f"pipeline {one} has edges={first.edges!r} and {other} {second.edges!r}; give all "
                "pipelines of an application the same"
            )
        for stage in first.stages.keys() & second.stages.keys():
            _check_same(stage, {one: first.stages[stage], other: second.stages[stage]})
    _, waiting = sort_stages(merge_inputs({name: spec.stages for name, spec in specs.items()}))
    if waiting:
        raise ValueError(
            f"stages {waiting} are after each other in pipelines {list(specs)} together; Serve "
            "starts a stage before those that call it, so give one of them a name of its own"
        )
    return Pipelines(specs)


def _check_same(name: str, stages: Mapping[str, AnyStage]) -> None:
    """Raise ValueError if a stage is not the same one in two pipelines."""
    one, other = stages.values()
    where = " and ".join(stages)
    for field in fields(one):
        if field.name == "inputs" or _is_equal(
            getattr(one, field.name), getattr(other, field.name)
        ):
            continue
        values = [repr(getattr(each, field.name)) for each in (one, other)]
        raise ValueError(
            f"stage {name} is not the same in pipelines {where}: its {field.name} is "
            f"{values[0]:.80} and {values[1]:.80}; use one stage in both, or two names"
        )
    if one.inputs != other.inputs and max(len(one.inputs), len(other.inputs)) > 1:
        raise ValueError(
            f"stage {name} joins {one.inputs} and {other.inputs} in pipelines {where}; a shared "
            "stage has at most one input, or joins the same ones in the same order"
        )


def _is_equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal; False if that can't be said, as of arrays."""
    try:
        return one is other or bool(one == other)
    except Exception:  # of any class: they are the user's objects
        return False


def _build(specs: Mapping[str, PipelineSpec]) -> Application:
    """Return pipelines as one Serve application. REQUIRES: they fit together."""
    graphs = {name: spec.stages for name, spec in specs.items()}
    edges = next(iter(specs.values())).edges
    nodes, keys = bind_stages(graphs, edges)
    routes = {
        name: Route(
            {stage: each.inputs for stage, each in spec.stages.items()},
            spec.deadline_s,
            spec.latency_s,
        )
        for name, spec in specs.items()
    }
    options = ingress_options(
        max(spec.replicas for spec in specs.values()),
        max(spec.deadline_s for spec in specs.values()),
    )
    return serve.deployment(**options)(SharedIngress).bind(nodes, routes, edges, keys=keys)


class SharedIngress:
    """The ingress of several pipelines. Serve makes it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        nodes: dict[str, Any],
        routes: Mapping[str, Route],
        edges: str,
        keys: Mapping[str, Rule] | None = None,
    ) -> None:
        self._outlets = await open_outlets(nodes, edges, QUERY, keys)
        limits_s = {each.latency_s or each.deadline_s for each in routes.values()}
        self._askers = {
            name: Asker(
                nodes,
                route.inputs,
                self._outlets,
                route.deadline_s,
                route.latency_s,
                pipeline=name,
                limits_s=tuple(sorted(limits_s)),
            )
            for name, route in routes.items()
        }

    async def __call__(self, request: Any, pipeline: str | None = None) -> Any:
        """Answer one query of a pipeline: a value by a handle, or JSON over HTTP."""
        if not is_json(request):
            return await self.ask(request, pipeline=pipeline)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        try:
            asker = self._find_asker(path.strip("/") or None)
        except ValueError as error:
            return respond_error(str(error), 404)
        return await answer_http(request, asker.ask)

    async def ask(
        self, value: Any, query_id: str | None = None, *, pipeline: str | None = None, **limits: Any
    ) -> Any:
        """Answer one query of a pipeline. The other arguments are those of `Ingress.ask`.

        Raises:  also ValueError for a pipeline that there is not.
        """
        return await self._find_asker(pipeline).ask(value, query_id, **limits)

    def _find_asker(self, pipeline: str | None) -> Asker:
        if pipeline is None and len(self._askers) == 1:
            return next(iter(self._askers.values()))
        asker = self._askers.get(pipeline or "")
        if asker is None:
            named = "a query without a pipeline" if pipeline is None else f"pipeline={pipeline!r}"
            raise ValueError(
                f"{named} can't be answered: this application has {list(self._askers)}; give one "
                "of them as pipeline=..., or as the path over HTTP"
            )
        return asker

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits; None if there is nothing to close."""
        outlets, self._outlets = getattr(self, "_outlets", {}), {}
        return close_all(outlets) if outlets else None
