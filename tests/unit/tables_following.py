"""One process of a table whose calls are answered at once, for tests of its machines."""

from __future__ import annotations

from typing import Any

from hoplite_ray.tables.calls import AddSlot, NumbersGiven, PutDone, ReadDone
from hoplite_ray.tables.log import Entry, Options
from hoplite_ray.tables.replica import Replica
from tests.unit.tables_cluster import KeyValueStore

OPTIONS = Options(keep=2, keep_us=10, records_per_state=4)


class Following:
    """A replica with its store, whose calls are answered at once."""

    def __init__(
        self,
        store: KeyValueStore,
        name: str = "p",
        options: Options = OPTIONS,
        since: int | None = None,
    ) -> None:
        self.store = store
        self.replica = Replica("t", name, options, since=since)
        self.now_us = 1_000

    def settle(self) -> list[Any]:
        """Answer all calls; return the events."""
        events: list[Any] = []
        while True:
            call = self.replica.poll_call(self.now_us)
            while (event := self.replica.poll_event()) is not None:
                events.append(event)
            if call is None:
                return events
            self.replica.handle_answer(self.store.perform(call), self.now_us)

    def begin(self) -> None:
        """Begin the calls that settle is to end, up to the first append."""
        while not isinstance(call := self.replica.poll_call(self.now_us), AddSlot):
            assert call is not None
            self.replica.handle_answer(self.store.perform(call), self.now_us)
        self.call = call

    def put(self, ticket: int, key: str) -> list[Any]:
        self.replica.handle_numbers(ticket, 1)
        (given,) = [each for each in self.settle() if isinstance(each, NumbersGiven)]
        self.replica.handle_put(ticket, given.writer, [Entry(key, given.numbers[0], 8, (1,))])
        return self.settle()


def ended_tickets(events: list[Any]) -> list[int]:
    return [each.ticket for each in events if isinstance(each, PutDone | ReadDone)]
