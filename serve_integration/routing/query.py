"""Queries on their way between the replicas of an application."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hoplite_ray.serve.routing.handoff import Stored

_CUTS_PER_S = 10


@dataclass(slots=True)
class Query:
    """One query on its way to a stage.

    name:        the input that it is for the stage; "" where the stage has only one.
    value:       its value, or a Stored if the value is in the store.
    left_s:      the seconds that were left until its deadline when it was sent.
    joins:       for each stage with several inputs, the replicas that may join them, best first.
    deaths:      of replicas that held the query, in earlier attempts.
    runs_alone:  True if it must share its batch with no other query. Its sender then hears when the
                 batch begins and ends.
    sent_s:      when `Outlet.call` sent it, by the sender's wall clock.
    cut_s:       the time as of which all stages read tables for it; see `take_cut`.
    ask:         tells apart the questions of a caller that uses one id several times.
    grace_s:     the seconds from when its answer is to be with its sender to the deadline.
    pipeline:    the name of its pipeline; "" if the application is one pipeline, or an ensemble.
    hop_s:       how long it was under way to this replica, by both wall clocks. It does not travel.
    """

    id: str
    attempt: int
    name: str
    value: Any
    left_s: float
    joins: Mapping[str, tuple[str, ...]]
    deaths: int = 0
    runs_alone: bool = False
    sent_s: float = 0.0
    ask: str = ""
    grace_s: float = 0.0
    pipeline: str = ""
    cut_s: float = 0.0
    hop_s: float = 0.0

    @property
    def fields(self) -> tuple[Any, ...]:
        """The fields, as they travel: `Query(*fields)`. Pickling a tuple is faster."""
        return (
            *(self.id, self.attempt, self.name, self.value, self.left_s, self.joins),
            *(self.deaths, self.runs_alone, self.sent_s, self.ask, self.grace_s, self.pipeline),
            self.cut_s,
        )

    @property
    def join_id(self) -> str:
        """The id by which the inputs of a join meet."""
        return f"{self.id} {self.ask}"

    def for_next_stage(self, name: str, value: Any, left_s: float) -> Query:
        """Return the query for the next stage: this stage's answer, as the input `name`."""
        return Query(
            *(self.id, self.attempt, name, value, left_s, self.joins, self.deaths),
            ask=self.ask,
            pipeline=self.pipeline,
            grace_s=self.grace_s + 2 * self.hop_s,  # the deadline moves by a hop, and the way back
            cut_s=self.cut_s,
        )

    def by_value(self) -> Query:
        """Return the query with its value instead of a Stored. REQUIRES: this process made it."""
        value = self.value.value if isinstance(self.value, Stored) else self.value
        return replace(self, value=value)


def take_cut(now_s: float) -> float:
    """Return the cut of a query that comes at `now_s`, in seconds since 1970.

    Queries of one tenth of a second have the same cut. A table seals a time by a record of its own
    unless a later put has done so, and ten records a second are few.
    """
    return math.floor(now_s * _CUTS_PER_S) / _CUTS_PER_S


@dataclass(frozen=True, slots=True)
class Merged:
    """The answer of a join to all callers but that of its first input, which gets the real one."""
