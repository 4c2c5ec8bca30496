"""What a pipeline's replicas ask each other: a query on its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hoplite_ray.serve.routing.handoff import Stored


@dataclass(slots=True)
class Query:
    """One query on its way: what a stage is asked.

    name:    of the input that it comes as; "" where a stage has one.
    value:   or Stored, where it lies in the store.
    left_s:  seconds until its deadline, when it was sent.
    joins:   for each stage with several inputs, which replica is to join it, best first.
    deaths:  of replicas that held it, in earlier attempts.
    alone:   it shares its batch with no other, and who sent it hears when that begins.
    sent_s:  when it was sent, by the sender's wall clock; `Outlet.call` says it.
    ask:     which of its caller's questions with this id, for there may be several at once.
    """

    id: str
    attempt: int
    name: str
    value: Any
    left_s: float
    joins: Mapping[str, tuple[str, ...]]
    deaths: int = 0
    alone: bool = False
    sent_s: float = 0.0
    ask: str = ""

    @property
    def told(self) -> tuple[Any, ...]:
        """All of it, as it travels: `Query(*told)`. A pickle takes less time than of the class."""
        return (
            *(self.id, self.attempt, self.name, self.value, self.left_s, self.joins),
            *(self.deaths, self.alone, self.sent_s, self.ask),
        )

    @property
    def join_id(self) -> str:
        """By which its inputs meet."""
        return f"{self.id} {self.ask}"

    def onward(self, name: str, value: Any, left_s: float) -> Query:
        """Return what the next stage is asked: a stage's answer, by that name."""
        return Query(
            *(self.id, self.attempt, name, value, left_s, self.joins, self.deaths),
            ask=self.ask,
        )

    def by_value(self) -> Query:
        """Return it with its value in it. REQUIRES: this process made it."""
        value = self.value.value if isinstance(self.value, Stored) else self.value
        return replace(self, value=value)


@dataclass(frozen=True, slots=True)
class Merged:
    """What the callers of a join hear whose input is not its first: another one has the answer."""
