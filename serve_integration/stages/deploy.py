"""A stage as a node of a Serve application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from hoplite_ray.serve.routing.keys import KeyRule, NearRule, Rule
from hoplite_ray.serve.routing.router import ROUTER
from hoplite_ray.serve.stages.declare import AnyStage
from hoplite_ray.serve.stages.options import misfit
from hoplite_ray.serve.stages.replica import Replica

_HEALTH_CHECK_PERIOD_S = 1.0  # a dead replica is replaced after 5 s; after 18 s with Serve's own


def find_keys(stages: Mapping[str, AnyStage]) -> dict[str, Rule]:
    """Return the rules of the stages with `key` or `near`, by name, as their senders know them."""
    rules: dict[str, Rule] = {}
    for name, each in stages.items():
        if each.key is not None:
            rules[name] = KeyRule(name, each.key, each.max_batch)
        elif each.near is not None:
            rules[name] = NearRule(name, each.max_batch)
    return rules


def deployment(
    stage: AnyStage,
    name: str,
    downstream: Mapping[str, Any],
    keys: Mapping[str, Rule] | None = None,
    next_stages: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Return a stage as a node of a Serve application.

    downstream:   by name, the nodes of the stages that get its answers.
    keys:         the rules of those among them whose replicas are chosen here.
    next_stages:  the names of those that get them, by pipeline; None: all, in the only pipeline.

    Raises:  TypeError if its class does not take the arguments of `bind`, or its `__call__` does
             not take the lists that it gets.
    """
    what = stage.user_class.__name__
    if why := misfit(stage.user_class, *stage.arguments[0], **stage.arguments[1]):
        raise TypeError(f"stage {name}: {what}.bind(...) lacks or has too much: {why}")
    inputs = stage.inputs if len(stage.inputs) > 1 else ()
    lists: tuple[Any, ...] = () if inputs else ([],)
    if why := misfit(stage.user_class.__call__, None, *lists, **dict.fromkeys(inputs)):
        wanted = (
            f"one list for each input, as keywords: {', '.join(inputs)}" if inputs else "a list"
        )
        raise TypeError(f"stage {name}: {what}.__call__ is to take {wanted}; {why}")
    options: dict[str, Any] = {
        "max_ongoing_requests": max(100, 4 * stage.max_batch),
        "health_check_period_s": _HEALTH_CHECK_PERIOD_S,
        **stage.serve_options,
        "name": name,
        "request_router_config": RequestRouterConfig(
            request_router_class=ROUTER  # type: ignore[arg-type]
        ),
    }
    return serve.deployment(**options)(Replica).bind(
        stage, name, dict(downstream), dict(keys or {}), next_stages
    )
