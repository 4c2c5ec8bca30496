"""Tables of a whole cluster in virtual time: 1,000 lives keep every rule, broken ones do not."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hoplite_ray.tables.calls import ReadDone
from hoplite_ray.tables.compaction import Compaction, Step
from hoplite_ray.tables.log import mark
from hoplite_ray.tables.replica import Replica
from hoplite_ray.tables.state import State
from tests.unit.tables_cluster import Violation, run_life

SEEDS = int(os.environ.get("HOPLITE_TABLE_SEEDS", "1000"))
PARTS = 4
OPERATIONS = 80
CANARY_SEEDS = 200


@pytest.mark.parametrize("part", range(PARTS))
def test_every_life_of_a_table_keeps_all_rules(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        cluster = run_life(seed, OPERATIONS)
        counts += cluster.counts
        counts["late adds"] += cluster.store.late_adds
    for what in ("puts", "cuts", "reads at a time", "kills"):
        assert counts[what] > SEEDS // PARTS, (what, counts)
    for what in ("skips", "renewals", "unknown puts", "late adds"):
        assert counts[what] > 0, (what, counts)


def test_a_store_that_overwrites_breaks_a_rule() -> None:
    with pytest.raises(Violation, match=r"watchers hear the truth|has read the same log"):
        _run_until_broken(overwrites=True)


def test_a_read_at_a_time_changes_if_no_record_seals_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end_at_once(self: Replica, state: State, now_us: int) -> None:
        self._events.extend(ReadDone(each.ticket) for each in self._looking)
        self._looking = []

    monkeypatch.setattr(Replica, "_end_looking", end_at_once)
    with pytest.raises(Violation, match=r"get\(at\)"):
        _run_until_broken()


def test_a_process_that_is_behind_errs_if_it_does_not_look_at_its_last_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_look = Replica._take_look

    def take_any(self: Replica, slots: Sequence[Any], now_us: int) -> None:
        state = self.state
        assert state is not None
        right = state.mark
        fake = "hoplite_ray.tables.replica.mark"
        monkeypatch.setattr(fake, lambda data: mark(data) if data else right)
        take_look(self, [b"", *slots[1:]], now_us)

    monkeypatch.setattr(Replica, "_take_look", take_any)
    with pytest.raises(Violation):
        _run_until_broken()


def test_a_compaction_that_begins_at_the_newest_slot_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle_answer = Compaction.handle_answer

    def reverse(self: Compaction, answer: Any) -> None:
        handle_answer(self, answer[::-1] if self._step is Step.LISTING_SLOTS else answer)

    monkeypatch.setattr(Compaction, "handle_answer", reverse)
    with pytest.raises(Violation):
        _run_until_broken()


@pytest.mark.parametrize(
    ("target", "name", "broken", "rule"),
    [
        (Replica, "_low", lambda self: self._next_number, "no object is left behind"),
        (State, "_forget_writers", lambda self: (), "all comes to an end"),  # one is always due
        (State, "_take_over", lambda self: (), "all comes to an end"),
        (Replica, "handle_swept", lambda self, slots: None, "gets no more records|before long"),
        (Replica, "_find_due", lambda self, state, now_us: False, "before long|left behind"),
    ],
)
def test_values_stay_for_ever_without(
    monkeypatch: pytest.MonkeyPatch,
    target: type,
    name: str,
    broken: Callable[[Any], Any],
    rule: str,
) -> None:
    monkeypatch.setattr(target, name, broken)
    with pytest.raises(Violation, match=rule):
        _run_until_broken()


def _run_until_broken(**broken: bool) -> None:
    for seed in range(CANARY_SEEDS):
        run_life(seed, OPERATIONS, **broken)
