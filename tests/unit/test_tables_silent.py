"""Silent writers of a table: the dead are forgotten, the living are not, and some leave."""

from __future__ import annotations

from typing import Any

import pytest

from hoplite_ray.errors import ControlError
from hoplite_ray.tables import log
from hoplite_ray.tables.calls import NumbersGiven, Sweep
from hoplite_ray.tables.log import Entry, Options
from tests.unit.tables_cluster import KeyValueStore
from tests.unit.tables_following import Following, ended_tickets
from tests.unit.test_tables import compact


class Pair:
    """A process that puts, and another one; the table forgets writers that are silent for 4 s."""

    def __init__(self) -> None:
        self.store = KeyValueStore(overwrites=False)
        options = Options(writer_us=4_000_000)
        self.writer = Following(self.store, "writer", options)
        self.other = Following(self.store, "other", options)
        self.writer.put(1, "a")

    def pass_time(self, seconds: float) -> None:
        for each in (self.writer, self.other):
            each.now_us += round(1e6 * seconds)

    def look(self, process: Following) -> list[Any]:
        process.replica.handle_read(99)
        return process.settle()

    @property
    def writers(self) -> list[str]:
        assert self.store.state is not None
        return [*self.store.state._writers]


def test_a_process_that_was_silent_for_long_puts_as_another_writer() -> None:
    pair = Pair()
    pair.pass_time(5)
    pair.look(pair.other)
    assert pair.writers == []
    assert ended_tickets(pair.writer.put(2, "a")) == [2]
    assert pair.writer.replica.writer == "writer.2"


def test_a_removal_that_waits_outlives_the_writer() -> None:
    pair = Pair()
    pair.pass_time(5)
    pair.look(pair.other)
    pair.writer.replica.handle_put(2, pair.writer.replica.writer, [Entry("a", 0)])
    assert ended_tickets(pair.writer.settle()) == [2]


def test_the_values_of_a_dead_writer_go_though_no_process_puts() -> None:
    pair = Pair()
    pair.writer.replica.handle_numbers(2, 1)
    pair.writer.settle()  # it stores a value and dies
    pair.look(pair.other)
    pair.pass_time(3.9)
    assert not [each for each in pair.look(pair.other) if isinstance(each, Sweep)]
    pair.pass_time(0.101)
    (sweep,) = [each for each in pair.look(pair.other) if isinstance(each, Sweep)]
    assert [each.writer for each in sweep.garbage] == ["writer.1"]
    assert set(sweep.garbage[0].numbers) == {*range(2, 2 + log.NUMBERS_AHEAD)}
    length = len(pair.store.truth)
    pair.other.replica.handle_swept(sweep.slots)
    pair.look(pair.other)
    assert pair.store.state is not None and not pair.store.state.garbage
    assert len(pair.store.truth) == length + 1
    for _ in range(3):
        pair.pass_time(60)
        pair.look(pair.other)
    assert len(pair.store.truth) == length + 1, "nothing is due any more"


def test_a_writer_whose_value_takes_long_to_store_is_not_forgotten() -> None:
    pair = Pair()
    pair.writer.replica.handle_numbers(2, 1)
    (given,) = pair.writer.settle()
    for _ in range(30):
        assert pair.writer.replica.look_every_us == 1_000_000
        pair.pass_time(1.001)
        pair.look(pair.writer)
        assert not [each for each in pair.look(pair.other) if isinstance(each, Sweep)]
    pair.writer.replica.handle_put(2, given.writer, [Entry("a", given.numbers[0], 8, (1,))])
    assert ended_tickets(pair.writer.settle()) == [2]


def test_a_writer_that_has_stored_all_its_values_leaves_by_one_record() -> None:
    pair = Pair()
    length = len(pair.store.truth)
    pair.pass_time(1.001)
    pair.look(pair.writer)
    assert pair.writers == [] and len(pair.store.truth) == length + 1
    assert pair.writer.replica.look_every_us == 4_000_000
    for _ in range(3):
        pair.pass_time(60)
        pair.look(pair.writer)
        pair.look(pair.other)
    assert len(pair.store.truth) == length + 1
    assert ended_tickets(pair.writer.put(2, "a")) == [2]


@pytest.mark.parametrize("is_won", [True, False])
def test_no_number_is_given_while_the_last_record_of_a_writer_is_under_way(is_won: bool) -> None:
    pair = Pair()
    pair.pass_time(1.001)
    pair.writer.replica.handle_read(2)
    pair.writer.begin()
    pair.writer.replica.handle_numbers(3, 1)
    assert pair.writer.replica.poll_call(pair.writer.now_us) is None
    if not is_won:
        pair.other.put(1, "b")
    pair.writer.replica.handle_answer(pair.store.perform(pair.writer.call), pair.writer.now_us)
    (given,) = [each for each in pair.writer.settle() if isinstance(each, NumbersGiven)]
    assert given.writer == ("writer.2" if is_won else "writer.1")
    assert given.writer in pair.writers


def test_of_processes_that_find_the_same_work_due_one_appends_a_record() -> None:
    pair = Pair()
    third = Following(pair.store, "third", Options(writer_us=4_000_000))
    pair.look(third)
    pair.look(pair.other)
    length = len(pair.store.truth)
    pair.pass_time(5)
    third.now_us += 5_000_000
    for each in (third, pair.other):
        each.replica.handle_read(2)
        each.begin()
    for each in (third, pair.other):
        each.replica.handle_answer(pair.store.perform(each.call), each.now_us)
        each.settle()
    assert len(pair.store.truth) == length + 1


def test_a_reader_of_earlier_records_appends_nothing() -> None:
    pair = Pair()
    length = len(pair.store.truth)
    reader = Following(pair.store, "reader", since=1)
    reader.now_us = 10**9
    reader.replica.handle_read(1)
    reader.settle()
    assert len(pair.store.truth) == length


def test_a_writer_whose_first_record_was_forgotten_unseen_begins_anew() -> None:
    """Values under its old numbers may be deleted at any time."""
    store = KeyValueStore(overwrites=False)
    options = Options(records_per_state=4, writer_us=4_000_000)
    late, busy = Following(store, "late", options), Following(store, "busy", options)
    late.replica.handle_read(1)
    late.settle()
    late.replica.handle_numbers(2, 1)
    late.begin()
    store.perform(late.call)
    late.replica.handle_failure(ControlError("no answer"))
    for ticket in range(20):
        busy.now_us += 500_000
        compact(store, busy.put(ticket, "b"))
    late.now_us = busy.now_us
    assert min(store.slots) > 1
    late.replica.handle_numbers(3, 1)
    (given,) = [each for each in late.settle() if isinstance(each, NumbersGiven)]
    assert given.writer == "late.2"
