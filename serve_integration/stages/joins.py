"""Joins: a stage with several inputs runs a query when all of its inputs have come.

Pure: callers give `Joins` each input and its time, in seconds of one clock.

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
class _JoinState(Generic[Value]):
    attempt: int
    values: dict[str, Value] | None = field(default_factory=dict)  # None if they have met


@dataclass(frozen=True, slots=True)
class UnmetJoin:
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
        self._states: dict[str, _JoinState[Value]] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap, with one entry for each query

    def __len__(self) -> int:
        """Return how many queries have some inputs and not all."""
        return self._open_count

    def has_room(self, query: str) -> bool:
        """Return True if an input of `query` can be taken in."""
        return query in self._states or self._open_count < self._open_max

    def is_over(self, query: str, attempt: int) -> bool:
        """Return True if the inputs of this attempt have met, or a higher attempt has begun."""
        state = self._states.get(query)
        if state is None:
            return False
        return attempt < state.attempt or (attempt == state.attempt and state.values is None)

    def offer(
        self, query: str, attempt: int, name: str, value: Value, *, deadline_s: float
    ) -> dict[str, Value] | None:
        """Take in one input; returns all inputs of the query, in order, if this is the last one.

        An input that has come before, or is of an attempt that is over, changes nothing.
        REQUIRES: `has_room`; all inputs of a query have one deadline.
        """
        if name not in self._inputs:
            raise ValueError(f"query {query} came as {name!r}; the inputs are {self._inputs}")
        state = self._states.get(query)
        if state is None:
            state = self._states[query] = _JoinState(attempt)
            self._open_count += 1
            heapq.heappush(self._deadlines, (deadline_s, query))
        elif attempt > state.attempt:
            self._open_count += state.values is None
            state.attempt, state.values = attempt, {}
        if attempt < state.attempt or state.values is None or name in state.values:
            return None
        state.values[name] = value
        if len(state.values) < len(self._inputs):
            return None
        met, state.values = state.values, None
        self._open_count -= 1
        return {each: met[each] for each in self._inputs}

    def next_deadline_s(self) -> float | None:
        """Return when `expire` has something to do; None if no query is known."""
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now_s: float) -> list[UnmetJoin]:
        """Forget the queries whose deadline is over; returns those whose inputs have not met."""
        unmet = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, query = heapq.heappop(self._deadlines)
            values = self._states.pop(query).values
            if values is not None:
                self._open_count -= 1
                missing = tuple(name for name in self._inputs if name not in values)
                unmet.append(UnmetJoin(query, missing))
        return unmet
