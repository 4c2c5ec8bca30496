"""The metrics of stages and ingresses, by Serve's own metrics: one table.

Serve adds the labels of application, deployment and replica. Ray takes 20 us for each value, and a
query would wait for five of them at each stage. So an event loop defers values, and a later turn
gives them to Ray. Source: Vortex 6.3, for the choice of metrics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ray.serve import metrics as of_serve

from hoplite_ray.metrics.dashboards import Metric

_APPLICATION = ("application",)
_OF = ("application", "deployment")
_PIPELINE = ("application", "pipeline")  # "" if the application is one pipeline, or an ensemble
_TIMES_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)  # of a query's limit, to see how close answers come to it
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# The metrics of each panel.
PANELS: dict[str, tuple[Metric, ...]] = {
    "Queries": (
        Metric(
            "serve_queries",
            "counter",
            "ops",
            "by outcome: ok, partial (of an ensemble: some died, or were late), late, failed",
            (*_PIPELINE, "outcome"),
        ),
        Metric(
            "serve_late",
            "counter",
            "ops",
            "that a stage found to be late before they ran: dropped, or put behind all others",
            _OF,
        ),
        Metric(
            "serve_missed",
            "counter",
            "ops",
            "not answered within the promised latency",
            _PIPELINE,
        ),
        Metric(
            "serve_budget_queries",
            "counter",
            "ops",
            "of a stage with a budget, by whether its time was within it: kept, exceeded",
            (*_OF, "budget"),
        ),
    ),
    "From question to answer": (
        Metric("serve_query_ms", "histogram", "ms", "at the ingress", _PIPELINE),
    ),
    "Time at a stage": (
        Metric(
            "serve_stage_ms",
            "histogram",
            "ms",
            "by part: hop (from its sender, by both wall clocks), queue, compute",
            (*_OF, "part"),
        ),
    ),
    "Budget of a stage": (
        Metric(
            "serve_budget_ms",
            "gauge",
            "ms",
            "the stage's share of the promised latency, by its plan",
            _OF,
        ),
        Metric(
            "serve_spent_ms",
            "histogram",
            "ms",
            "of each batch's slowest query, from its arrival to the batch's end",
            _OF,
        ),
    ),
    "Forecast against arrivals": (
        Metric(
            "serve_arrivals_per_s",
            "gauge",
            "reqps",
            "queries that come, as the policy of `scale_ahead` sees them",
            _OF,
        ),
        Metric(
            "serve_forecast_per_s",
            "gauge",
            "reqps",
            "queries that it expects when a replica that is ordered at once answers",
            _OF,
        ),
    ),
    "Batches": (Metric("serve_batch_size", "histogram", "short", "queries in one call", _OF),),
    "Drift": (Metric("serve_drift", "gauge", "short", "time of batches, by the profile's", _OF),),
    "Edges": (
        Metric("serve_edges", "gauge", "short", "to replicas of `stage`", (*_OF, "stage")),
        Metric("serve_edges_broken", "counter", "ops", "whose peer died", (*_OF, "stage")),
        Metric("serve_replicas", "gauge", "short", "of `stage`, by Serve", (*_OF, "stage")),
    ),
    "Replicas parked and active": (
        Metric(
            "serve_parked", "gauge", "short", "replicas of `stage` that are parked", (*_OF, "stage")
        ),
        Metric("serve_active", "gauge", "short", "that get its queries", (*_OF, "stage")),
        Metric(
            "serve_releases",
            "counter",
            "ops",
            "parked replicas made active, by cause: policy, query (none was active), silence",
            (*_OF, "cause"),
        ),
    ),
    "Sent again": (
        Metric("serve_reissues", "counter", "ops", "queries whose replica died", (*_OF, "stage")),
    ),
    "Bytes over edges": (
        Metric("serve_edge_bytes", "counter", "Bps", "that were sent", _OF),
        Metric("serve_edge_gpu_bytes", "counter", "Bps", "that were sent from GPU to GPU", _OF),
        Metric("serve_stored_bytes", "counter", "Bps", "put into the store, sent by id", _OF),
    ),
    "Votes": (
        Metric(
            "serve_votes",
            "counter",
            "ops",
            "answers, by how many members were missing",
            (*_APPLICATION, "missing"),
        ),
    ),
}
METRICS = {metric.counter: metric for metrics in PANELS.values() for metric in metrics}

_OF_SERVE = {"application", "deployment", "replica"}  # labels that Serve sets
_FLUSH_S = 0.1  # how long a value is deferred; Ray exports values every few seconds
_VALUES_PER_TURN = 32  # values given to Ray in one turn of the event loop

_Deferred = tuple[Callable[..., None], float, Mapping[str, str]]
_waiting_values: deque[_Deferred] = deque()
_flushing_loop: asyncio.AbstractEventLoop | None = None  # the event loop that will call `_flush`


def count(name: str, more: float = 1, **tags: str) -> None:
    """Add to a counter; `tags` are the values of the metric's own tags."""
    _defer(_metric(name).inc, more, tags)


def set_gauge(name: str, value: float, **tags: str) -> None:
    """Set a gauge."""
    _defer(_metric(name).set, value, tags)


def observe(name: str, value: float, **tags: str) -> None:
    """Add one value to a histogram."""
    _defer(_metric(name).observe, value, tags)


def observe_query(took_s: float, *limits_s: float, pipeline: str = "") -> None:
    """Add one query's time to a histogram that has certain limits among its bounds.

    limits_s:  the promised latencies, or else the deadlines, of all pipelines of the ingress.
    """
    limits_ms = tuple(1000 * each for each in limits_s)
    tags = {"pipeline": pipeline}
    _defer(_metric("serve_query_ms", limits_ms).observe, took_s * 1000, tags)


def observe_spent(spent_s: Sequence[float], budget_s: float) -> None:
    """Add a batch's queries, by their times at a stage that has a budget.

    The histogram gets the longest time alone, because Ray takes 20 us for each value.
    """
    exceeded = sum(each > budget_s for each in spent_s)
    for budget, more in (("kept", len(spent_s) - exceeded), ("exceeded", exceeded)):
        if more:
            count("serve_budget_queries", more, budget=budget)
    limits_ms = (1000 * budget_s,)
    _defer(_metric("serve_spent_ms", limits_ms).observe, 1000 * max(spent_s), {})


def _defer(record: Callable[..., None], value: float, tags: Mapping[str, str]) -> None:
    """Give a value to Ray later, or at once outside of an event loop."""
    global _flushing_loop
    loop = asyncio._get_running_loop()
    if loop is None:
        record(value, tags)
        return
    _waiting_values.append((record, value, tags))
    if _flushing_loop is not loop:  # the other loop has flushed all, or is closed
        _flushing_loop = loop
        loop.call_later(_FLUSH_S, _flush)


def _flush() -> None:
    global _flushing_loop
    for _ in range(_VALUES_PER_TURN):
        try:
            record, value, tags = _waiting_values.popleft()
        except IndexError:
            break
        record(value, tags)
    if _waiting_values:
        asyncio.get_running_loop().call_soon(_flush)
    else:
        _flushing_loop = None


@cache
def _metric(name: str, limits_ms: tuple[float, ...] = ()) -> Any:
    metric = METRICS[name]
    own: Any = tuple(tag for tag in metric.tags if tag not in _OF_SERVE)  # Ray says tuple[str]
    if metric.kind == "gauge":
        return of_serve.Gauge(metric.name, metric.meaning, own)
    if metric.kind == "counter":
        return of_serve.Counter(metric.name, metric.meaning, own)
    bounds = _SIZES if metric.unit == "short" else _TIMES_MS
    shares = (share * limit for limit in limits_ms for share in _SHARES)
    return of_serve.Histogram(metric.name, metric.meaning, sorted({*bounds, *shares}), own)
