"""Opportunistic batching: a free stage takes what is there, up to a cap, and waits for no more.

Pure: callers give `Batches` each event and its time, in seconds of one clock. It decides.

    offer     a query has come; returns None if the stage has as many waiting as it may
    withdraw  no caller waits for the query's answer any more
    take      returns the batch to run now, earliest deadlines first; None if there is none to run
    finish    the batch has run; its time is learnt from

Source: Vortex 5.1.1 and 5.2 (the cap); Clockwork (what can't be in time need not be run).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Item = TypeVar("Item")

_REMEMBERED = 0.98  # by which a batch's weight falls with each later one: some fifty count


class Late(Enum):
    """The fate of a query that can't be answered by its deadline any more."""

    SERVE = "serve"
    """Run it in its turn, which is the next one, because its deadline is the earliest."""
    DROP = "drop"
    """Answer it as late, and never run it."""


class ServiceTime:
    """The seconds that a batch of n queries takes: a + b n, learnt from the batches that have run.

    Least squares with weights that fade. Neither a nor b is ever below 0.
    """

    def __init__(self) -> None:
        self._weight = self._sizes = self._squares = self._times = self._products = 0.0

    def learn(self, size: int, took_s: float) -> None:
        """Learn that a batch of `size` queries took so long."""
        self._weight = _REMEMBERED * self._weight + 1
        self._sizes = _REMEMBERED * self._sizes + size
        self._squares = _REMEMBERED * self._squares + size * size
        self._times = _REMEMBERED * self._times + took_s
        self._products = _REMEMBERED * self._products + size * took_s

    def estimate(self, size: int) -> float:
        """Return how long a batch of `size` queries will take; 0 before any has run."""
        if not self._weight:
            return 0.0
        mean_size, mean_time = self._sizes / self._weight, self._times / self._weight
        spread = self._squares / self._weight - mean_size**2
        common = self._products / self._weight - mean_size * mean_time
        each = max(common / spread, 0.0) if spread > 1e-9 * mean_size**2 else 0.0
        fixed = mean_time - each * mean_size
        if fixed < 0:  # then all time is each query's own
            fixed, each = 0.0, self._products / self._squares
        return fixed + each * size


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """The next work of a stage: run `items` as one batch, and answer `late` as late."""

    items: list[Item]
    late: list[Item]


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
        self._waiting: dict[int, tuple[Item, bool]] = {}  # and True if it runs alone
        self._order: list[tuple[float, int]] = []  # a heap; withdrawn tickets stay in it
        self._next_ticket = 0

    def __len__(self) -> int:
        """Return how many queries wait."""
        return len(self._waiting)

    def offer(self, item: Item, *, deadline_s: float = math.inf, alone: bool = False) -> int | None:
        """Have `item` wait for its turn; returns its ticket, or None if too many wait.

        alone:  True if its batch must have no other item.
        """
        if len(self._waiting) >= self._waiting_max:
            return None
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = item, alone
        heapq.heappush(self._order, (deadline_s, ticket))
        return ticket

    def withdraw(self, ticket: int) -> bool:
        """Forget a query that waits; returns False if it does not wait any more."""
        return self._waiting.pop(ticket, None) is not None

    def take(self, now_s: float) -> Batch[Item] | None:
        """Begin the next batch; returns None if one runs, or no query waits.

        A batch without items does not run: all queries that waited are late.
        Cost:    O(log n) for each item.
        """
        if self.is_busy or not self._waiting:
            return None
        batch: Batch[Item] = Batch([], [])
        alone_s = self.service_time.estimate(1) if self._late is Late.DROP else 0.0
        while self._waiting and len(batch.items) < self._cap:
            deadline_s, ticket = heapq.heappop(self._order)
            if ticket not in self._waiting:
                continue
            item, alone = self._waiting[ticket]
            is_late = self._late is Late.DROP and now_s + alone_s > deadline_s
            if alone and batch.items and not is_late:  # it gets the next batch for itself
                heapq.heappush(self._order, (deadline_s, ticket))
                break
            del self._waiting[ticket]
            (batch.late if is_late else batch.items).append(item)
            if alone and not is_late:
                break
        if not self._waiting:
            self._order.clear()
        self.is_busy = bool(batch.items)
        return batch

    def finish(self, size: int, took_s: float) -> None:
        """End the batch of `size` items, which took so long."""
        self.is_busy = False
        self.service_time.learn(size, took_s)
