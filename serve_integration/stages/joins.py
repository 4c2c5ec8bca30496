"""Joins: a stage with several inputs runs a query when all of its inputs have come.

Pure: `Joins` is told what comes and when, in seconds of any one clock.

A query that is asked again because a process died has a higher attempt. Inputs of two attempts
never meet, and inputs of an attempt that is over are ignored. So no query is joined twice, however
often its inputs come. At its deadline a query is forgotten, with the inputs that have come.

Source: Vortex 5.3 (matched sets).
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
    values: dict[str, Value] | None = field(default_factory=dict)  # None if they have met


@dataclass(frozen=True, slots=True)
class Unmet:
    """A query that is forgotten at its deadline, and the inputs that have not come."""

    query: str
    missing: tuple[str, ...]


class Joins(Generic[Value]):
    """The queries of which a stage has some inputs and not all.

    inputs:    the names of each query's inputs.
    open_max:  of such queries; above it `has_room` is False for new ones.
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
        self._deadlines: list[tuple[float, str]] = []  # a heap, with one entry for each query

    def __len__(self) -> int:
        """Return how many queries have some inputs and not all."""
        return self._open_count

    def has_room(self, query: str) -> bool:
        """Return True if an input of `query` can be taken in."""
        return query in self._halves or self._open_count < self._open_max

    def is_over(self, query: str, attempt: int) -> bool:
        """Return True if the inputs of this attempt have met, or a higher attempt has begun."""
        half = self._halves.get(query)
        if half is None:
            return False
        return attempt < half.attempt or (attempt == half.attempt and half.values is None)

    def offer(
        self, query: str, attempt: int, name: str, value: Value, *, deadline_s: float
    ) -> dict[str, Value] | None:
        """Take in one input; returns all inputs of the query, in order, if this is the last one.

        An input that has come before, or is of an attempt that is over, changes nothing.
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
        """Return when `evict` has something to do; None if no query is known."""
        return self._deadlines[0][0] if self._deadlines else None

    def evict(self, now_s: float) -> list[Unmet]:
        """Forget the queries whose deadline is over; returns those whose inputs have not met."""
        unmet = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, query = heapq.heappop(self._deadlines)
            values = self._halves.pop(query).values
            if values is not None:
                self._open_count -= 1
                missing = tuple(name for name in self._inputs if name not in values)
                unmet.append(Unmet(query, missing))
        return unmet
