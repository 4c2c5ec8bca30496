"""One process's replica of a table: it follows the log, and appends to it. START HERE.

A put, seen from the key-value store:

    ReadSlots(12, 5)     slot 12 is the last one that this process knows; 13 is not there
    AddSlot(13, ...)     whatever is answered, the next read shows what is in 13
    ReadSlots(12, 5)     slot 12 is what it was, and 13 has the record: the put is done

Slots are removed in ascending order (compaction.py). If slot 12 is what it was, no slot after it
has been removed at that moment. So an absent slot 13 is the end of the log, and a record in 13 is
the first one that was ever there. Without that check a process that is far behind could append to a
slot that was removed, or read such a record. tests/unit/test_tables_simulation.py shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from hoplite_ray.errors import ControlError, HopliteError, InvalidArgumentError
from hoplite_ray.tables.calls import (
    AddSlot,
    Answer,
    Call,
    Changed,
    Event,
    NumbersGiven,
    PutDone,
    ReadDone,
    ReadSlots,
    Skipped,
    StateDue,
    Sweep,
    TicketFailed,
)
from hoplite_ray.tables.log import (
    ENTRIES_MAX,
    NUMBERS_AHEAD,
    Entry,
    Options,
    Record,
    decode_record,
    encode_record,
    mark,
)
from hoplite_ray.tables.opening import Opening
from hoplite_ray.tables.state import Applied, State

_LOOK_SLOTS = 4  # that one look reads; doubles while all of them have records, up to the maximum
_LOOK_SLOTS_MAX = 256
# A process looks before it appends if its last look is older: the table may have forgotten it.
_LOOK_AGE_US = 1_000_000
_AHEAD_US_MAX = 1_000_000  # of a time that a read takes: clocks differ; a later one is an error
_SWEPT_MAX = 256  # slots that one record reports as swept
_QUARTERS = 4  # of the time for which a writer is remembered; it says that it lives after one


class WriterForgottenError(ControlError):
    """The table has forgotten this writer, and its put has not taken effect and never will."""


class Step(Enum):
    """The call under way."""

    NONE = auto()
    OPENING = auto()  # one of those that find the state
    LOOKING = auto()  # read the last known slot and the next ones
    ADDING = auto()  # write the next slot


@dataclass(frozen=True, slots=True)
class _Put:
    """A put whose values are stored, which waits for its record."""

    ticket: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that waits for the log's end, and for a record not earlier than `at_us`."""

    ticket: int
    at_us: int


@dataclass(slots=True)
class _Batch:
    """A record that is being appended, until it is known to be in the log.

    `puts` is empty after a failure: their callers know that the outcome is unknown.
    """

    sequence: int
    entries: tuple[Entry, ...]
    puts: tuple[_Put, ...]
    swept: tuple[int, ...]
    attempts: int = 0


class Replica:
    """Reads and appends of one process. Pure: times are arguments. Not safe for threads.

    Call `poll_call` after each `handle_*`, and then `poll_event` until it returns None. One call is
    under way at a time: `poll_call` returns it, and `handle_answer` or `handle_failure` ends it.
    """

    def __init__(
        self, table: str, name: str, options: Options, *, since: int | None = None
    ) -> None:
        """Begin with nothing known.

        Args: name: random; it becomes the id of this process as a writer.
              options: they count if the table is new.
              since: the slot that the log is read from at least, for a reader of earlier records.
        """
        self.state: State | None = None
        self._table = table
        self._name = name
        self._life = 1  # of this process as a writer
        self._options = options
        self._is_reader = since is not None  # True if it appends nothing
        self._step = Step.NONE
        self._opening: Opening | None = Opening(table, options, name, upto=since)
        self._error: HopliteError | None = None  # for every operation: the table is lost
        self._must_look = False
        self._looked_us = 0
        self._look_slots = _LOOK_SLOTS
        self._is_known = False  # True if the log has a record of this writer
        self._is_leaving = False  # True if the record under way says that this writer leaves
        self._is_due = False  # True if a record is due that no caller waits for
        self._next_number = 1
        self._outstanding: set[int] = set()  # numbers of values that may still be put
        self._batch: _Batch | None = None
        self._puts: deque[_Put] = deque()
        self._numbers_wanted: deque[tuple[int, int]] = deque()  # (ticket, count)
        self._reads: list[_Read] = []  # that wait for a look to begin
        self._looking: list[_Read] = []  # for the end of a look that has begun
        self._ticking: list[_Read] = []  # for a record that is later than the last one
        self._swept: list[int] = []
        self._events: deque[Event] = deque()

    @property
    def error(self) -> HopliteError | None:
        """The error of every operation from now on, if the table is damaged or gone."""
        return self._error

    @property
    def writer(self) -> str:
        """The id of this process as a writer."""
        return f"{self._name}.{self._life}"

    @property
    def looked_us(self) -> int:
        """The time of the last look at the log."""
        return self._looked_us

    @property
    def look_every_us(self) -> int:
        """The time after the last look at which the process shall look again, unasked.

        A writer looks more often, because its own record of being alive may be due.
        """
        if self.state is None:
            return self._options.writer_us
        is_busy = self._swept or self.state.last_sequence(self.writer) is not None
        return _quarter(self.state) if is_busy else self.state.options.writer_us

    # ---- in ----

    def handle_read(self, ticket: int, at_us: int = 0) -> None:
        """Bring the state up to the log's present end, and to a record not earlier than `at_us`.

        Ends by ReadDone. Every later record is later than `at_us` then, so that a lookup at that
        time has the same result for ever. If the state is there already, nothing is asked.
        """
        if self._error is not None:
            self._fail(ticket, self._error)
        elif at_us and self.state is not None and self.state.time_us >= at_us:
            self._events.append(ReadDone(ticket))
        else:
            self._reads.append(_Read(ticket, at_us))

    def handle_numbers(self, ticket: int, count: int) -> None:
        """Give numbers to values that are to be stored; ends by NumbersGiven.

        REQUIRES: `count` is at most NUMBERS_AHEAD.
        """
        if self._error is not None:
            self._fail(ticket, self._error)
        else:
            self._numbers_wanted.append((ticket, count))

    def handle_put(self, ticket: int, writer: str, entries: Sequence[Entry]) -> None:
        """Append new versions, which one record has; ends by PutDone.

        REQUIRES: the values are stored under numbers of `writer`; at most ENTRIES_MAX entries.
        """
        if self._error is not None:
            self._fail(ticket, self._error)
        elif writer != self.writer:
            self._fail(ticket, _forgotten_error(self._table))
        else:
            self._puts.append(_Put(ticket, tuple(entries)))

    def handle_release(self, writer: str, numbers: Sequence[int]) -> None:
        """Forget numbers that will not be put. REQUIRES: their objects are deleted."""
        if writer == self.writer:
            self._outstanding.difference_update(numbers)

    def handle_swept(self, slots: Sequence[int]) -> None:
        """Report in a later record that the garbage of these slots is deleted."""
        self._swept += slots

    def handle_answer(self, answer: Answer, now_us: int) -> None:
        """Take the answer of the call under way."""
        step, self._step = self._step, Step.NONE
        try:
            match step:
                case Step.OPENING:
                    self._take_opening(answer)
                case Step.LOOKING:
                    assert isinstance(answer, list)
                    self._take_look(answer, now_us)
                case Step.ADDING:
                    self._must_look = True
                case Step.NONE:
                    raise AssertionError("no call is under way")
        except HopliteError as error:  # the log is damaged, of another release, or has gone
            self._error = error
            self._fail_all(error)

    def handle_failure(self, error: HopliteError) -> None:
        """Take it that the outcome of the call under way is unknown; every caller fails."""
        self._step = Step.NONE
        self._must_look = True
        if self._opening is not None:
            self._opening.handle_failure()
        self._fail_all(error)

    # ---- out ----

    def poll_event(self) -> Event | None:
        """Return the next event; None if there is none."""
        return self._events.popleft() if self._events else None

    def poll_call(self, now_us: int) -> Call | None:
        """Return the next call; None while one is under way, or while nothing is to be done."""
        if self._step is not Step.NONE or self._error is not None:
            return None
        if self._opening is not None:
            self._step = Step.OPENING
            return self._opening.poll_call()
        state = self.state
        assert state is not None
        is_old = now_us - self._looked_us > min(_LOOK_AGE_US, _quarter(state))
        if not is_old:  # else the table may have forgotten this writer
            self._give_numbers(state, now_us)
        is_adding = self._is_to_append(state, now_us)
        wants_look = self._reads or (is_old and (is_adding or self._numbers_wanted))
        if self._must_look or (wants_look and (is_old or not is_adding)):
            self._step, self._must_look = Step.LOOKING, False
            self._looked_us = now_us
            self._looking += self._reads
            self._reads = []
            return ReadSlots(state.slot, 1 + self._look_slots)
        if is_adding:
            self._step = Step.ADDING
            return AddSlot(state.slot + 1, self._compose(state, now_us))
        return None

    # ---- the log ----

    def _take_opening(self, answer: Answer) -> None:
        opening = self._opening
        assert opening is not None
        opening.handle_answer(answer)
        if opening.state is None:
            return
        before, self.state, self._opening = self.state, opening.state, None
        self._must_look = True
        if before is not None:
            self._events.append(Skipped(before.slot, self.state.slot))
            self._check_batch(self.state)
            if self._batch is not None:  # its record may be in the log, and forgotten since
                self._is_known = True
            self._check_writer(self.state)
            self._end_ticking(self.state)

    def _take_look(self, slots: Sequence[bytes | int | None], now_us: int) -> None:
        state = self.state
        assert state is not None
        known, *later = slots
        if not isinstance(known, bytes) or mark(known) != state.mark:
            # The slot was removed: this process is behind the compaction.
            self._opening = Opening(self._table, self._options, self._name, above=state.slot)
            return
        for data in later:
            if not isinstance(data, bytes):
                self._look_slots = _LOOK_SLOTS
                self._end_looking(state, now_us)
                return
            self._apply(state, data)
        self._look_slots = min(2 * self._look_slots, _LOOK_SLOTS_MAX)
        self._must_look = True  # there may be more

    def _apply(self, state: State, data: bytes) -> None:
        record = decode_record(data, f"slot {state.slot + 1} of table {self._table!r}")
        applied = state.apply(record, mark(data))
        self._is_due = False
        self._events.append(Changed(applied.slot, applied.changes))
        if record.writer == self.writer and not applied.is_void:
            self._take_own(state, record, applied)
        else:
            self._drop_empty_batch()
        self._check_writer(state)
        self._end_ticking(state)

    def _take_own(self, state: State, record: Record, applied: Applied) -> None:
        """Take a record of this writer, whose duties are this process's."""
        self._is_known = True
        batch = self._batch
        assert batch is not None and batch.sequence == record.sequence
        versions = iter([each.version for each in applied.changes])
        for put in batch.puts:
            self._events.append(PutDone(put.ticket, tuple(next(versions) for _ in put.entries)))
        self._end_batch(batch)
        if applied.garbage:
            self._events.append(Sweep((applied.slot,), applied.garbage))
        if applied.is_due:
            self._events.append(StateDue(state.slot, state.encode()))

    # ---- appends ----

    def _is_to_append(self, state: State, now_us: int) -> bool:
        """Return True if a record is to be appended."""
        is_shut = self._numbers_wanted and not self._is_open(state, now_us)
        is_narrow = self._numbers_wanted and not is_shut and self._low() > state.low(self.writer)
        is_asked = self._batch or self._puts or self._ticking
        return bool(is_asked or self._is_due or is_shut or is_narrow)

    def _is_open(self, state: State, now_us: int) -> bool:
        """Return True if values may be stored: the table will know this writer for a while."""
        age_us = state.age_us(self.writer, now_us)
        return age_us is not None and age_us < _quarter(state)

    def _find_due(self, state: State, now_us: int) -> bool:
        """Return True if a record is due that no caller waits for. REQUIRES: a look has ended.

        A writer says in time that it lives, or leaves. Another process reports what it has swept.
        """
        if self._is_reader:
            return False
        age_us = state.age_us(self.writer, now_us)
        is_own = bool(self._swept) if age_us is None else age_us >= _quarter(state)
        return is_own or state.is_due(now_us)

    def _is_to_leave(self, state: State, batch: _Batch, now_us: int) -> bool:
        """Return True if the record of `batch` is this writer's last one.

        No value is under way under its numbers, and it has appended nothing else for a while.
        """
        is_busy = batch.entries or self._outstanding or self._numbers_wanted
        return not (is_busy or self._is_open(state, now_us))

    def _low(self) -> int:
        """Return the lowest number of a value that may still be put, except by the batch."""
        own = {each.number for each in self._batch.entries} if self._batch else set()
        return min(self._outstanding - own, default=self._next_number)

    def _give_numbers(self, state: State, now_us: int) -> None:
        """Give numbers as far as the log allows, for which it has to know this writer.

        p: adds its last record │ p: is asked for numbers │ p: reads that record

        A number that is given in between would be of a writer that has left.
        """
        if self._is_leaving or not self._is_open(state, now_us):
            return
        end = state.low(self.writer) + NUMBERS_AHEAD
        while self._numbers_wanted and self._next_number + self._numbers_wanted[0][1] <= end:
            ticket, count = self._numbers_wanted.popleft()
            numbers = tuple(range(self._next_number, self._next_number + count))
            self._next_number += count
            self._outstanding.update(numbers)
            self._events.append(NumbersGiven(ticket, self.writer, numbers))

    def _compose(self, state: State, now_us: int) -> bytes:
        """Return the record of the batch for the next slot; make a batch of all that waits.

        The first record of a writer has no values, because numbers are given after it. From then on
        every process can name the values that this one may leave behind.
        """
        if self._batch is None:
            self._batch = self._make_batch(state.last_sequence(self.writer) or 0)
        batch = self._batch
        batch.attempts += 1
        self._is_leaving = self._is_to_leave(state, batch, now_us)
        earliest = max((each.at_us for each in self._ticking), default=0)
        return encode_record(
            Record(
                *(self.writer, batch.sequence, batch.attempts),
                max(state.time_us + 1, now_us, earliest),
                0 if self._is_leaving else self._low(),
                *(batch.entries, batch.swept),
            )
        )

    def _make_batch(self, last_sequence: int) -> _Batch:
        puts: list[_Put] = []
        count = 0
        while self._puts and count + len(self._puts[0].entries) <= ENTRIES_MAX:
            put = self._puts.popleft()
            puts.append(put)
            count += len(put.entries)
        swept, self._swept = self._swept[:_SWEPT_MAX], self._swept[_SWEPT_MAX:]
        entries = tuple(entry for put in puts for entry in put.entries)
        return _Batch(last_sequence + 1, entries, tuple(puts), tuple(swept))

    def _end_batch(self, batch: _Batch) -> None:
        self._outstanding.difference_update(each.number for each in batch.entries)
        self._batch = None
        self._is_leaving = False

    def _drop_empty_batch(self) -> None:
        """Drop a batch without versions: another record is in its slot, and may have done its work.

        Processes that find the same work due would append one record each otherwise.
        """
        batch = self._batch
        if batch is not None and not batch.entries and not batch.puts:
            self._swept = [*batch.swept, *self._swept]
            self._end_batch(batch)

    def _check_batch(self, state: State) -> None:
        """Find out from a loaded state whether the batch is in the log."""
        batch = self._batch
        last = state.last_sequence(self.writer)
        if batch is None or last is None or last < batch.sequence:
            return
        self._is_known = True
        self._report_found(state, batch)
        self._end_batch(batch)

    def _report_found(self, state: State, batch: _Batch) -> None:
        find = state.versions.find_value
        for put in batch.puts:
            found = (find(each.key, self.writer, each.number) for each in put.entries)
            self._events.append(PutDone(put.ticket, tuple(found)))

    def _check_writer(self, state: State) -> None:
        """Begin as another writer if the table has forgotten this one."""
        if not self._is_known or state.last_sequence(self.writer) is not None:
            return
        if self._batch is not None:
            for put in self._batch.puts:
                error = _unknown_error(self._table)
                self._events.append(TicketFailed(put.ticket, error, is_unknown=True))
        puts, self._puts = self._puts, deque()
        for put in puts:
            if any(each.number for each in put.entries):
                self._fail(put.ticket, _forgotten_error(self._table))
            else:
                self._puts.append(put)  # it has no values under numbers of the forgotten writer
        self._batch = None
        self._is_leaving = False
        self._life += 1
        self._is_known = False
        self._next_number = 1
        self._outstanding.clear()

    # ---- the ends of operations ----

    def _end_looking(self, state: State, now_us: int) -> None:
        """End the reads that had begun before the log's end was seen."""
        self._is_due = self._find_due(state, now_us)
        reads, self._looking = self._looking, []
        for read in reads:
            if read.at_us <= state.time_us:
                self._events.append(ReadDone(read.ticket))
            elif read.at_us > now_us + _AHEAD_US_MAX:
                self._fail(read.ticket, _future_error(read.at_us - now_us))
            else:
                self._ticking.append(read)

    def _end_ticking(self, state: State) -> None:
        if self._ticking:
            ended = [each for each in self._ticking if each.at_us <= state.time_us]
            self._ticking = [each for each in self._ticking if each.at_us > state.time_us]
            self._events.extend(ReadDone(each.ticket) for each in ended)

    def _fail(self, ticket: int, error: HopliteError) -> None:
        self._events.append(TicketFailed(ticket, error))

    def _fail_all(self, error: HopliteError) -> None:
        """Fail every operation. A batch stays, because its record may be in the log."""
        for read in (*self._reads, *self._looking, *self._ticking):
            self._fail(read.ticket, error)
        for ticket, _ in self._numbers_wanted:
            self._fail(ticket, error)
        for put in self._puts:
            self._fail(put.ticket, error)
        self._reads, self._looking, self._ticking = [], [], []
        self._numbers_wanted.clear()
        self._puts.clear()
        if self._batch is not None:
            for put in self._batch.puts:
                self._events.append(TicketFailed(put.ticket, error, is_unknown=True))
            self._batch.puts = ()


def _quarter(state: State) -> int:
    return max(1, state.options.writer_us // _QUARTERS)


def _forgotten_error(table: str) -> WriterForgottenError:
    return WriterForgottenError(
        f"table {table!r} has forgotten this process, which has appended nothing for long: put "
        "the value again"
    )


def _unknown_error(table: str) -> ControlError:
    return ControlError(
        f"it is unknown whether a put into table {table!r} took effect: the process stood still "
        "for so long that the table has forgotten it; get the key to see"
    )


def _future_error(ahead_us: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"at is {ahead_us / 1e6:.6f} s in the future of this process's clock: a version may still "
        "come before it; take a time that is over, and keep the machines' clocks in step"
    )
