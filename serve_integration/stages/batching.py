"""Opportunistic batching: a free stage takes what is there, up to a cap, and waits for no more.

Pure: `Batches` is told what happens and when, in seconds of any one clock, and answers what to do.

    offer     a query has come; None: the stage has as many waiting as it may
    withdraw  nobody wants its answer any more
    take      what to run now: the earliest deadlines first; None: the stage runs, or nothing waits
    finish    the batch has run; how long it took is learnt from

Source: Vortex 5.1.1 and 5.2 (the cap); Clockwork (what can't be in time need not be run).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Item = TypeVar("Item")

_REMEMBERED = 0.98  # of the weight of a batch when the next one has run: some fifty batches count


class Late(Enum):
    """What becomes of a query that can't be answered by its deadline any more."""

    SERVE = "serve"
    """It runs in its turn, which is the next one: its deadline is the earliest."""
    DROP = "drop"
    """It is answered as late, and never runs."""


class ServiceTime:
    """How long a batch of n takes, in seconds: a + b n, learnt from those that have run.

    Least squares with weights that fade; neither a nor b is ever below 0.
    """

    def __init__(self) -> None:
        self._weight = self._sizes = self._squares = self._times = self._products = 0.0

    def learn(self, size: int, took_s: float) -> None:
        """Take in that a batch of `size` took so long."""
        self._weight = _REMEMBERED * self._weight + 1
        self._sizes = _REMEMBERED * self._sizes + size
        self._squares = _REMEMBERED * self._squares + size * size
        self._times = _REMEMBERED * self._times + took_s
        self._products = _REMEMBERED * self._products + size * took_s

    def of(self, size: int) -> float:
        """Return how long a batch of `size` will take; 0 before any has run."""
        if not self._weight:
            return 0.0
        mean_size, mean_time = self._sizes / self._weight, self._times / self._weight
        spread = self._squares / self._weight - mean_size**2
        common = self._products / self._weight - mean_size * mean_time
        each = max(common / spread, 0.0) if spread > 1e-9 * mean_size**2 else 0.0
        fixed = mean_time - each * mean_size
        if fixed < 0:  # then all of it is by the item
            fixed, each = 0.0, self._products / self._squares
        return fixed + each * size


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """What a stage does next: run `items`, one batch, and answer the `late` ones as late."""

    items: list[Item]
    late: list[Item]


class Batches(Generic[Item]):
    """The queries that wait at one stage, and whether it runs.

    cap:          the largest batch.
    waiting_max:  so many may wait; above that `offer` refuses.
    late:         what becomes of those that can't be in time.
    """

    def __init__(self, *, cap: int, waiting_max: int, late: Late = Late.SERVE) -> None:
        if cap < 1 or waiting_max < 1:
            raise ValueError(f"cap={cap} and waiting_max={waiting_max} are at least 1")
        self.service_time = ServiceTime()
        self.is_busy = False
        self._cap = cap
        self._waiting_max = waiting_max
        self._late = late
        self._waiting: dict[int, tuple[Item, bool]] = {}  # and whether it runs alone
        self._order: list[tuple[float, int]] = []  # a heap; may name some that were withdrawn
        self._next_ticket = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def offer(self, item: Item, *, deadline_s: float = math.inf, alone: bool = False) -> int | None:
        """Have `item` wait for its turn; returns its ticket, None if too many wait.

        alone:  its batch has no other items.
        """
        if len(self._waiting) >= self._waiting_max:
            return None
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = item, alone
        heapq.heappush(self._order, (deadline_s, ticket))
        return ticket

    def withdraw(self, ticket: int) -> bool:
        """Forget one that waits; False: it does not wait any more."""
        return self._waiting.pop(ticket, None) is not None

    def take(self, now_s: float) -> Batch[Item] | None:
        """Begin the next batch; None: one runs, or nothing waits.

        A batch of no items is none that runs: all that waited is late.
        Cost:    O(log n) for each item.
        """
        if self.is_busy or not self._waiting:
            return None
        batch: Batch[Item] = Batch([], [])
        alone_s = self.service_time.of(1) if self._late is Late.DROP else 0.0
        while self._waiting and len(batch.items) < self._cap:
            deadline_s, ticket = heapq.heappop(self._order)
            if ticket not in self._waiting:
                continue
            item, alone = self._waiting[ticket]
            is_late = self._late is Late.DROP and now_s + alone_s > deadline_s
            if alone and batch.items and not is_late:  # the next batch is its own
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
        """Take in that the batch of `size` items has run."""
        self.is_busy = False
        self.service_time.learn(size, took_s)
