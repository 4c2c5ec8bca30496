"""An autoscaling policy of Ray Serve that asks for replicas ahead of the queries.

    options = {"latency_s": 0.2, "capacity_per_s": 37.5, "service_s": 0.08}  # JSON
    policy = AutoscalingPolicy(policy_function=Ahead, policy_kwargs=options)

It reads Serve's context for the pure `Decider` of ahead.py, for any deployment. It does better for
one whose `record_autoscaling_stats` returns ARRIVALS, BACKLOG_S, LATE and SERVED, as that of each
stage does. scaling.py makes the whole configuration, with the delays and intervals that it needs.

Serve pickles this module by value and its imports by reference. An import that the controller lacks
stops the scaling of all applications, so the modules of this room that it needs go by value, too.
They import the standard library only, and Ray within functions.

Source: docs/internals/decisions/0035-scaling-ahead.md.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray import cloudpickle

from hoplite_ray.serve.slo import ahead, rates
from hoplite_ray.serve.slo.ahead import NO_DATA, PARTS, Decider, Decision, Goal, Look

ARRIVALS = "hoplite_arrivals"  # queries that came to a replica since it started
BACKLOG_S = "hoplite_backlog_s"  # seconds of work that wait at it
LATE = "hoplite_late"  # answers after their deadlines since it started
PARKED = "hoplite_parked"  # 1 for a replica that is ready and gets no queries yet
SERVED = "hoplite_served"  # all answers since it started

# The attribute of `sys` that keeps the state of each deployment. Its number is raised when a part
# has other attributes.
MEMORY = "hoplite_ray_ahead_1"
MEMORY_MAX_S = 120.0  # older state is forgotten, because its rates say nothing any more

SILENT_S = 5.0  # age of the newest report from which the target is left alone
WAIT_S = 1.5  # for the reports of slow replicas; their arrivals are counted later
COMPLAIN_S = 60.0  # between two lines in the log

NO_REPORTS = "no reports"  # the reason of a decision without a fresh one
RELEASED = "hoplite_released"  # the notice's key is RELEASED/APPLICATION#DEPLOYMENT
NAMESPACE = b"hoplite"  # of that key in Ray's key-value store
NOTICE_S = 1.0  # between two notices of the same; parked replicas hear none for 10 s, and act
PUT_S = 0.5  # for Ray's key-value store to take a notice, because Serve's controller waits for it

# The controller can't import the table of all metrics, serve/metrics.py; a test compares the two.
GAUGES = {  # by the field of a decision: the name that Ray gets, and what it means
    "rate_per_s": (
        "hoplite_serve_arrivals_per_s",
        "queries that come, as the policy of `scale_ahead` sees them",
    ),
    "ahead_per_s": (
        "hoplite_serve_forecast_per_s",
        "queries that it expects when a replica that is ordered at once answers",
    ),
}
SHOW_S = 1.0  # between two values of a gauge; Prometheus reads one in several seconds


class Reports:
    """The measurements of a deployment, at times of this process's clock."""

    def __init__(self) -> None:
        # Replica -> its own time, that time here, the difference, and its totals.
        self.known: dict[str, tuple[float, float, float, list[float]]] = {}
        self.ongoing: tuple[float, float] | None = None  # (when, queries)
        self.parked: list[str] = []  # the oldest first

    def read(self, now_s: float, raw: Mapping[str, Mapping[Any, Any]]) -> dict[str, Any]:
        """Return the fields of a `Look` that reports fill; none without a fresh report.

        A replica's clock may differ from ours. The least difference that was seen is taken for the
        clocks', and what exceeds it for the report's way.
        """
        known, spans, changes, backlog_s = {}, [], [0.0, 0.0, 0.0], 0.0
        self.ongoing = None
        for replica, series in raw[ARRIVALS].items():
            if not series:
                continue
            key, stamp_s = _name(replica), series[-1].timestamp
            totals = [_read_last(raw, name, replica) for name in (ARRIVALS, SERVED, LATE)]
            before = self.known.get(key)
            if before is None or stamp_s < before[0] - 1 or totals[0] < before[3][0]:
                # The replica is new here, or its clock has changed.
                first_s, shift_s = series[0].timestamp, now_s - stamp_s
                before = first_s, first_s + shift_s, shift_s, [series[0].value, *totals[1:]]
            shift_s = min(before[2], now_s - stamp_s)
            at_s = max(before[1] + 0.001 * (stamp_s > before[0]), stamp_s + shift_s)
            known[key] = stamp_s, at_s, shift_s, totals
            if at_s > before[1]:
                spans.append((before[1], at_s, totals[0] - before[3][0]))
            changes = [a + b - c for a, b, c in zip(changes, totals, before[3], strict=True)]
            backlog_s += _read_last(raw, BACKLOG_S, replica)
        self.known = known
        fresh = [at_s for _, at_s, _, _ in known.values() if at_s > now_s - SILENT_S]
        if not fresh:
            return {}
        fields = {"until_s": max(min(fresh), now_s - WAIT_S), "spans": spans}
        served, late = max(changes[1], 0.0), max(changes[2], 0.0)
        return {**fields, "backlog_s": backlog_s, "served": served, "late": late}

    def infer(self, now_s: float, queries: float, running: int, goal: Goal) -> dict[str, Any]:
        """Return the fields of a `Look` by the ongoing queries alone.

        The queries that came are those that left, and the growth since the last look. A query
        leaves `service_s` after it got a place, and a replica has capacity x service places.
        """
        places = running * goal.capacity_per_s * goal.service_s
        since_s, before = self.ongoing or (now_s, queries)
        self.ongoing = now_s, queries
        came = queries - before + min(queries, places) / goal.service_s * (now_s - since_s)
        spans = [(since_s, now_s, came)] if now_s > since_s else []
        backlog_s = max(queries - places, 0.0) / goal.capacity_per_s
        return {"until_s": now_s, "spans": spans, "backlog_s": backlog_s}

    def sort_replicas(
        self, raw: Mapping[str, Mapping[Any, Any]], running: int
    ) -> tuple[int, list[str]]:
        """Return how many replicas answer queries, and those that are parked, the oldest first.

        A replica that reports other numbers only is of a version ahead of an update, and answers
        queries. A parked one whose reports have ended comes last, because it may hang.

        running: replicas that run by Serve, parked or not.
        """
        reported = {each: series for each, series in (raw.get(PARKED) or {}).items() if series}
        if not reported:
            self.parked = []
            return running, []
        newest_s = max(series[-1].timestamp for series in reported.values())
        parked = {
            _name(each): series[-1].timestamp < newest_s - SILENT_S
            for each, series in reported.items()
            if series[-1].value
        }
        known = [each for each in self.parked if each in parked]
        self.parked = known + sorted(each for each in parked if each not in known)
        others = sum(each not in reported for each in raw.get(ARRIVALS) or {})
        active = len(reported) - len(parked) + others
        return active, sorted(self.parked, key=lambda each: parked[each])


def _name(replica: Any) -> str:
    """Return a replica's id, by which it knows itself."""
    return str(getattr(replica, "unique_id", replica))


def _read_last(raw: Mapping[str, Mapping[Any, Any]], name: str, replica: Any) -> float:
    """Return the newest value of a replica's number; 0 if it does not report it."""
    series = raw.get(name, {}).get(replica)
    return float(series[-1].value) if series else 0.0


def make_goal(options: Mapping[str, Any], concurrency: float) -> Goal:
    """Return the goal that the options of `Ahead` describe.

    concurrency: queries that a replica is to have at once (`target_ongoing_requests`).

    Raises:  TypeError for a name that is no option; ValueError for a value that it can't have.
    """
    known = [each.name for each in dataclasses.fields(Goal)]
    if unknown := sorted(options.keys() - {*known}):
        raise TypeError(f"{unknown[0]} is no option of scale_ahead; there are {', '.join(known)}")
    given = {"latency_s": 0.2, **{key: each for key, each in options.items() if each is not None}}
    given.setdefault("service_s", given["latency_s"] / 4)
    given.setdefault("capacity_per_s", concurrency / (given["service_s"] or 1.0))
    return Goal(**given)


class Ahead:
    """The policy as Serve calls it, ten times a second for each deployment.

    Its options are the fields of `Goal`. `latency_s` is 0.2 if left out. Without `capacity_per_s`,
    a replica is taken to answer `target_ongoing_requests` queries at once, each in `service_s`,
    which is a quarter of the latency if left out. Then it scales by ongoing queries, as Serve does.

    Serve makes the object anew in each `serve.run`, and the module's globals with it, because it
    unpickles the module. `sys` is pickled by reference, so an attribute of `sys` lives as long as
    the controller's process. The state is there, as numbers that other releases can read.
    """

    def __init__(self, **options: Any) -> None:
        self.clock = time.monotonic
        self._options = options
        self._name = ""  # of the application and the deployment, once they are known
        self._decider: Decider | None = None
        self._reports = Reports()
        self._memory: dict[str, Any] = {}
        self._released: Sequence[str] = ()
        self._written_s = self._shown_s = self._complained_s = -math.inf
        self._gauges: dict[str, Any] = {}  # by the fields of GAUGES

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas for a context of Serve, and the reasons as policy state.

        After any error it is the number that there shall be already, because Serve decides for no
        application while one policy raises. The error is logged, once a minute at most.
        """
        try:
            decision = self._decide(ctx)
            if decision.why != NO_REPORTS:  # then parked replicas are to release themselves
                self._write_notice(decision.released)
                self._show_rates(decision, ctx.app_name, ctx.deployment_name)
            return decision.replicas, {MEMORY: vars(decision)}
        except Exception as error:
            self._complain("leaves %s at its target", error)
            return ctx.target_num_replicas, {}

    def _decide(self, ctx: Any) -> Decision:
        self._name = f"{ctx.app_name}#{ctx.deployment_name}"
        now_s, raw, target = self.clock(), ctx.raw_metrics or {}, ctx.target_num_replicas
        if self._decider is None:
            goal = make_goal(self._options, ctx.config.get_target_ongoing_requests())
            self._decider = Decider(goal)
            self._recall(self._decider)
        self._memory["at_s"] = now_s
        running, parked = self._reports.sort_replicas(raw, ctx.current_num_replicas)
        if self._options.get("capacity_per_s") and raw.get(ARRIVALS):
            fields = self._reports.read(now_s, raw)
        else:
            queries = float(ctx.total_num_requests)
            fields = self._reports.infer(now_s, queries, running, self._decider.goal)
        if not fields:
            return Decision(target, NO_REPORTS, target)
        least, most = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
        look = Look(now_s, running, target, least, most, **fields, parked=parked)
        return self._decider.decide(look)

    def _write_notice(self, released: Sequence[str]) -> None:
        """Write the ids of the replicas that are released, which parked ones look for.

        Where there may be parked replicas, there is a notice every second, and for each change.
        """
        now_s = self.clock()
        if not (self._options.get("prepared") or self._reports.parked):
            return
        if released == self._released and now_s < self._written_s + NOTICE_S:
            return
        self._released, self._written_s = released, now_s
        notice = {"at": time.time_ns(), "replicas": released}  # no two notices are of one time
        try:
            from ray.experimental import internal_kv

            store: Any = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]
            key, text = f"{RELEASED}/{self._name}".encode(), json.dumps(notice).encode()
            store.internal_kv_put(key, text, overwrite=True, namespace=NAMESPACE, timeout=PUT_S)
        except Exception as error:  # the number of replicas is decided all the same
            self._complain("can't release parked replicas of %s", error)

    def _show_rates(self, decision: Decision, application: str, deployment: str) -> None:
        """Give the rate that comes, and the one that is expected, to Ray's metrics."""
        now_s = self.clock()
        if decision.why == NO_DATA or now_s < self._shown_s + SHOW_S:
            return
        self._shown_s = now_s
        try:
            from ray.util.metrics import Gauge

            tags = {"application": application, "deployment": deployment}
            for field, (name, meaning) in GAUGES.items():
                if field not in self._gauges:
                    self._gauges[field] = Gauge(name, meaning, tuple(tags))
                self._gauges[field].set(getattr(decision, field), tags)
        except Exception as error:  # the number of replicas is decided all the same
            self._complain("can't show the rates of %s", error)

    def _complain(self, what: str, error: Exception) -> None:
        """Log an error, if none has been in the last minute."""
        if time.monotonic() > self._complained_s + COMPLAIN_S:
            self._complained_s = time.monotonic()
            text = f"hoplite_ray's policy {what}, because it failed: %r"
            logging.getLogger("ray.serve").error(text, self._name or "a deployment", error)

    def _recall(self, decider: Decider) -> None:
        """Take over the state of the deployment's last policy, and keep ours in its place."""
        now_s = self.clock()
        memories: dict[str, dict[str, Any]] = sys.__dict__.setdefault(MEMORY, {})
        for old in [key for key, each in memories.items() if each["at_s"] < now_s - MEMORY_MAX_S]:
            del memories[old]
        # The live attributes of each part, which are numbers in lists and dicts.
        parts = {name: vars(getattr(decider, name)) for name in PARTS}
        parts["reports"] = vars(self._reports)
        last = memories.get(self._name)
        memories[self._name] = self._memory = {"at_s": now_s, "parts": parts}
        if last is not None:
            for name, part in parts.items():
                part.update(last["parts"].get(name, {}))  # of an older release: none


# Serve registers this module itself when it pickles the policy, and takes it away afterwards. It
# does so again in processes that read the policy's name from a file.
for _module in (ahead, rates):
    cloudpickle.register_pickle_by_value(_module)  # type: ignore[no-untyped-call]
