"""The figures of serving.py: its records beside Serve's own handles and batches."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from figures import OURS, Figure

USUAL_S = 0.1  # before a kill: queries that are due earlier are answered before it
LATER_S_MAX = 0.1  # than usual, for a query whose replica was killed
LATE_SHARE_MAX = 0.01
HOP_S_MAX = {1_000: 0.3e-3, 1_000_000: 0.6e-3, 10_000_000: 2e-3}
SERVE = "Ray Serve"
EDGES = {"worlds": OURS, "serve": SERVE}
WAYS = {"edges": OURS, "value": f"{SERVE}, by value", "reference": f"{SERVE}, by reference"}

Record = Mapping[str, Any]


def figures(records: Sequence[Record]) -> Iterator[Figure]:
    """All figures of these records, case by case."""
    of: dict[str, list[Record]] = {}
    for record in records:
        of.setdefault(record["benchmark"].removeprefix("serving: "), []).append(record)
    for record in of.get("handoff", []):
        yield from _handoff(record)
    yield from _timelines(of.get("timeline", []))
    for record in of.get("batching", []):
        yield from _batching(record)
    for record in of.get("kills", []):
        yield from _kills(record)
    for record in of.get("ensemble", []):
        yield _ensemble(record)


def _handoff(record: Record) -> Iterator[Figure]:
    by = EDGES[record["edges"]]
    size = f"{record['size_bytes'] // 1_000:,} KB" + (" and back" if record["whole_answer"] else "")
    mode = "" if record["mode"] == "default" else ", Serve optimized for throughput"
    goal_s = HOP_S_MAX.get(record["size_bytes"]) if by == OURS else None
    rounds = tuple(each / 1e3 for each in record["taken_p50_ms_of_rounds"])
    cpu = (record["cpu_ms"] / 1e3,)
    hop = (record["hop_p50_ms"] / 1e3,)
    yield Figure(case=f"hop of {size}{mode}", by=by, unit="s", samples=hop, goal=goal_s)
    yield Figure(case=f"three stages, {size}{mode}", by=by, unit="s", samples=rounds)
    yield Figure(case=f"three stages, {size}{mode}: CPU for a query", by=by, unit="s", samples=cpu)


def _timelines(records: Sequence[Record]) -> Iterator[Figure]:
    """Return the cost of a death for the queries that it met."""
    of: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        of.setdefault((record["application"], record["edges"]), []).append(record)
    for (application, edges), trials in of.items():
        met: list[tuple[float, bool]] = []  # seconds later than usual, has failed
        for trial in trials:
            queries = trial["queries"]
            usual_ms = statistics.median(took for at_s, took, _, _ in queries if at_s < -USUAL_S)
            met += [
                ((took - usual_ms) / 1e3, failure is not None)
                for _, took, failure, held in queries
                if held
            ]
        case, by = f"{application}, one replica killed", EDGES[edges]
        failed = sum(has_failed for _, has_failed in met)
        share = (failed / len(met),) if met else ()
        none_met = None if met else "no query had begun on the dead replica"
        yield Figure(
            case=f"{case}: its queries that failed",
            by=by,
            unit="share",
            samples=share,
            goal=0.0 if by == OURS else None,
            failure=none_met,
        )
        later = tuple(seconds for seconds, has_failed in met if not has_failed)
        yield Figure(
            case=f"{case}: longest extra wait for an answer",
            by=by,
            unit="s",
            samples=(max(later),) if later else (),
            goal=LATER_S_MAX if by == OURS else None,
            failure=None if later else "no query was answered",
        )


def _batching(record: Record) -> Iterator[Figure]:
    is_ours = record["by"] == "stage"
    by = OURS if is_ours else "@serve.batch"
    case = f"{record['rate']:g} queries/s" + (", over HTTP" if record["from"] == "http" else "")
    late = (record["late_share"],)
    goal = LATE_SHARE_MAX if is_ours else None
    yield Figure(case=f"{case}: later than 200 ms", by=by, unit="share", samples=late, goal=goal)
    if record["p50_ms"] is not None:
        yield Figure(case=case, by=by, unit="s", samples=(record["p50_ms"] / 1e3,))


def _kills(record: Record) -> Iterator[Figure]:
    count, queries = sum(record["kills"].values()), record["queries"]
    case = f"{queries:,} queries while {count} replicas are killed"
    lost = (len(record["lost"]) + record["wrong"],)
    yield Figure(case=f"{case}: lost or wrong", unit="queries", samples=lost, goal=0)
    yield Figure(case=f"{case}: the longest", unit="s", samples=(record["most_ms"] / 1e3,))


def _ensemble(record: Record) -> Figure:
    size = f"{record['size_bytes'] // 1_000_000} MB"
    return Figure(
        case=f"ensemble of {record['members']}, {size}, a second",
        by=WAYS[record["way"]],
        unit="queries",
        samples=tuple(record["queries_per_s"]),
        bound=record["link_queries_per_s"],
        is_more_better=True,
    )
