"""Opportunistic batching: a free stage takes what is there, up to a cap, and waits for no more.

Pure: callers give `Batches` each event and its time, in seconds of one clock. It decides.

    offer     a query has come; returns None if the stage has as many waiting as it may
    withdraw  no caller waits for the query's answer any more
    backlog_s returns how long the queries that wait will take
    take      returns the batch to run now, earliest deadlines first; None if there is none to run
    finish    the batch has run, and its time is learnt from
    learn_after  a query of an earlier batch has its answer from the later stages

A batch ends later the more queries it has, so its first query may be in time only in a smaller
one. A smaller batch is chosen if batches of its size keep up with the arrivals. Else that query is
late, because with it the stage would answer fewer queries in time. So under overload a stage
answers as many queries in time as it can run.

Source: design decision 31; Vortex 5.1.1 and 5.2 (the cap); Clockwork (what can't be in time need
not be run); Nexus (a query is dropped early, for the sake of a full batch).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from hoplite_ray.serve.stages.estimates import AfterTime, Arrivals, ServiceTime

Item = TypeVar("Item")

_DEVIATIONS = 2.0  # of service times, by which a batch may take longer than it does on average
_FORGET_S = 1.0  # without a batch, after which estimates are halved
_HALVINGS_MAX = 60.0  # nothing is left of an estimate by then


class Late(Enum):
    """The fate of a query that can't be answered by its deadline any more."""

    SERVE = "serve"
    """Run it when no query waits that can be in time, or together with such queries."""
    DROP = "drop"
    """Answer it as late, and never run it."""


@dataclass(slots=True)
class Batch(Generic[Item]):
    """The next work of a stage: run `items` as one batch, and answer `late` as late.

    late_count:  queries that were found late; with Late.SERVE they may wait on.
    """

    items: list[Item]
    late: list[Item]
    late_count: int = 0


@dataclass(slots=True)
class _Waiting(Generic[Item]):
    """A query that waits. is_overdue: True if it can't be in time and waits behind all others."""

    item: Item
    deadline_s: float
    alone: bool
    pipeline: str
    is_overdue: bool = False


_Order = list[tuple[float, int]]  # a heap of deadlines and tickets; withdrawn tickets stay in it


class Batches(Generic[Item]):
    """The queries that wait at one stage, and whether a batch runs.

    cap:          of queries in one batch.
    waiting_max:  of queries that wait; above it `offer` refuses.
    late:         what to do with queries that can't be in time.
    """

    def __init__(self, *, cap: int, waiting_max: int, late: Late = Late.SERVE) -> None:
        if cap < 1 or waiting_max < 1:
            raise ValueError(f"cap={cap} and waiting_max={waiting_max} are at least 1")
        self.service_time = ServiceTime()
        self.is_busy = False
        self._cap = cap
        self._waiting_max = waiting_max
        self._late = late
        self._waiting: dict[int, _Waiting[Item]] = {}
        self._overdue_count = 0
        self._timely: dict[str, _Order] = {}  # by pipeline
        self._overdue: _Order = []
        self._pushed_out: list[Item] = []  # overdue ones that made room, until the next `take`
        self._next_ticket = 0
        self._after: defaultdict[str, AfterTime] = defaultdict(AfterTime)  # by pipeline
        self._arrivals = Arrivals()
        self._has_finished = False  # True if a batch has since the last `take`
        self._learnt_s = -math.inf

    def __len__(self) -> int:
        """Return how many queries wait."""
        return len(self._waiting)

    def offer(
        self,
        item: Item,
        *,
        deadline_s: float = math.inf,
        alone: bool = False,
        pipeline: str = "",
    ) -> int | None:
        """Have `item` wait for its turn; returns its ticket, or None if too many wait.

        A query that can't be in time any more makes room for it.

        deadline_s:  when its answer is to be with its caller.
        alone:       True if its batch must have no other item.
        pipeline:    whose later stages it goes to.
        """
        self._arrivals.count += 1
        if len(self._waiting) >= self._waiting_max:
            if (oldest := self._peek(self._overdue)) is None:
                return None
            self._pushed_out.append(self._remove(oldest))
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = _Waiting(item, deadline_s, alone, pipeline)
        heapq.heappush(self._timely.setdefault(pipeline, []), (deadline_s, ticket))
        return ticket

    def backlog_s(self) -> float:
        """Return the seconds that the queries that wait will take; 0 until a batch has run."""
        full, rest = divmod(len(self._waiting), self._cap)
        estimate = self.service_time.estimate
        return full * estimate(self._cap) + (estimate(rest) if rest else 0.0)

    def find_end(self, deadline_s: float, pipeline: str = "") -> float:
        """Return when a query's batch has to end, with the least time that later stages need."""
        return deadline_s - self._after[pipeline].least_s

    def can_end(self, deadline_s: float, now_s: float, pipeline: str = "") -> bool:
        """Return True if a query that comes now could be in time, if it had not to wait."""
        return now_s + self.service_time.estimate(1) <= self.find_end(deadline_s, pipeline)

    def withdraw(self, ticket: int) -> bool:
        """Forget a query that waits; returns False if it does not wait any more."""
        if ticket not in self._waiting:
            return False
        self._remove(ticket)
        return True

    def take(self, now_s: float) -> Batch[Item] | None:
        """Begin the next batch; returns None if one runs, or no query waits.

        A batch without items does not run: all queries that waited are late.
        Cost:    O(log n) for each item.
        """
        self._arrivals.look(now_s)
        if self._has_finished:
            self._has_finished, self._learnt_s = False, now_s
        if self.is_busy or not (self._waiting or self._pushed_out):
            return None
        batch: Batch[Item] = Batch([], self._pushed_out)
        self._pushed_out = []
        self._peek(self._overdue)  # which forgets what was withdrawn
        room = self._take_timely(batch, now_s)
        self._fill_up(batch, room)
        if not self._waiting:
            self._timely.clear()
            self._overdue.clear()
        self.is_busy = bool(batch.items)
        return batch

    def finish(self, size: int, took_s: float) -> None:
        """End the batch of `size` items, which took so long."""
        self.is_busy = False
        self.service_time.learn(size, took_s)
        self._has_finished = True

    def learn_after(self, took_s: float, *, is_joined: bool = False, pipeline: str = "") -> None:
        """Learn that later stages took so long to answer a query, from the end of its batch.

        is_joined:  True if the next stage may have waited for another input.
        """
        if is_joined:
            self._after[pipeline].learn_least(took_s)
        else:
            self._after[pipeline].learn(took_s)

    def _take_timely(self, batch: Batch[Item], now_s: float) -> float:
        """Move the next queries that can be in time into a batch; returns its room in all.

        The first one decides the size, because its batch has to end first.
        """
        room: float = self._cap
        goal = self._timely_goal()
        while len(batch.items) < goal and (ticket := self._peek_timely()) is not None:
            waiting = self._waiting[ticket]
            if waiting.alone and batch.items:  # it gets a batch for itself
                return 0
            if not batch.items:
                goal = 1 if waiting.alone else goal
                room = min(self._size_until(waiting, now_s), self._cap)
                fits = min(room, goal)
                if fits < goal and not self._keeps_up(fits):
                    self._pass_over(ticket, batch)
                    goal, room = self._timely_goal(), self._cap
                    continue
                goal = int(fits)
            batch.items.append(self._remove(ticket))
            if waiting.alone:
                return 0
        return room

    def _fill_up(self, batch: Batch[Item], room: float) -> None:
        """Add queries that can't be in time to a batch, up to `room` queries in all."""
        while len(batch.items) < room and (ticket := self._peek(self._overdue)) is not None:
            alone = self._waiting[ticket].alone
            if alone and batch.items:
                return
            batch.items.append(self._remove(ticket))
            if alone:
                return

    def _pass_over(self, ticket: int, batch: Batch[Item]) -> None:
        """Handle a query that can't be in time any more."""
        batch.late_count += 1
        if self._late is Late.DROP:
            batch.late.append(self._remove(ticket))
            return
        waiting = self._waiting[ticket]
        waiting.is_overdue = True
        self._overdue_count += 1
        heapq.heappush(self._overdue, (waiting.deadline_s, ticket))

    def _timely_goal(self) -> int:
        return min(len(self._waiting) - self._overdue_count, self._cap)

    def _size_until(self, waiting: _Waiting[Item], now_s: float) -> float:
        """Return how many queries a batch may have that answers this one by its deadline."""
        if waiting.deadline_s == math.inf:
            return math.inf
        after = self._after[waiting.pipeline]
        deviation_s = math.sqrt(self.service_time.variance_s2 + after.variance_s2)
        left_s = waiting.deadline_s - now_s
        # Estimates fade, because a wrong one would let no batch run from which to learn better.
        halvings = min((now_s - self._learnt_s) / _FORGET_S, _HALVINGS_MAX)
        faded = 2.0**halvings if left_s > 0 else 1.0
        spent_s = after.mean_s + _DEVIATIONS * deviation_s
        return self.service_time.size_within(faded * left_s - spent_s)

    def _keeps_up(self, size: float) -> bool:
        """Return True if batches of this size answer queries as fast as they come."""
        took_s = self.service_time.estimate(int(size))
        return size > 0 and size >= took_s * self._arrivals.rate_per_s

    def _peek_timely(self) -> int | None:
        """Return the ticket whose batch has to end first; None if there is none."""
        found = None
        for pipeline, order in self._timely.items():
            if (ticket := self._peek(order)) is not None:
                ends_s = self._waiting[ticket].deadline_s - self._after[pipeline].mean_s
                if found is None or (ends_s, ticket) < found:
                    found = ends_s, ticket
        return None if found is None else found[1]

    def _peek(self, order: _Order) -> int | None:
        """Return the ticket with the earliest deadline; None if there is none."""
        is_overdue = order is self._overdue
        while order:
            ticket = order[0][1]
            waiting = self._waiting.get(ticket)
            if waiting is not None and waiting.is_overdue is is_overdue:
                return ticket
            heapq.heappop(order)
        return None

    def _remove(self, ticket: int) -> Item:
        waiting = self._waiting.pop(ticket)
        self._overdue_count -= waiting.is_overdue
        return waiting.item
