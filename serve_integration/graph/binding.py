"""Stages as the nodes of one Serve application: each is one node, in however many pipelines it is.

A graph is the stages of one pipeline by name, each after its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hoplite_ray.serve.graph.ingress import check_parking
from hoplite_ray.serve.routing.keys import Rule
from hoplite_ray.serve.stages.declare import AnyStage
from hoplite_ray.serve.stages.deploy import deployment, find_keys

Graph = Mapping[str, AnyStage]


def consumers(graph: Graph, name: str) -> list[str]:
    """Return the names of the stages that get the answers of `name`."""
    return [each for each, of in graph.items() if name in of.inputs]


def merge_inputs(graphs: Mapping[str, Graph]) -> dict[str, set[str]]:
    """Return all stages by name, each with its inputs in all graphs together."""
    merged: dict[str, set[str]] = {}
    for graph in graphs.values():
        for name, each in graph.items():
            merged.setdefault(name, set()).update(each.inputs)
    return merged


def sort_stages(inputs: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """Return stages so that each is after its inputs, and the stages that wait for themselves."""
    order: list[str] = []
    waiting = dict(inputs)
    while free := [name for name, befores in waiting.items() if set(befores) <= set(order)]:
        for name in free:
            order.append(name)
            del waiting[name]
    return order, sorted(waiting)


def bind_stages(graphs: Mapping[str, Graph], edges: str) -> tuple[dict[str, Any], dict[str, Rule]]:
    """Bind the stages of pipelines, each once; returns the nodes that the ingress calls, by name.

    A query leaves a stage for the next stages of its own pipeline. REQUIRES: a stage of one name
    is the same stage in all graphs, and is after the same inputs if it is a join.

    graphs:  by the names of their pipelines; "" for a pipeline that is the whole application.
    edges:   "worlds"; with "serve" the ingress calls all stages.

    Returns: also the rules of those among the nodes that have one.
    Raises:  ValueError for a stage that is to park its replicas with edges="serve".
    """
    stages = {name: each for graph in graphs.values() for name, each in graph.items()}
    check_parking(stages, edges)
    keys = find_keys(stages)
    nodes: dict[str, Any] = {}
    order, _ = sort_stages(merge_inputs(graphs))
    for name in reversed(order):
        following = {
            pipeline: tuple(consumers(graph, name)) if edges == "worlds" else ()
            for pipeline, graph in graphs.items()
            if name in graph
        }
        downstream = {each: nodes[each] for names in following.values() for each in names}
        # The ingress chooses the replicas of a join, and its senders need no rule.
        chosen = {
            each: keys[each] for each in downstream if each in keys and len(stages[each].inputs) < 2
        }
        nodes[name] = deployment(stages[name], name, downstream, chosen, following)
    called = {
        name
        for graph in graphs.values()
        for name, each in graph.items()
        if edges == "serve" or len(each.inputs) != 1
    }
    shown = {name: node for name, node in nodes.items() if name in called}
    return shown, {name: keys[name] for name in shown if name in keys}
