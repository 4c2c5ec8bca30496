"""Arrivals of many shapes, and policies of scaling: ours, Ray Serve's own, and an oracle.

Pure, like surge_stage.py, which runs them: randomness comes as seeds.

    arrivals = draw_arrivals(ramp(70, 130, begins_s=60, lasts_s=10), seconds=120, seed=1)
    serve_policy = QueuePolicy(target_ongoing=2.0, least=1, most=20)
    best = find_oracle(arrivals, model, latency_s=0.2, miss=0.01, start_s=3.0)
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from surge_stage import Model, Outcome, Sight, simulate

from hoplite_ray.serve.slo.ahead import Decider, Goal, Look

Rate = Callable[[float], float]


def draw_arrivals(rate: Rate, *, seconds: float, seed: int, variance: float = 1.0) -> list[float]:
    """Return when queries come at a rate that changes.

    rate:      queries per second at a time, at least 0.
    variance:  of a gap, over its mean squared: 1 is Poisson, 4 comes in clumps, 0.25 is regular.
    """
    draw = random.Random(seed)
    shape = 1 / variance
    arrivals: list[float] = []
    at_s, step_s = 0.0, 0.01
    gap = draw.gammavariate(shape, variance)  # in expected queries
    while at_s < seconds:
        share = rate(at_s) * step_s
        used = 0.0
        while gap <= share - used:
            used += gap
            arrivals.append(at_s + step_s * used / share)
            gap = draw.gammavariate(shape, variance)
        gap -= share - used
        at_s += step_s
    return arrivals


def ramp(low: float, high: float, *, begins_s: float, lasts_s: float) -> Rate:
    """Return a rate that goes from `low` to `high`; `lasts_s=0` is a step."""

    def rate(at_s: float) -> float:
        if at_s < begins_s:
            return low
        return low + (high - low) * min((at_s - begins_s) / max(lasts_s, 1e-9), 1.0)

    return rate


def sine(mean: float, share: float, period_s: float) -> Rate:
    """Return a rate that swings by a share of its mean."""
    return lambda at_s: mean * (1 + share * math.sin(2 * math.pi * at_s / period_s))


def jumps(rates: Sequence[float], dwells_s: Sequence[float], seed: int) -> Rate:
    """Return a rate that jumps from one value to the next after random times (an MMPP).

    dwells_s:  mean seconds at each rate.
    """
    draw = random.Random(seed)
    begins, values = [0.0], [rates[0]]
    while begins[-1] < 3600:
        state = len(values) - 1
        begins.append(begins[-1] + draw.expovariate(1 / dwells_s[state % len(rates)]))
        values.append(rates[(state + 1) % len(rates)])
    return lambda at_s: values[bisect.bisect_right(begins, at_s) - 1]


def surges(base: float, seed: int, *, every_s: float = 45.0) -> Rate:
    """Return a rate with surges at random times, of random height, rise and length.

    A surge adds 0.3 to 0.9 times the base within 8 to 16 s, stays for 5 to 30 s, and falls in 5 to
    20 s. The paper's surge, from 70 to 130 in some 10 s, adds 0.86 times its base.
    """
    draw = random.Random(seed)
    corners: list[tuple[float, float]] = [(0.0, 0.0)]  # (when, added), linear between
    at_s = 20.0
    while at_s < 3600:
        height = base * draw.uniform(0.3, 0.9)
        corners.append((at_s, 0.0))
        for added, lasts in ((height, (8, 16)), (height, (5, 30)), (0.0, (5, 20))):
            at_s += draw.uniform(*lasts)
            corners.append((at_s, added))
        at_s += draw.expovariate(1 / every_s)
    times = [when for when, _ in corners]

    def rate(at_s: float) -> float:
        index = min(bisect.bisect_right(times, at_s), len(corners) - 1)
        (since_s, before), (until_s, after) = corners[index - 1], corners[index]
        share = (at_s - since_s) / (until_s - since_s) if until_s > since_s else 1.0
        return base + before + (after - before) * share

    return rate


class Fixed:
    """A policy that always wants as many."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide(self, sight: Sight) -> int:
        """Return the number."""
        return self._replicas


class AheadPolicy:
    """Our policy, as the adapter drives it."""

    def __init__(self, goal: Goal, *, least: int, most: int) -> None:
        self.decider = Decider(goal)
        self._bounds = least, most
        self._seen = 0.0, 0, 0, 0

    def decide(self, sight: Sight) -> int:
        """Give the decider the counts since the last report."""
        report = sight.report
        since_s, arrivals, served, late = self._seen
        spans = []
        if report.at_s > since_s:
            spans = [(since_s, report.at_s, float(report.arrivals - arrivals))]
            self._seen = report.at_s, report.arrivals, report.served, report.late
        else:
            served, late = report.served, report.late
        least, most = self._bounds
        prepared = self.decider.goal.prepared
        look = Look(
            now_s=sight.now_s,
            until_s=report.at_s,
            spans=spans,
            backlog_s=report.backlog_s,
            running=sight.running,
            target=sight.target + prepared,
            least=least,
            most=most,
            served=report.served - served,
            late=report.late - late,
            parked=[f"replica {number}" for number in range(sight.parked)],
        )
        self.decision = self.decider.decide(look)
        return self.decision.replicas - prepared


class QueuePolicy:
    """Serve 2.60's own policy: replicas by the mean of ongoing queries, and delays around it.

    A test compares it with Serve's functions. The defaults are Serve's.
    """

    def __init__(
        self,
        *,
        target_ongoing: float = 2.0,
        least: int,
        most: int,
        up_delay_s: float = 30.0,
        down_delay_s: float = 600.0,
        look_back_s: float = 30.0,
        report_s: float = 10.0,
    ) -> None:
        self._target_ongoing = target_ongoing
        self._bounds = least, most
        self._up_delay_s, self._down_delay_s = up_delay_s, down_delay_s
        self._look_back_s, self._report_s = look_back_s, report_s
        self._record_s = min(look_back_s * 0.2, report_s)
        self._recorded: list[tuple[float, int]] = []
        self._pushed: list[tuple[float, int]] = []
        self._pushed_s = -math.inf
        self._wanted_since: tuple[int, float] | None = None  # (direction, when)

    def decide(self, sight: Sight) -> int:
        """Return the number of replicas, as Serve does every 0.1 s."""
        now_s = sight.now_s
        if not self._recorded or now_s >= self._recorded[-1][0] + self._record_s - 1e-6:
            self._recorded.append((now_s, sight.ongoing))
        if now_s >= self._pushed_s + self._report_s - 1e-6:
            self._pushed_s = now_s
            oldest_s = now_s - self._look_back_s
            self._recorded = [each for each in self._recorded if each[0] > oldest_s]
            self._pushed = list(self._recorded)
        least, most = self._bounds
        wanted = sight.target
        if sight.running:
            error = self.mean(now_s) / (self._target_ongoing * sight.running)
            wanted = math.ceil(sight.running + (sight.running * error - sight.running))
        return min(max(self.delay(wanted, sight.target, now_s), least), most)

    def mean(self, now_s: float) -> float:
        """Return the mean over time of what was pushed; its last value lasts until now."""
        points = [*self._pushed, (max(now_s, self._pushed[-1][0] + 1e-3), 0)]
        area = sum(value * (until - since) for (since, value), (until, _) in pairwise(points))
        return area / (points[-1][0] - points[0][0])

    def delay(self, wanted: int, target: int, now_s: float) -> int:
        """Return the wanted number once it was on the same side of the target for the delay."""
        if wanted == target:
            self._wanted_since = None
            return target
        direction = 1 if wanted > target else -1
        if self._wanted_since is None or self._wanted_since[0] != direction:
            self._wanted_since = direction, now_s
        delay_s = self._up_delay_s if direction > 0 else self._down_delay_s
        if now_s - self._wanted_since[1] + 1e-6 < delay_s:
            return target
        self._wanted_since = None
        return wanted if direction > 0 else max(wanted, 1)


class Scheduled:
    """A policy that follows a schedule: (when, replicas), the earliest first."""

    def __init__(self, schedule: Sequence[tuple[float, int]]) -> None:
        self._schedule = list(schedule)
        self._next = 0
        self.initial = self._schedule[0][1]  # replicas at time 0

    def decide(self, sight: Sight) -> int:
        """Return the number of the schedule's last entry that has begun."""
        while self._next < len(self._schedule) and self._schedule[self._next][0] <= sight.now_s:
            self._next += 1
        return self._schedule[max(self._next - 1, 0)][1]


def plan_oracle(
    arrivals: Sequence[float], model: Model, *, slack_s: float, start_s: float, step_s: float = 0.5
) -> Scheduled:
    """Return the schedule of an oracle that knows all arrivals, and pays for starts.

    It has as many replicas as can answer the queries of every window of up to 8 s within the
    window and `slack_s`. A replica is ordered `start_s` ahead, and is kept through a gap that is
    no longer than a start, because ending it would cost more.

    slack_s:   the largest with which misses stay within the goal makes the cheapest oracle.
    """
    steps = math.ceil(arrivals[-1] / step_s) + 1
    needs = [1] * steps
    for window_s in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        for number in range(2 * steps):
            since_s = number * step_s / 2
            count = bisect.bisect_left(arrivals, since_s + window_s) - bisect.bisect_left(
                arrivals, since_s
            )
            need = math.ceil(count / (model.capacity_per_s * (window_s + slack_s)))
            for step in range(
                math.floor(since_s / step_s), math.floor((since_s + window_s) / step_s) + 1
            ):
                if step < steps:
                    needs[step] = max(needs[step], need)
    return Scheduled(_order_ahead(needs, start_s, step_s))


def _order_ahead(needs: Sequence[int], start_s: float, step_s: float) -> list[tuple[float, int]]:
    """Return the schedule of orders by which so many replicas run at each step."""
    changes: dict[int, int] = {}  # step -> by how many the target changes
    lead = math.ceil(start_s / step_s)
    for level in range(1, max(needs) + 1):
        spans: list[list[int]] = []  # [first, last) step at which this replica runs
        for step, need in enumerate(needs):
            if need < level:
                continue
            if spans and step - spans[-1][1] <= lead:
                spans[-1][1] = step + 1
            else:
                spans.append([step, step + 1])
        for first, last in spans:
            ordered = max(first - lead, 0)
            changes[ordered] = changes.get(ordered, 0) + 1
            changes[last] = changes.get(last, 0) - 1
    schedule, total = [], 0
    for step in sorted(changes):
        total += changes[step]
        schedule.append((step * step_s, total))
    return schedule


def find_oracle(
    arrivals: Sequence[float], model: Model, *, latency_s: float, miss: float, start_s: float
) -> Outcome:
    """Return the outcome of the cheapest oracle that misses no more than `miss`.

    Raises:  ValueError if even the most careful one misses more.
    """
    best: Outcome | None = None
    low_s, high_s = 0.0, latency_s
    for _ in range(5):
        slack_s = (low_s + high_s) / 2
        oracle = plan_oracle(arrivals, model, slack_s=slack_s, start_s=start_s)
        outcome = simulate(arrivals, model, oracle, start_s=start_s, initial=oracle.initial)
        if outcome.measure_misses(latency_s) > miss:
            high_s = slack_s
            continue
        low_s = slack_s
        if best is None or outcome.replica_s < best.replica_s:
            best = outcome
    if best is None:
        raise ValueError(f"no schedule of {model} keeps {latency_s} s; is a batch too long?")
    return best
