"""Which halves of a query have met: a stage with several inputs runs what has all of them.

Pure: `Joins` is told what comes and when, in seconds of any one clock.

A query that was issued again (a process died) comes with a higher attempt. Halves of two attempts
never meet, and halves of an attempt that is over are ignored: so nothing is joined twice, however
often the halves come. At its deadline a query is forgotten, with what had come of it.

Source: Vortex 5.3 (matched sets), which has neither deadlines nor duplicates in its code.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class _Half(Generic[Value]):
    attempt: int
    values: dict[str, Value] | None = field(default_factory=dict)  # None: they have met


@dataclass(frozen=True, slots=True)
class Unmet:
    """A query that was forgotten at its deadline, and the inputs that had not come."""

    query: str
    missing: tuple[str, ...]


class Joins(Generic[Value]):
    """The queries of which a stage has some inputs and not all.

    inputs:    the names of what comes for each query.
    open_max:  so many queries may be open; above that `offer` refuses a new one's first half.
    """

    def __init__(self, inputs: Sequence[str], *, open_max: int) -> None:
        if len(set(inputs)) != len(inputs) or not inputs:
            raise ValueError(f"inputs {list(inputs)} are at least one, and each has its own name")
        if open_max < 1:
            raise ValueError(f"open_max={open_max} is at least 1")
        self._inputs = tuple(inputs)
        self._open_max = open_max
        self._open_count = 0
        self._halves: dict[str, _Half[Value]] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap; one entry for each query

    def __len__(self) -> int:
        """Return how many queries have some inputs and not all."""
        return self._open_count

    def has_room(self, query: str) -> bool:
        """Whether an input of `query` would be taken in."""
        return query in self._halves or self._open_count < self._open_max

    def is_over(self, query: str, attempt: int) -> bool:
        """Whether the inputs of this attempt have met, or a higher one has begun."""
        half = self._halves.get(query)
        if half is None:
            return False
        return attempt < half.attempt or (attempt == half.attempt and half.values is None)

    def offer(
        self, query: str, attempt: int, name: str, value: Value, *, deadline_s: float
    ) -> dict[str, Value] | None:
        """Take in one input; returns all of the query's, in their order, if it was the last one.

        What has come before, or is of an attempt that is over, changes nothing.
        REQUIRES: `has_room`; all inputs of a query have one deadline.
        """
        if name not in self._inputs:
            raise ValueError(f"query {query} came as {name!r}; the inputs are {self._inputs}")
        half = self._halves.get(query)
        if half is None:
            half = self._halves[query] = _Half(attempt)
            self._open_count += 1
            heapq.heappush(self._deadlines, (deadline_s, query))
        elif attempt > half.attempt:
            self._open_count += half.values is None
            half.attempt, half.values = attempt, {}
        if attempt < half.attempt or half.values is None or name in half.values:
            return None
        half.values[name] = value
        if len(half.values) < len(self._inputs):
            return None
        met, half.values = half.values, None
        self._open_count -= 1
        return {each: met[each] for each in self._inputs}

    def next_deadline_s(self) -> float | None:
        """Return when `evict` has something to do; None: never."""
        return self._deadlines[0][0] if self._deadlines else None

    def evict(self, now_s: float) -> list[Unmet]:
        """Forget the queries whose deadline is over; returns those that had not met."""
        unmet = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, query = heapq.heappop(self._deadlines)
            values = self._halves.pop(query).values
            if values is not None:
                self._open_count -= 1
                missing = tuple(name for name in self._inputs if name not in values)
                unmet.append(Unmet(query, missing))
        return unmet
