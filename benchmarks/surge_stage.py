"""One stage under a changing rate, in virtual time: batches, starts of replicas, and a policy.

Pure: arrivals, times and the policy are arguments, and the same ones give the same outcome.
surges.py compares policies with it, and so do the tests.

    model = Model(fixed_s=0.05, each_s=0.01, cap=3)
    outcome = simulate(arrivals, model, policy, start_s=3.0, initial=3)
    outcome.measure_misses(0.2), outcome.replica_s

Each replica batches as a stage without a promised latency does, first in, first out
(serve_integration/stages/batching.py), and a query goes to the replica with the fewest queries, as
over edges. Reports are as old as those of Serve are with
`metrics_interval_s=0.2`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hoplite_ray.serve.stages.batching import Batches

TICK_S = 0.1  # Serve asks a policy every 0.105 s (median)
REPORT_S = 0.2  # between two reports of a replica
LAG_S = 0.2  # least age of a report that a policy sees; the newest one is at most 0.5 s old
WAKE_S = 0.4  # from the release of a parked replica to its first answer


@dataclass(frozen=True, slots=True)
class Model:
    """The time of a batch of n queries, fixed_s + each_s n, and the most queries in one batch."""

    fixed_s: float
    each_s: float
    cap: int

    def batch_s(self, size: int) -> float:
        """Return the seconds that a batch takes."""
        return self.fixed_s + self.each_s * size

    @property
    def capacity_per_s(self) -> float:
        """Queries per second of a replica whose batches are full."""
        return self.cap / self.batch_s(self.cap)


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a stage at one time. Totals are of all replicas since the beginning.

    backlog_s:  seconds of work that wait, summed over replicas.
    """

    at_s: float
    arrivals: int
    served: int
    late: int
    backlog_s: float


@dataclass(frozen=True, slots=True)
class Sight:
    """The view of a policy. `report` is some tenths of a second old, and the rest is current.

    ongoing:  queries that wait or run.
    running:  replicas that answer queries.
    target:   of these, by the last decision.
    parked:   replicas that are kept ready and can be released.
    """

    now_s: float
    report: Report
    ongoing: int
    running: int
    target: int
    parked: int = 0


class Policy(Protocol):
    """A policy of scaling."""

    def decide(self, sight: Sight) -> int:
        """Return how many replicas shall answer queries; parked ones are kept beside them."""


@dataclass(slots=True)
class Outcome:
    """The result of a simulation.

    queries:    (when it came, how long its answer took) in seconds, in the order of answers.
    replica_s:  replica-seconds; replicas that start, drain or are parked count.
    targets:    (time, target) of each change.
    """

    queries: list[tuple[float, float]] = field(default_factory=list)
    replica_s: float = 0.0
    targets: list[tuple[float, int]] = field(default_factory=list)

    def measure_misses(
        self, latency_s: float, since_s: float = 0.0, until_s: float = math.inf
    ) -> float:
        """Return the share of the queries that came in this time and took longer; 0 of none."""
        took = [took for came, took in self.queries if since_s <= came < until_s]
        return sum(each > latency_s for each in took) / len(took) if took else 0.0

    def list_misses(self, latency_s: float) -> list[float]:
        """Return when the queries came that took longer."""
        return sorted(came for came, took in self.queries if took > latency_s)


def simulate(
    arrivals: Sequence[float],
    model: Model,
    policy: Policy,
    *,
    start_s: float,
    initial: int,
    latency_s: float = 0.2,
    parked: int = 0,
) -> Outcome:
    """Run a stage from time 0 until all its queries are answered.

    arrivals:  when queries come, in seconds, ascending.
    start_s:   from the order of a replica to its first answer.
    initial:   replicas that run at time 0.
    latency_s: queries whose answers take longer are reported to the policy as late.
    parked:    replicas kept ready. One that is released is replaced by one that starts.

    Returns: the outcome. The policy is asked every 0.1 s until the last query comes.
    Cost:    some 10 µs a query, and the policy's own time.
    """
    stage = _Stage(model, start_s, initial, latency_s, parked)
    coming = iter(arrivals)
    next_s = next(coming, math.inf)
    ends_s = arrivals[-1] if arrivals else 0.0
    tick_s, ticks = 0.0, 0
    while stage.events or next_s < math.inf or tick_s < math.inf:
        event_s = stage.events[0][0] if stage.events else math.inf
        if event_s <= next_s and event_s <= tick_s:
            stage.handle_event()
        elif next_s <= tick_s:
            stage.offer(next_s)
            next_s = next(coming, math.inf)
        else:
            stage.tick(tick_s, policy)
            ticks += 1
            tick_s = ticks * TICK_S if ticks * TICK_S <= ends_s else math.inf
    return stage.end(ends_s)


class _Replica:
    """One replica: what waits and what runs. `load` counts both."""

    __slots__ = ("batch", "batches", "is_draining", "is_running", "load")

    def __init__(self, cap: int) -> None:
        self.batches = Batches[float](cap=cap, waiting_max=1 << 30)
        self.batch: list[float] = []
        self.load = 0
        self.is_running = False
        self.is_draining = False


class _Stage:
    """All replicas of the stage, and the events that are to come: (time, order, replica)."""

    def __init__(
        self, model: Model, start_s: float, initial: int, latency_s: float, parked: int
    ) -> None:
        self.events: list[tuple[float, int, _Replica | None]] = []
        self.outcome = Outcome()
        self._model = model
        self._start_s = start_s
        self._latency_s = latency_s
        self._parked = parked
        self._order = 0
        self._arrivals = self._late = 0
        self._live = initial + parked  # replicas that cost
        self._counted_s = 0.0
        self._target = initial
        self._running = [_Replica(model.cap) for _ in range(initial)]
        self._starting: list[_Replica] = []
        self._homeless: deque[float] = deque()  # queries that came while no replica ran
        self._reports: deque[Report] = deque()
        for replica in self._running:
            replica.is_running = True

    def offer(self, now_s: float) -> None:
        """Give a query to the replica with the fewest."""
        self._arrivals += 1
        if not self._running:
            self._homeless.append(now_s)
            return
        best = self._running[0]
        for each in self._running:
            if each.load < best.load:
                best = each
        self._give(best, now_s, now_s)

    def _give(self, replica: _Replica, came_s: float, now_s: float) -> None:
        replica.load += 1
        replica.batches.offer(came_s)
        if not replica.batch:
            self._begin(replica, now_s)

    def _begin(self, replica: _Replica, now_s: float) -> None:
        batch = replica.batches.take(now_s)
        if batch is not None:
            replica.batch = batch.items
            self._push(now_s + self._model.batch_s(len(batch.items)), replica)

    def _push(self, at_s: float, replica: _Replica | None) -> None:
        self._order += 1
        heapq.heappush(self.events, (at_s, self._order, replica))

    def handle_event(self) -> None:
        """Handle the next event: a replica has started or ended its batch, or one is parked."""
        now_s, _, replica = heapq.heappop(self.events)
        if replica is None:
            self._parked += 1
        elif not replica.is_running:
            if not replica.is_draining:  # else the order was taken back
                replica.is_running = True
                self._starting.remove(replica)
                self._running.append(replica)
                while self._homeless:
                    self._give(replica, self._homeless.popleft(), now_s)
        else:
            self._end_batch(replica, now_s)

    def _end_batch(self, replica: _Replica, now_s: float) -> None:
        size = len(replica.batch)
        for came_s in replica.batch:
            took_s = now_s - came_s
            self._late += took_s > self._latency_s
            self.outcome.queries.append((came_s, took_s))
        replica.load -= size
        replica.batch = []
        replica.batches.finish(size, self._model.batch_s(size))
        self._begin(replica, now_s)
        if replica.is_draining and not replica.load:
            self._count(now_s, -1)

    def tick(self, now_s: float, policy: Policy) -> None:
        """Report, ask the policy, and start or end replicas."""
        if not self._reports or now_s >= self._reports[-1].at_s + REPORT_S - 1e-6:
            self._reports.append(self._measure(now_s))
        while len(self._reports) > 1 and self._reports[1].at_s <= now_s - LAG_S + 1e-6:
            self._reports.popleft()
        ongoing = self._arrivals - len(self.outcome.queries)
        running = len(self._running)
        sight = Sight(now_s, self._reports[0], ongoing, running, self._target, self._parked)
        target = policy.decide(sight)
        if target == self._target:
            return
        self.outcome.targets.append((now_s, target))
        for _ in range(target - self._target):
            self._start(now_s)
        for _ in range(self._target - target):
            self._end_one(now_s)
        self._target = target

    def _measure(self, now_s: float) -> Report:
        backlog_s = sum(
            _work_s(self._model, len(each.batches)) for each in self._running if each.batches
        )
        served = len(self.outcome.queries)
        return Report(now_s, self._arrivals, served, self._late, backlog_s)

    def _start(self, now_s: float) -> None:
        replica = _Replica(self._model.cap)
        self._starting.append(replica)
        self._count(now_s, 1)
        if self._parked:
            self._parked -= 1
            self._push(now_s + WAKE_S, replica)
            self._push(now_s + self._start_s, None)
        else:
            self._push(now_s + self._start_s, replica)

    def _end_one(self, now_s: float) -> None:
        """End a replica: the last that starts, else the running one with the fewest queries."""
        if self._starting:
            replica = self._starting.pop()
            replica.is_draining = True
            self._count(now_s, -1)
            return
        replica = min(reversed(self._running), key=lambda each: each.load)
        self._running.remove(replica)
        replica.is_draining = True
        if not replica.load:
            self._count(now_s, -1)

    def _count(self, now_s: float, change: int) -> None:
        """Add the replica-seconds until now, and change the number of replicas."""
        self.outcome.replica_s += self._live * (now_s - self._counted_s)
        self._counted_s = now_s
        self._live += change

    def end(self, ends_s: float) -> Outcome:
        """Return the outcome. Replicas cost until the last query came, or their last change."""
        self._count(max(ends_s, self._counted_s), 0)
        return self.outcome


def _work_s(model: Model, waiting: int) -> float:
    """Return the seconds that the queries that wait at a replica take."""
    full, rest = divmod(waiting, model.cap)
    return full * model.batch_s(model.cap) + (model.batch_s(rest) if rest else 0.0)
