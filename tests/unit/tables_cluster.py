"""A cluster of processes with one table, in virtual time, and what must be true of it.

The key-value store answers late, or executes a request after its caller has given it up. Processes
have wrong clocks, stand still and die at any step. Times are microseconds.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from hoplite_ray.errors import ControlError, HopliteError, VersionDroppedError, VersionMissingError
from hoplite_ray.tables.calls import (
    AddSlot,
    AddState,
    Call,
    Changed,
    ListSlots,
    ListStates,
    NumbersGiven,
    PutDone,
    ReadDone,
    ReadSlots,
    ReadState,
    RemoveSlot,
    RemoveState,
    Skipped,
    StateDue,
    Sweep,
    TicketFailed,
)
from hoplite_ray.tables.compaction import Compaction
from hoplite_ray.tables.log import (
    Entry,
    Garbage,
    Options,
    decode_options,
    decode_record,
    mark,
    value_ids,
)
from hoplite_ray.tables.replica import Replica
from hoplite_ray.tables.state import Applied, State

KEYS = ("x", "y", "a", "b")
TIMEOUT_US = 20_000
BUSY_MAX = 4  # operations that a process does at once
COPIES = 2
OPTIONS = Options(keep=2, keep_us=20_000, records_per_state=3, writer_us=50_000)


class Violation(AssertionError):
    """A rule of tables is broken."""


def require(holds: bool, rule: str, *seen: Any) -> None:
    if not holds:
        raise Violation(f"{rule}: {seen}")


class KeyValueStore:
    """The shared store, and the truth: the record that each slot had first."""

    def __init__(self, *, overwrites: bool) -> None:
        self.slots: dict[int, bytes] = {}
        self.states: dict[int, bytes] = {}
        self.overwrites = overwrites  # True breaks put-if-absent
        self.truth: list[bytes] = []
        self.applied: list[Applied] = []
        self.state: State | None = None
        self.late_adds = 0  # to slots that were removed

    def perform(self, call: Call) -> Any:
        match call:
            case AddSlot():
                self._add(call.slot, call.data)
            case ReadSlots():
                return [self.slots.get(call.first + each) for each in range(call.count)]
            case ReadState():
                return self.states.get(call.slot)
            case ListStates():
                return sorted(self.states)
            case ListSlots():
                return sorted(self.slots)
            case AddState():
                self.states.setdefault(call.slot, call.data)
            case RemoveSlot():
                self.slots.pop(call.slot, None)
            case RemoveState():
                self.states.pop(call.slot, None)
        return None

    def _add(self, slot: int, data: bytes) -> None:
        if slot in self.slots and not self.overwrites:
            return
        self.slots[slot] = data
        require(slot <= len(self.truth), "no slot is left out", slot, len(self.truth))
        if slot < len(self.truth):
            self.late_adds += 1
            return
        self.truth.append(data)
        if self.state is None:
            self.state = State(decode_options(data, "slot 0"), mark(data))
            self.applied.append(Applied(0, False, (), (), False))
        else:
            self.applied.append(self.state.apply(decode_record(data, "a slot"), mark(data)))


@dataclass
class Operation:
    """What a process does now; `then` takes the event that ends it."""

    then: Callable[[Any], None]
    failed: Callable[[TicketFailed], None]


class Process:
    """One process: its machines, its clock, and what it has seen."""

    def __init__(self, cluster: Cluster, name: str, offset_us: int) -> None:
        self.cluster = cluster
        self.name = name
        self.offset_us = offset_us
        self.replica = Replica("t", name, OPTIONS)
        self.compactions: deque[Compaction] = deque()
        self.is_compacting = False
        self.is_alive = True
        self.busy = 0  # operations that have begun
        self.seen: int | None = None  # the last slot that its watchers have heard of
        self.operations: dict[int, Operation] = {}

    def clock(self) -> int:
        return self.cluster.now_us + self.offset_us

    def start(self, ask: Callable[[int], None], then: Callable[[Any], None]) -> None:
        """Begin an operation: `ask` hands its ticket to the replica."""
        ticket = next(self.cluster.tickets)
        self.operations[ticket] = Operation(then, lambda failed: self.end())
        ask(ticket)
        self.poll()

    def end(self) -> None:
        self.busy -= 1

    def poll(self) -> None:
        call = self.replica.poll_call(self.clock())
        if call is not None:
            self.cluster.send(self, call, self._take_answer, self._take_failure)
        while (event := self.replica.poll_event()) is not None:
            self._take(event)
        if self.compactions and not self.is_compacting:
            self.is_compacting = True
            self._compact()

    def _take_answer(self, answer: Any) -> None:
        self.replica.handle_answer(answer, self.clock())
        self.poll()

    def _take_failure(self) -> None:
        self.replica.handle_failure(ControlError("no answer"))
        self.poll()

    def _compact(self) -> None:
        call = self.compactions[0].poll_call()
        if call is not None:
            self.cluster.send(self, call, self._compact_on, self._compact_no_more)
            return
        self.compactions.popleft()
        self.is_compacting = bool(self.compactions)
        if self.is_compacting:
            self._compact()

    def _compact_on(self, answer: Any) -> None:
        self.compactions[0].handle_answer(answer)
        self._compact()

    def _compact_no_more(self) -> None:
        self.compactions[0].handle_failure()
        self._compact()

    def _take(self, event: Any) -> None:
        match event:
            case ReadDone() | NumbersGiven() | PutDone():
                self.operations.pop(event.ticket).then(event)
            case TicketFailed():
                self.operations.pop(event.ticket).failed(event)
            case Changed():
                self._watch(event)
            case Skipped():
                require(event.upto > event.after, "a skip goes on", event)
                self.seen = event.upto
                self.cluster.counts["skips"] += 1
            case Sweep():
                self.cluster.after(self.cluster.delay(), self, lambda: self._sweep(event))
            case StateDue():
                self.compactions.append(Compaction(event.slot, event.data))

    def _watch(self, event: Changed) -> None:
        truth = self.cluster.store.applied[event.slot]
        require(self.seen is None or event.slot == self.seen + 1, "watchers hear all, in order")
        require(event.changes == truth.changes, "watchers hear the truth", event, truth)
        self.seen = event.slot

    def _sweep(self, event: Sweep) -> None:
        self.cluster.delete(event.garbage)
        self.replica.handle_swept(event.slots)


@dataclass
class Cluster:
    """One life of a table, from a seed."""

    seed: int
    overwrites: bool = False
    now_us: int = 1_000_000_000
    events: list[Any] = field(default_factory=list)
    is_quiet: bool = False  # True when no more faults happen
    objects: set[bytes] = field(default_factory=set)
    payloads: dict[tuple[str, int], int] = field(default_factory=dict)
    answers: dict[tuple[str, int], int | str] = field(default_factory=dict)
    forgotten: set[bytes] = field(default_factory=set)  # objects of writers that the table forgot
    stored: dict[tuple[str, int], str] = field(default_factory=dict)  # value -> what became of it
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.store = KeyValueStore(overwrites=self.overwrites)
        self.tickets = iter(range(1, 1_000_000))
        self.numbers = iter(range(1, 1_000_000))
        self.late_share = self.random.choice((0.03, 0.15))
        self.skew_us = self.random.choice((0, 3_000, 100_000, 5_000_000))
        self.processes = [self.spawn() for _ in range(self.random.randint(2, 4))]

    def spawn(self) -> Process:
        name = f"p{next(self.numbers)}"
        return Process(self, name, self.random.randint(-self.skew_us, self.skew_us))

    # ---- time ----

    def after(self, delay_us: int, process: Process, act: Callable[[], None]) -> None:
        heappush(self.events, (self.now_us + delay_us, next(self.numbers), process, act))

    def delay(self) -> int:
        chance = self.random.random()
        if self.is_quiet or chance > self.late_share:
            return 50 + int(400 * self.random.random())
        return int((10_000 if 3 * chance > self.late_share else 80_000) * self.random.random())

    def send(
        self,
        process: Process,
        call: Call,
        answered: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        there, back = self.delay(), self.delay()
        is_late = there + back > TIMEOUT_US
        # A process that stands still takes the answer late, and no failure.
        stands_still = is_late and self.random.random() < 0.5
        answers: list[Any] = []

        def execute() -> None:
            answers.append(self.store.perform(call))

        def end() -> None:
            if is_late and not stands_still:
                failed()
            else:
                answered(answers[0])

        heappush(self.events, (self.now_us + there, next(self.numbers), None, execute))
        self.after(there + back if stands_still or not is_late else TIMEOUT_US, process, end)

    def step(self) -> None:
        self.now_us, _, process, act = heappop(self.events)
        if process is None or process.is_alive:
            act()

    # ---- life ----

    def run(self, operations: int) -> None:
        """Run a life with faults, then a quiet end, and check all of it."""
        for _ in range(operations):
            self._begin_operation()
            for _ in range(self.random.randint(1, 12)):
                if self.events:
                    self.step()
        self.is_quiet = True
        self._settle()
        for process in self.processes:
            self.put(process, {"z": self.random.random()})
            self._settle()
            self.read_cut(process)
            self._settle()
            require(process.busy == 0, "a put and a read end when no faults happen")
        self._forget_the_dead()
        self._check_end()

    def _forget_the_dead(self) -> None:
        """Have the processes look, and put nothing, until the dead are forgotten."""
        self.now_us += 2 * self.skew_us  # the log may be ahead of this process's clock
        for _ in range(12):
            self.now_us += OPTIONS.writer_us // 4
            for process in self.processes:
                if process.clock() >= process.replica.looked_us + process.replica.look_every_us:
                    self.look(process)
            self._settle()
        length = len(self.store.truth)
        for _ in range(3):
            self.now_us += OPTIONS.writer_us
            for process in self.processes:
                self.look(process)
            self._settle()
        require(len(self.store.truth) == length, "a table that is at rest gets no more records")

    def _settle(self) -> None:
        limit = len(self.events) + 3_000
        while self.events and (limit := limit - 1):
            self.step()
        require(not self.events, "all comes to an end")

    def _begin_operation(self) -> None:
        process = self.random.choice(self.processes)
        chance = self.random.random()
        if chance < 0.03:
            self._kill(process)
        elif process.busy >= BUSY_MAX:
            return
        elif chance < 0.3:
            value = next(self.numbers)
            self.put(process, {"x": value, "y": value})
        elif chance < 0.5:
            self.put(process, {self.random.choice(("a", "b")): next(self.numbers)})
        elif chance < 0.55:
            self.remove(process, self.random.choice(("a", "b")))
        elif chance < 0.65:
            self.read_cut(process)
        elif chance < 0.75:
            self.look(process)
        elif chance < 0.9 or not self.answers:
            self.read_at(process, process.clock() - int(20_000 * self.random.random()))
        else:
            self.read_at(process, self.random.choice(list(self.answers))[1])

    def _kill(self, process: Process) -> None:
        process.is_alive = False
        self.processes.remove(process)
        self.processes.append(self.spawn())
        self.counts["kills"] += 1

    # ---- operations ----

    def put(self, process: Process, values: dict[str, Any]) -> None:
        process.busy += 1

        def store_values(event: NumbersGiven) -> None:
            entries = [
                Entry(key, number, 8, (1,) * COPIES)
                for key, number in zip(values, event.numbers, strict=True)
            ]
            for number, value in zip(event.numbers, values.values(), strict=True):
                self.payloads[event.writer, number] = value
            ids = [
                each
                for number in event.numbers
                for each in value_ids("t", event.writer, number, COPIES)
            ]
            self._store(event.writer, ids[: len(ids) // 2])
            self.after(self.delay(), process, lambda: append(event, entries, ids))

        def append(event: NumbersGiven, entries: list[Entry], ids: list[bytes]) -> None:
            self._store(event.writer, ids)

            def fail(failed: TicketFailed) -> None:
                self.counts["unknown puts"] += failed.is_unknown
                if not failed.is_unknown:
                    self._note(event, "failed")
                    self.objects.difference_update(ids)
                    process.replica.handle_release(event.writer, event.numbers)
                process.end()

            ticket = next(self.tickets)
            process.operations[ticket] = Operation(
                lambda done: self._put_done(process, event), fail
            )
            process.replica.handle_put(ticket, event.writer, entries)
            process.poll()

        process.start(
            lambda ticket: process.replica.handle_numbers(ticket, len(values)), store_values
        )

    def _store(self, writer: str, ids: list[bytes]) -> None:
        """Store copies of values.

        No process deletes them if the table has forgotten their writer by then, and it dies before
        it finds that out: it has stood still for longer than a writer is remembered.
        """
        self.objects.update(ids)
        assert self.store.state is not None
        if self.store.state.last_sequence(writer) is None:
            self.forgotten.update(ids)

    def _put_done(self, process: Process, event: NumbersGiven) -> None:
        self._note(event, "done")
        self.counts["puts"] += 1
        self.counts["renewals"] += not event.writer.endswith(".1")
        process.end()

    def _note(self, event: NumbersGiven, what: str) -> None:
        for number in event.numbers:
            self.stored[event.writer, number] = what

    def remove(self, process: Process, key: str) -> None:
        process.busy += 1
        writer = process.replica.writer
        process.start(
            lambda ticket: process.replica.handle_put(ticket, writer, [Entry(key, 0)]),
            lambda done: process.end(),
        )

    def look(self, process: Process) -> None:
        """Look at the log, as a process does from time to time."""
        process.busy += 1
        process.start(process.replica.handle_read, lambda event: process.end())

    def read_cut(self, process: Process) -> None:
        """Read all keys at the time of the log's end."""
        process.busy += 1
        least = len(self.store.truth) - 1

        def look_up(event: ReadDone) -> None:
            state = process.replica.state
            assert state is not None
            require(state.slot >= least, "a read sees all puts before it", state.slot, least)
            self._check_prefix(state)
            found = {key: self._look_up(state, key, state.time_us) for key in KEYS}
            if all(type(found[key]) is int for key in ("x", "y")):
                x, y = (self._payload(state, key) for key in ("x", "y"))
                require(x == y, "two keys of one put are of one put in a cut", x, y)
            self.counts["cuts"] += 1
            process.end()

        process.start(process.replica.handle_read, look_up)

    def _payload(self, state: State, key: str) -> int:
        version = state.versions.at(key, state.time_us)
        return self.payloads[version.writer, version.value]

    def read_at(self, process: Process, time_us: int) -> None:
        process.busy += 1

        def look_up(event: ReadDone) -> None:
            state = process.replica.state
            assert state is not None
            self._check_prefix(state)
            for key in KEYS:
                self._look_up(state, key, time_us)
            self.counts["reads at a time"] += 1
            process.end()

        process.start(lambda ticket: process.replica.handle_read(ticket, time_us), look_up)

    def _look_up(self, state: State, key: str, time_us: int) -> int | str:
        try:
            version = state.versions.at(key, time_us)
        except VersionMissingError:
            found: int | str = "missing"
        except VersionDroppedError:
            return "dropped"
        else:
            found = version.number
            ids = value_ids("t", version.writer, version.value, COPIES)
            if not self.objects.issuperset(ids):
                self._require_dropped(key, version.number)
        before = self.answers.setdefault((key, time_us), found)
        require(found == before, "get(at) never changes", key, time_us, before, found)
        return found

    def _require_dropped(self, key: str, number: int) -> None:
        assert self.store.state is not None
        try:
            self.store.state.versions.find(key, number)
        except VersionDroppedError:
            return
        require(False, "the value of a version that is kept is there", key, number)

    def _check_prefix(self, state: State) -> None:
        truth = self.store.truth[state.slot]
        require(mark(truth) == state.mark, "every process has read the same log", state.slot)

    def delete(self, garbage: tuple[Garbage, ...]) -> None:
        for each in garbage:
            for number in each.numbers:
                self.objects.difference_update(value_ids("t", each.writer, number, each.copies))

    # ---- the end ----

    def _check_end(self) -> None:
        truth = self.store.state
        assert truth is not None
        history: dict[str, list[tuple[int, int]]] = {}
        landed: Counter[tuple[str, int]] = Counter()
        for applied in self.store.applied:
            for change in applied.changes:
                version = change.version
                number = 0 if version.is_removal else version.number
                history.setdefault(change.key, []).append((version.time_us, number))
                landed[version.writer, version.value] += not version.is_removal
        require(max(landed.values(), default=0) <= 1, "a put is in the log at most once")
        for value, what in self.stored.items():
            require(landed[value] == (what == "done"), "a put is in the log if it says so", value)
        for (key, time_us), found in self.answers.items():
            versions = history.get(key, [])
            place = bisect_right(versions, time_us, key=lambda each: each[0])
            right = versions[place - 1][1] if place else 0
            require(found == (right or "missing"), "get(at) is right", key, time_us, found, right)
        self._check_objects(truth)

    def _check_objects(self, truth: State) -> None:
        """Every object is of a kept version, because all garbage has been deleted."""
        require(not truth.garbage, "garbage is deleted before long", truth.garbage)
        known: set[bytes] = set()
        for _, _, versions in truth.versions.dump()[-1]:
            for _, _, writer, value, *_ in versions:
                kept = value_ids("t", writer, value, COPIES) if value else []
                require(self.objects.issuperset(kept), "kept values are there", writer, value)
                known.update(kept)
        require(
            self.objects <= known | self.forgotten,
            "no object is left behind",
            len(self.objects - known - self.forgotten),
        )


def run_life(seed: int, operations: int = 40, **broken: Any) -> Cluster:
    """Run the life of one seed; raise Violation with the seed if it breaks a rule."""
    cluster = Cluster(seed, **broken)
    try:
        cluster.run(operations)
    except (AssertionError, HopliteError) as error:
        raise Violation(f"seed {seed}: {error}") from error
    return cluster
