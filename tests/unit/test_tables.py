"""The machines of a table one by one: records, versions, states, appends and compactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.errors import (
    ControlError,
    InvalidArgumentError,
    VersionDroppedError,
    VersionMissingError,
)
from hoplite_ray.tables import log
from hoplite_ray.tables.calls import (
    AddSlot,
    Changed,
    NumbersGiven,
    ReadSlots,
    StateDue,
    TicketFailed,
)
from hoplite_ray.tables.compaction import Compaction
from hoplite_ray.tables.log import Entry, Options, Record
from hoplite_ray.tables.routes import rank_by_key, rank_by_load
from hoplite_ray.tables.state import State
from hoplite_ray.tables.versions import Version, Versions
from tests.unit.tables_cluster import KeyValueStore
from tests.unit.tables_following import OPTIONS, Following, ended_tickets

KEYS = st.sampled_from(["a", "b", "c"])
NUMBER = st.integers(0, 2**60)
ENTRIES = st.builds(
    Entry, key=st.text(max_size=5), number=NUMBER, size_bytes=NUMBER, nodes=st.tuples(NUMBER)
)
RECORDS = st.builds(
    Record,
    writer=st.text(max_size=5),
    sequence=NUMBER,
    attempt=NUMBER,
    time_us=NUMBER,
    low=NUMBER,
    entries=st.lists(ENTRIES, max_size=3).map(tuple),
    swept=st.lists(NUMBER, max_size=3).map(tuple),
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert log.decode_record(log.encode_record(record), "slot 7") == record


@given(st.one_of(st.binary(max_size=30), RECORDS.map(log.encode_record)), st.integers(0, 200))
def test_any_bytes_are_a_record_or_an_error_that_names_the_slot(data: bytes, cut: int) -> None:
    for text in (data, data[:cut], data[:cut] + b"9" + data[cut:]):
        try:
            assert isinstance(log.decode_record(text, "slot 7"), Record)
        except ControlError as error:
            assert "slot 7" in str(error)


def test_a_record_of_another_release_is_refused_by_name() -> None:
    with pytest.raises(ControlError, match=r"slot 7 has format 2, .* reads 1: run one release"):
        log.decode_record(b'[2,"a"]', "slot 7")


@pytest.mark.parametrize("name", ["", "a/b", "ü", "x" * 201, 7])
def test_a_name_that_is_no_part_of_a_key_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a table can't be called"):
        log.checked_name(name)


@pytest.mark.parametrize("key", ["", "x" * 1025, b"k", None])
def test_a_key_is_a_short_text(key: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is no key of a table"):
        log.checked_key(key)


# ---- versions ----


class Everything:
    """The same keys without a clever rule: all versions, and which of them are kept."""

    def __init__(self) -> None:
        self.all: dict[str, list[Version]] = {}
        self.kept: set[int] = set()

    def add(self, key: str, version: Version) -> None:
        self.all.setdefault(key, []).append(version)
        self.kept.add(version.number)

    def drop(self, now_us: int) -> None:
        for versions in self.all.values():
            for place, each in enumerate(versions[:-1]):
                newer = len(versions) - place - 1
                if (
                    newer >= OPTIONS.keep
                    and versions[place + 1].time_us + OPTIONS.keep_us <= now_us
                ):
                    self.kept.discard(each.number)
            if versions[-1].is_removal and versions[-1].time_us + OPTIONS.keep_us <= now_us:
                self.kept -= {each.number for each in versions}
                versions.clear()
        self.all = {key: versions for key, versions in self.all.items() if versions}


STEPS = st.lists(st.tuples(st.integers(1, 8), KEYS, st.booleans()), max_size=40)


@given(STEPS, st.integers(0, 40))
def test_versions_are_dropped_by_the_rule_also_after_a_load(
    steps: list[tuple[int, str, bool]], loaded_at: int
) -> None:
    versions, everything = Versions(OPTIONS.keep, OPTIONS.keep_us), Everything()
    now_us = 0
    for number, (pause_us, key, is_removal) in enumerate(steps, 1):
        now_us += pause_us
        version = Version(number, now_us, "w", 0 if is_removal else number, 8, (1,))
        versions.add(key, version)
        everything.add(key, version)
        before = set(everything.kept)
        everything.drop(now_us)
        dropped = versions.drop_old((Entry(key, number),), now_us)
        assert {each.number for each in dropped} == before - everything.kept
        if number == loaded_at:
            dumped, versions = versions.dump(), Versions(OPTIONS.keep, OPTIONS.keep_us)
            versions.load(dumped)
        assert versions.count == len(everything.kept)
    for key, all_of in everything.all.items():
        for time_us in range(now_us + 1):
            check_lookup(versions, key, time_us, all_of, everything.kept)


def check_lookup(
    versions: Versions, key: str, time_us: int, all_of: list[Version], kept: set[int]
) -> None:
    """A lookup is right, or says that the version was dropped, or may have been."""
    then = [each for each in all_of if each.time_us <= time_us]
    try:
        found = versions.at(key, time_us)
    except VersionDroppedError:
        assert not then or then[-1].number not in kept
    except VersionMissingError:
        assert not then or then[-1].is_removal
    else:
        assert found == then[-1]
        assert versions.find(key, found.number) == found


def test_errors_name_the_key_the_version_and_the_next_step() -> None:
    versions = Versions(keep=1, keep_us=0)
    for number in (1, 2, 3):
        versions.add("a", Version(number, number, "w", number if number < 3 else 0, 8, (1,)))
    with pytest.raises(VersionMissingError, match="the table has no key 'b'"):
        versions.latest("b")
    with pytest.raises(VersionMissingError, match="key 'a' has no value now: it was removed"):
        versions.latest("a")
    versions.drop_old((Entry("a", 1),), 3)
    with pytest.raises(VersionDroppedError, match=r"version 2 of key 'a' .* a larger keep_s"):
        versions.find("a", 2)
    with pytest.raises(KeyError) as raised:
        versions.at("a", 4)
    assert str(raised.value) == "key 'a' had no value at 0.000004"


# ---- states ----


def record(
    sequence: int, *entries: Entry, writer: str = "w.1", time_us: int = 0, low: int = 1
) -> Record:
    return Record(writer, sequence, 1, time_us, low, entries)


@given(
    st.lists(st.tuples(KEYS, st.integers(0, 9), st.sampled_from("uvw")), max_size=30),
    st.integers(0, 30),
)
def test_a_state_that_was_stored_goes_on_as_the_one_that_was_not(
    steps: list[tuple[str, int, str]], stored_at: int
) -> None:
    one, two = State(OPTIONS, "first"), State(OPTIONS, "first")
    for place, (key, number, writer) in enumerate(steps):
        sequence = (one.last_sequence(writer) or 0) + 1
        made = record(sequence, Entry(key, number, 8, (1, 2)), writer=writer, time_us=3 * place)
        assert one.apply(made, f"{place}") == two.apply(made, f"{place}")
        if place == stored_at:
            two = State.decode(two.encode(), "state 1")
    assert one.encode() == two.encode()


@given(st.binary(max_size=60))
def test_damaged_states_are_refused_by_name(data: bytes) -> None:
    whole = State(OPTIONS, "first").encode()
    for each in (data, whole[: len(data)]):
        with pytest.raises(ControlError, match=r"state 4 .* damaged"):
            State.decode(each, "state 4")


def test_a_record_that_comes_twice_or_too_early_is_void() -> None:
    state = State(OPTIONS, "first")
    put = Entry("a", 1, 8, (1,))
    assert not state.apply(record(1, put), "1").is_void
    for sequence in (1, 3):
        applied = state.apply(record(sequence, put), "2")
        assert applied.is_void and not applied.changes
    assert state.versions.count == 1


def test_times_ascend_whatever_the_records_say() -> None:
    state = State(OPTIONS, "first")
    times = []
    for sequence, time_us in enumerate((50, 20, 51, 90), 1):
        state.apply(record(sequence, time_us=time_us), "x")
        times.append(state.time_us)
    assert times == [50, 51, 52, 90]


def test_a_silent_writer_is_forgotten_with_the_values_that_it_may_have_stored() -> None:
    state = State(Options(writer_us=100), "first")
    state.apply(record(1, writer="dead", low=5), "x")
    state.apply(record(2, Entry("a", 6, 8, (1,)), writer="dead", low=5), "x")
    assert not state.is_due(101) and state.is_due(102), "the last record has time 2"
    made = [state.apply(record(each, time_us=40 * each), "x").garbage for each in range(1, 5)]
    assert made[:2] == [(), ()]
    (garbage,) = made[2]
    assert garbage.writer == "dead"
    assert garbage.numbers == (5, *range(7, 5 + log.NUMBERS_AHEAD))
    assert state.apply(record(3, writer="dead"), "x").is_void


def test_a_writer_that_leaves_is_forgotten_at_once_and_leaves_no_garbage() -> None:
    state = State(Options(writer_us=100), "first")
    state.apply(record(1, Entry("a", 1, 8, (1,))), "x")
    assert not state.apply(record(2, time_us=50, low=0), "x").garbage
    assert state.last_sequence("w.1") is None and not state.is_due(10_000)
    assert state.apply(record(3, time_us=60), "x").is_void


def test_garbage_that_its_writer_does_not_report_is_taken_over() -> None:
    state = State(Options(keep=1, keep_us=0, writer_us=100), "first")
    state.apply(record(1, Entry("a", 1, 8, (1,))), "x")
    dropped = state.apply(record(2, Entry("a", 2, 8, (1,)), time_us=50), "x").garbage
    assert [each.numbers for each in dropped] == [(1,)]
    assert not state.is_due(100)
    assert not state.apply(record(1, writer="v.1", time_us=149, low=0), "x").garbage
    state.apply(record(3, time_us=150), "x")
    assert list(state.garbage) == [4], "of the record that comes 100 us later"
    state.apply(Record("w.1", 4, 1, 160, 1, (), (4,)), "x")
    assert not state.garbage


# ---- compactions ----


@pytest.mark.parametrize(
    ("states", "slots", "left"),
    [
        ([], range(9), (list(range(9)), [8])),
        ([4], range(9), (list(range(4, 9)), [4, 8])),
        ([2, 4], [0, 3, 4, 5, 8], ([4, 5, 8], [4, 8])),
    ],
)
def test_the_state_before_the_newest_stays_with_the_log_after_it(
    states: list[int], slots: Any, left: tuple[list[int], list[int]]
) -> None:
    store = KeyValueStore(overwrites=False)
    store.slots = dict.fromkeys(slots, b"")
    store.states = dict.fromkeys(states, b"")
    for _ in perform(Compaction(8, b"state"), store):
        pass
    assert (sorted(store.slots), sorted(store.states)) == left


def test_a_failed_call_ends_a_compaction() -> None:
    store = KeyValueStore(overwrites=False)
    store.slots, store.states = dict.fromkeys(range(9), b""), {4: b""}
    compaction = Compaction(8, b"state")
    for calls, _ in enumerate(perform(compaction, store)):
        if calls == 4:
            compaction.handle_failure()
    assert compaction.poll_call() is None
    assert sorted(store.slots) == list(range(2, 9))


def perform(compaction: Compaction, store: KeyValueStore) -> Iterator[None]:
    while (call := compaction.poll_call()) is not None:
        compaction.handle_answer(store.perform(call))
        yield


# ---- replicas ----


def test_puts_that_wait_share_the_next_record() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.replica.handle_numbers(1, 3)
    (given,) = [each for each in process.settle() if isinstance(each, NumbersGiven)]
    for ticket, number in enumerate(given.numbers, 1):
        process.replica.handle_put(ticket, given.writer, [Entry(f"k{number}", number, 8, (1,))])
    events = process.settle()
    assert ended_tickets(events) == [1, 2, 3]
    (changed,) = [each for each in events if isinstance(each, Changed)]
    assert [each.key for each in changed.changes] == ["k1", "k2", "k3"]


@pytest.mark.parametrize("has_arrived", [True, False])
def test_a_put_whose_answer_is_lost_is_in_the_log_once(has_arrived: bool) -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.put(1, "a")
    process.replica.handle_numbers(2, 1)
    (given,) = process.settle()
    process.replica.handle_put(2, given.writer, [Entry("a", given.numbers[0], 8, (1,))])
    process.begin()
    if has_arrived:
        process.store.perform(process.call)
    process.replica.handle_failure(ControlError("no answer"))
    (failed,) = [each for each in process.settle() if isinstance(each, TicketFailed)]
    assert failed.is_unknown
    late = process.store.perform(process.call)
    assert late is None
    assert [len(each.changes) for each in process.store.applied] == [0, 0, 1, 1]


def test_a_read_finds_what_another_process_has_put() -> None:
    store = KeyValueStore(overwrites=False)
    one, two = Following(store, "one"), Following(store, "two")
    two.replica.handle_read(1)
    two.settle()
    one.put(1, "a")
    two.replica.handle_read(2)
    assert ended_tickets(two.settle()) == [2]
    assert two.replica.state is not None
    assert two.replica.state.versions.latest("a").value == 1


def test_a_read_at_a_time_appends_a_record_only_if_the_log_ends_before_it() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.put(1, "a")
    length = len(process.store.truth)
    process.replica.handle_read(2, at_us=1_000)
    assert ended_tickets(process.settle()) == [2]
    assert len(process.store.truth) == length
    process.now_us = 5_000
    process.replica.handle_read(3, at_us=4_000)
    assert ended_tickets(process.settle()) == [3]
    assert len(process.store.truth) == length + 1


def test_no_two_tries_to_found_a_table_write_the_same() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.replica.handle_read(1)
    tries = []
    for _ in range(3):
        process.begin()
        assert isinstance(process.call, AddSlot) and process.call.slot == 0
        tries.append(process.call.data)
        process.replica.handle_failure(ControlError("no answer"))
    assert len(set(tries)) == 3
    process.store.perform(process.call)
    process.replica.handle_read(2)
    assert ended_tickets(process.settle()) == [2]


def test_a_time_in_the_future_is_refused() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.replica.handle_read(1, at_us=3_000_000)
    (failed,) = process.settle()
    assert isinstance(failed.error, InvalidArgumentError)
    assert "at is 2.999000 s in the future of this process's clock" in str(failed.error)


def test_values_beyond_the_window_wait_until_earlier_ones_are_in_the_log() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.replica.handle_numbers(1, log.NUMBERS_AHEAD)
    process.replica.handle_numbers(2, 1)
    events = [each for each in process.settle() if isinstance(each, NumbersGiven)]
    (first,) = events
    process.replica.handle_release(first.writer, first.numbers)
    (second,) = [each for each in process.settle() if isinstance(each, NumbersGiven)]
    assert second.ticket == 2


def test_a_process_looks_at_the_log_before_it_appends_if_it_has_not_for_a_second() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.put(1, "a")
    process.now_us += 2_000_000
    process.replica.handle_put(2, process.replica.writer, [Entry("a", 0)])
    assert isinstance(process.replica.poll_call(process.now_us), ReadSlots)


def test_a_table_whose_keys_were_removed_says_so_for_ever() -> None:
    process = Following(KeyValueStore(overwrites=False))
    process.put(1, "a")
    process.store.slots.clear()
    process.replica.handle_read(2)
    for ticket in (2, 3):
        (failed,) = process.settle()
        assert failed.ticket == ticket
        assert "has lost slot 2 of its log" in str(failed.error)
        process.replica.handle_read(3)


def compact(store: KeyValueStore, events: list[Any]) -> None:
    for each in events:
        if isinstance(each, StateDue):
            for _ in perform(Compaction(each.slot, each.data), store):
                pass


@pytest.mark.parametrize(
    ("since", "is_there"), [(2, False), (11, False), (12, True), (17, True), (19, True)]
)
def test_earlier_records_are_read_as_far_back_as_the_log_goes(since: int, is_there: bool) -> None:
    store = KeyValueStore(overwrites=False)
    process = Following(store)
    for ticket in range(18):
        compact(store, process.put(ticket, f"k{ticket}"))
    assert min(store.slots) == 12
    reader = Following(store, "reader", since=since)
    reader.replica.handle_read(1)
    events = reader.settle()
    if is_there:
        keys = [
            change.key for each in events if isinstance(each, Changed) for change in each.changes
        ]
        assert keys[-1] == "k17"
    else:
        (failed,) = events
        assert isinstance(failed.error, VersionDroppedError)


def test_a_state_that_a_compaction_has_left_behind_is_no_beginning() -> None:
    store = KeyValueStore(overwrites=False)
    process = Following(store)
    ever: dict[int, bytes] = {}
    for ticket in range(18):
        compact(store, process.put(ticket, f"k{ticket}"))
        ever |= store.states
    store.states = ever
    assert min(ever) < 5 < min(store.slots)
    reader = Following(store, "reader", since=5)
    reader.replica.handle_read(1)
    (failed,) = reader.settle()
    assert isinstance(failed.error, VersionDroppedError)


@pytest.mark.parametrize("records", [3, 6])
def test_a_reader_of_earlier_records_begins_at_slot_0_while_the_log_is_whole(records: int) -> None:
    store = KeyValueStore(overwrites=False)
    process = Following(store)
    for ticket in range(records):
        compact(store, process.put(ticket, f"k{ticket}"))
    reader = Following(store, "reader", since=1)
    reader.replica.handle_read(1)
    slots = [each.slot for each in reader.settle() if isinstance(each, Changed)]
    assert slots == list(range(1, records + 2))


# ---- routes ----

HANDLERS = st.lists(st.text(max_size=4), min_size=1, max_size=6, unique=True)


@given(HANDLERS, st.text(max_size=4), st.data())
def test_only_the_keys_of_a_handler_that_leaves_move(
    handlers: list[str], key: str, data: Any
) -> None:
    ranked = rank_by_key(key, handlers)
    assert sorted(ranked) == sorted(handlers)
    gone = data.draw(st.sampled_from(handlers))
    left = rank_by_key(key, [each for each in reversed(handlers) if each != gone])
    assert left == [each for each in ranked if each != gone]


def test_keys_are_spread_over_the_handlers() -> None:
    first = Counter(rank_by_key(f"key/{number}", "abcd")[0] for number in range(4_000))
    assert max(first.values()) < 1.15 * 1_000


@pytest.mark.parametrize(
    ("under_way", "last_turn", "ranked"),
    [
        ({}, {}, ["a", "b", "c"]),
        ({"a": 1}, {"a": 1}, ["b", "c", "a"]),
        ({}, {"a": 3, "b": 1, "c": 2}, ["b", "c", "a"]),
        ({"b": 2, "c": 1}, {"a": 9}, ["a", "c", "b"]),
    ],
)
def test_the_handler_with_the_fewest_values_is_first_and_then_the_longest_idle(
    under_way: dict[str, int], last_turn: dict[str, int], ranked: list[str]
) -> None:
    assert rank_by_load("cab", under_way, last_turn) == ranked
