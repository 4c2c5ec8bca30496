"""How many replicas a stage needs, ahead of its queries: the decisions, without a clock or Serve.

    decider = Decider(Goal(latency_s=0.2, capacity_per_s=37.5, service_s=0.08))
    decider.decide(look).replicas

Pure: times and measurements are arguments, and the same looks give the same decisions. policy.py
takes the looks from Serve. A decision is the most of four needs:

    rate      the rate that is seen, with a headroom for how unevenly queries come
    forecast  the rate at the time when a replica that is ordered at once answers
    (both times the factor that sudden rises of the last ten minutes have needed)
    backlog   the replicas that clear work within a start, if more waits than the latency allows
    late      more replicas than all that, if answers are late for another reason

Serve's controller gets this module by value (policy.py), so it imports the standard library and
modules that the controller gets in the same way.

Source: Vortex 5.3 (replicas are prepared on an early sign of a surge); InferLine;
docs/internals/decisions/0035-scaling-ahead.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hoplite_ray.serve.slo.rates import (
    BIN_S,
    RECENT_S,
    WINDOWS_S,
    Arrivals,
    Fit,
    Forecasts,
    fit_rate,
)

NO_DATA = "no data"  # the reason of a decision ahead of the first rate
# The parts of a Decider that have a state.
PARTS = ("arrivals", "starts", "forecasts", "holds", "lateness", "reserve")

NOISE_SHARE = 0.03  # of the misses that may be; surges that no forecast saw have the rest
BATCHES_UNUSED = 1.6  # batches of a latency for which no query can wait: the running one, its own
USABLE_MIN = 0.1  # of the slack, for latencies of hardly more than a batch
MARGIN = 2.0  # deviations of the rate by which it may be higher, so that noise ends no replica
STARTS_MAX = 8  # measured start times that are kept
START_MAX_S = 60.0  # a longer start is taken for a wait for resources
RESERVE_MAX = 600  # seconds from which the reserve is learnt
RESERVES = tuple(1 + 0.02 * step for step in range(51))  # factors that are tried
LATE_S = 5.0  # window of the share of late answers
LATE_STEP_S = 10.0  # time for which it must be too high, and between two steps: some three starts
LATE_MIN = 20  # answers in that window from which their share says something
LATE_HOLDS = 10  # holds after which half of the replicas that lateness added are ended


@dataclass(frozen=True)
class Goal:
    """The promise of a stage, and the figures of its plan."""

    latency_s: float  # a query's time at this stage, from arrival to answer
    capacity_per_s: float  # queries per second of a replica whose batches are full
    service_s: float  # seconds of a full batch
    miss: float = 0.01  # share of the queries that may take longer, above 0
    start_s: float = 3.0  # from a replica's order to its first answer, until that is measured
    hold_s: float = 60.0  # time for which all figures must agree before replicas are ended
    spare: int = 0  # replicas in addition, for surges that are steeper than a start is fast
    prepared: int = 0  # replicas in addition that are parked: started, but without queries
    forecast: bool = True  # False scales by the observed rate alone

    def __post_init__(self) -> None:
        for name in ("latency_s", "capacity_per_s", "service_s", "miss"):
            if not 0 < getattr(self, name) < (1 if name == "miss" else math.inf):
                what = "share below 1" if name == "miss" else "number"
                raise ValueError(f"{name}={getattr(self, name)!r} must be a {what}, and above 0")
        for name in ("start_s", "hold_s", "spare", "prepared"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a number, 0 or more")
        for name in ("spare", "prepared"):
            if getattr(self, name) % 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a whole number")

    @property
    def slack_s(self) -> float:
        """Seconds until a query's own batch must begin; half a batch if there is no time."""
        return max(self.latency_s - self.service_s, self.service_s / 2)

    def count_replicas(self, rate_per_s: float, dispersion: float = 1.0) -> float:
        """Return how many replicas a constant rate needs, as a fraction.

        Waiting work drifts by the headroom d = n - rho, and spreads by the variance of arrivals.
        So P(wait > s) = exp(-2 d n mu s / (I rho)), with I the dispersion. Solved for n it is
        (rho + sqrt(rho^2 + 4 K rho)) / 2 with K = ln(1/miss) I / (2 mu s): square-root staffing
        for few replicas, and K more for many. A fixed share fits one number of replicas only.

        s is `slack_s`, or less of it the fewer batches it has, because a query waits for whole
        ones. How much less was fitted to simulated stages.
        """
        load = rate_per_s / self.capacity_per_s
        batches = self.latency_s / self.service_s
        usable = min(max((batches - BATCHES_UNUSED) / 2, USABLE_MIN), 1.0)
        chance = math.log(1 / (NOISE_SHARE * self.miss)) / 2
        spread = chance * dispersion / (self.capacity_per_s * self.slack_s * usable)
        return (load + math.sqrt(load * load + 4 * spread * load)) / 2


@dataclass(frozen=True)
class Look:
    """One look at a deployment."""

    now_s: float  # of any clock that does not jump
    running: int  # replicas that answer queries
    target: int  # replicas that there shall be by the last decision, parked ones included
    least: int
    most: int  # bounds of the answer
    until_s: float  # the arrivals are complete until this time
    spans: Sequence[tuple[float, float, float]]  # (since, until, queries) that had not been told
    backlog_s: float  # seconds of one replica's work that wait, summed over replicas
    served: float = 0.0  # answers since the last look
    late: float = 0.0  # those of them that took too long
    parked: Sequence[str] = ()  # replicas that are ready and get no queries, the oldest first


@dataclass(frozen=True)
class Decision:
    """An answer, and its reasons."""

    replicas: int  # that there shall be, parked ones included
    why: str  # rate, forecast, fallback, backlog, late, hold, no data, or no reports
    wanted: int  # replicas of these that shall answer queries
    released: Sequence[str] = ()  # parked replicas that shall answer queries from now on
    rate_per_s: float = 0.0  # as observed
    ahead_per_s: float = 0.0  # as expected when a replica that is ordered at once answers
    start_s: float = 0.0  # as measured


class Starts:
    """The time that a replica takes to start, learnt from orders and the replicas that came.

    Parked replicas count on both sides. So a release is no start, though a replica answers after
    it that has not before.
    """

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.orders: list[tuple[float, int]] = []  # (when, replicas that there shall be then)
        self.target: int | None = None

    def watch(self, now_s: float, started: int, target: int) -> None:
        """Learn from the replicas that have started, and from those that there shall be."""
        if self.target is not None and target > self.target:
            self.orders.append((now_s, target))
        self.target = target
        done = [now_s - when_s for when_s, count in self.orders if count <= started]
        self.orders = [order for order in self.orders if started < order[1] <= target]
        self.took_s = [*self.took_s, *(min(each, START_MAX_S) for each in done)][-STARTS_MAX:]

    def estimate_s(self, default_s: float) -> float:
        """Return the time that a start takes: the second longest of those measured."""
        return (sorted(self.took_s) or [default_s])[-2:][0]


class Holds:
    """The replicas that were needed lately: none of them ends until all agree."""

    def __init__(self) -> None:
        self.needs: list[tuple[float, int]] = []  # falling numbers, with the last time of each

    def note(self, now_s: float, replicas: int) -> None:
        """Note that so many are needed at this time."""
        if not self.needs:  # the time ahead of the first look may have needed any number
            self.needs.append((now_s, sys.maxsize))
        while self.needs and self.needs[-1][1] <= replicas:
            self.needs.pop()
        self.needs.append((now_s, replicas))

    def find_most(self, now_s: float, hold_s: float) -> int:
        """Return the most that were needed in the last `hold_s`."""
        while len(self.needs) > 1 and self.needs[0][0] < now_s - hold_s:
            self.needs.pop(0)
        return self.needs[0][1]


class Reserve:
    """The factor by which sudden rises have needed more replicas than were planned.

    For each second it keeps how many replicas were planned a start ahead of it, without a reserve,
    and how many its queries then needed. The factor is the least one with which no more queries
    than may be late would have been, by a queue of these replicas and queries.
    """

    def __init__(self) -> None:
        self.open: list[tuple[float, int]] = []  # (for when, replicas)
        self.known: list[tuple[float, float]] = []  # (planned, needed) of each second
        self.factor = 1.0

    def note(self, due_s: float, planned: int) -> None:
        """Note how many replicas are planned for a time; at most once for each second."""
        if not self.open or due_s >= self.open[-1][0] + 1:
            self.open.append((due_s, planned))

    def check(self, arrivals: Arrivals, end: int, goal: Goal) -> None:
        """Learn from the seconds that are complete. Cost: 1 ms for each of them."""
        count = len(self.open)
        while self.open and self.open[0][0] + 0.5 <= end * BIN_S:
            due_s, planned = self.open.pop(0)
            counts = arrivals.list_counts(math.floor((due_s + 0.5) / BIN_S), 1.0)
            if counts:
                needed = sum(counts) / (len(counts) * BIN_S) / goal.capacity_per_s
                self.known = [*self.known, (planned, needed)][-RESERVE_MAX:]
        if len(self.open) < count:
            miss = (1 - NOISE_SHARE) * goal.miss
            self.factor = find_factor(self.known, goal.slack_s, miss)


def find_factor(known: Sequence[tuple[float, float]], slack_s: float, miss: float) -> float:
    """Return the least of RESERVES with which no more than a share would have been late.

    A query is late if the work ahead of it takes longer than the slack.

    known: (planned, needed) replicas of each second.
    """
    allowed = miss * sum(needed for _, needed in known)
    for factor in RESERVES:
        backlog = late = 0.0
        for planned, needed in known:
            backlog = max(backlog + needed - factor * planned, 0.0)
            if backlog > slack_s * factor * planned:
                late += needed
                if late > allowed:
                    break
        else:
            return factor
    return RESERVES[-1]


class Lateness:
    """The share of late answers, and the replicas that it has added."""

    def __init__(self) -> None:
        self.seconds: list[tuple[int, float, float]] = []  # (second, answers, late ones)
        self.extra = 0
        self.changed_s = -math.inf
        self.excess_s: float | None = None  # since when too many are late, with enough replicas

    def add(self, now_s: float, served: float, late: float) -> None:
        """Add answers."""
        second = math.floor(now_s)
        if self.seconds and self.seconds[-1][0] == second:
            _, before, before_late = self.seconds.pop()
            served, late = served + before, late + before_late
        self.seconds.append((second, served, late))
        while self.seconds[0][0] < second - LATE_S:
            self.seconds.pop(0)

    def exceeds(self, miss: float) -> bool:
        """Return True if more answers were late than may be, by more than chance."""
        served = sum(each[1] for each in self.seconds)
        late = sum(each[2] for each in self.seconds)
        return served >= LATE_MIN and late > miss * served + 3 * math.sqrt(miss * served)

    def step(self, look: Look, target: int, wanted: int, start_s: float, goal: Goal) -> None:
        """Add a replica if as many as are wanted answer late; after ten holds, end half of them.

        Lateness while replicas lack adds none, because the rate has asked for them. Work that waits
        when they have come is done within a start.

        target: replicas that shall answer queries by the last decision.
        wanted: replicas that all other figures need.
        """
        if look.running < wanted:
            self.seconds.clear()
        if target >= look.most or not self.exceeds(goal.miss):
            self.excess_s = None
        elif self.excess_s is None:
            self.excess_s = look.now_s
        elif look.now_s > max(self.excess_s, self.changed_s + start_s) + LATE_STEP_S:
            self.extra = max(self.extra, target - wanted) + 1
            self.changed_s, self.excess_s = look.now_s, None
        if self.extra and look.now_s > self.changed_s + LATE_HOLDS * goal.hold_s:
            self.extra, self.changed_s = self.extra // 2, look.now_s


class Decider:
    """The decisions about one deployment. It has no clock, and the same looks decide the same."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.arrivals = Arrivals()
        self.starts = Starts()
        self.forecasts = Forecasts()
        self.holds = Holds()
        self.lateness = Lateness()
        self.reserve = Reserve()
        self._planned = Holds()  # as `holds`, without the reserve
        self._end = 0  # the bin at which the rate was fitted last
        self._fit: Fit | None = None
        self._dispersion, self._peak_per_s = 1.0, 0.0  # of the arrivals of the last minute
        self._last: Decision | None = None

    def decide(self, look: Look) -> Decision:
        """Return how many replicas there shall be, and which parked ones answer from now on.

        Cost:    0.2 ms four times a second, some us otherwise.
        """
        target = self._recall_wanted(look)
        for span in look.spans:
            self.arrivals.add(*span)
        self.starts.watch(look.now_s, look.running + len(look.parked), look.target)
        self.lateness.add(look.now_s, look.served, look.late)
        self._see_rate(math.floor(look.until_s / BIN_S))
        start_s = self.starts.estimate_s(self.goal.start_s)
        if self._fit is None:
            wanted, why, level, ahead = target, NO_DATA, 0.0, 0.0
        else:
            level = self._fit.level_per_s
            wanted, why, ahead = self._want(look, self._fit, target, start_s)
        wanted = min(max(wanted, look.least), look.most)
        replicas = min(wanted + self.goal.prepared, look.most)
        released = tuple(look.parked[: max(wanted - look.running, 0)])
        self._last = Decision(replicas, why, wanted, released, level, ahead, start_s)
        return self._last

    def _recall_wanted(self, look: Look) -> int:
        """Return how many replicas shall answer queries by the last decision."""
        if self._last is not None and self._last.replicas == look.target:
            return self._last.wanted
        asked = max(look.target - self.goal.prepared, look.running)  # by Serve, or another policy
        return min(asked, look.target)

    def _see_rate(self, end: int) -> None:
        """Fit the rate anew if arrivals are complete up to another bin."""
        counts = self.arrivals.list_counts(end, WINDOWS_S[0]) if end != self._end else []
        if len(counts) * BIN_S >= RECENT_S[0]:
            self._end = end
            self._dispersion, self._peak_per_s = self.arrivals.measure_dispersion(end)
            self._fit = fit_rate(counts, self._dispersion)
            self.forecasts.check(self.arrivals, end)
            self.reserve.check(self.arrivals, end, self.goal)

    def _want(self, look: Look, fit: Fit, target: int, start_s: float) -> tuple[int, str, float]:
        """Return how many replicas shall answer queries, the reason, and the rate to come."""
        goal = self.goal
        ahead, why = self._look_ahead(fit, look.now_s, start_s)
        wanted = math.ceil(self._count(ahead) - 1e-9) + goal.spare
        self._planned.note(look.now_s, wanted)
        planned = self._planned.find_most(look.now_s, goal.hold_s)
        self.reserve.note(look.now_s + start_s, planned)
        wanted = math.ceil(wanted * self.reserve.factor - 1e-9)
        fast = self._clear_backlog(look, fit, start_s)
        if fast > wanted:
            wanted, why = fast, "backlog"
        self.lateness.step(look, target, wanted, start_s, goal)
        if self.lateness.extra:
            wanted, why = wanted + self.lateness.extra, "late"
        self.holds.note(look.now_s, max(wanted, self._count_needed(fit, target)))
        if wanted > target:
            return wanted, why, ahead
        held = min(self.holds.find_most(look.now_s, goal.hold_s), target)
        return held, why if held == wanted else "hold", ahead

    def _look_ahead(self, fit: Fit, now_s: float, start_s: float) -> tuple[float, str]:
        """Return the rate when a replica that is ordered at once answers, and its reason."""
        level = fit.level_per_s
        if fit.slope_per_s2 <= 0 or not self.goal.forecast:
            return level, "rate"
        ahead = fit.forecast(now_s - self._end * BIN_S + start_s)
        self.forecasts.note(now_s + start_s, ahead, level)
        if self.forecasts.are_good():
            return ahead, "forecast"
        return min(level + self.forecasts.estimate_rise(), ahead), "fallback"

    def _count(self, rate_per_s: float) -> float:
        """Return the replicas for a rate; never more than its peaks need without any dispersion."""
        needed = self.goal.count_replicas(rate_per_s, self._dispersion)
        return min(needed, self.goal.count_replicas(max(self._peak_per_s, rate_per_s)))

    def _count_needed(self, fit: Fit, target: int) -> int:
        """Return the replicas that may not end: for the rate, and all while answers are late."""
        margin = MARGIN * fit.error_per_s / self.goal.capacity_per_s
        needed = self._count(fit.level_per_s)
        stay = math.ceil(needed + margin) if needed else 0
        stay += self.goal.spare + self.lateness.extra
        return max(stay, target) if self.lateness.exceeds(self.goal.miss) else stay

    def _clear_backlog(self, look: Look, fit: Fit, start_s: float) -> int:
        """Return the replicas that clear the backlog within a start, if it exceeds the slack."""
        if look.backlog_s <= self.goal.slack_s * max(look.running, 1):
            return 0
        load = fit.level_per_s / self.goal.capacity_per_s
        then_s = look.backlog_s + (load - look.running) * start_s
        return math.ceil(load + max(then_s, 0.0) / max(start_s, 2 * self.goal.latency_s))
