"""Inputs of a query that meet, or don't: in any order, twice, again after a death, too late."""

from __future__ import annotations

import random

import pytest

from hoplite_ray.serve.stages.joins import Joins, UnmetJoin


def joins(open_max: int = 100) -> Joins[str]:
    return Joins(("text", "vision"), open_max=open_max)


def test_a_query_has_met_when_its_last_input_comes_in_whatever_order() -> None:
    table = joins()
    assert table.offer("q", 1, "vision", "v", deadline_s=9) is None
    assert len(table) == 1
    assert table.offer("q", 1, "text", "t", deadline_s=9) == {"text": "t", "vision": "v"}
    assert len(table) == 0


def test_an_input_that_comes_twice_changes_nothing() -> None:
    table = joins()
    table.offer("q", 1, "text", "first", deadline_s=9)
    assert table.offer("q", 1, "text", "second", deadline_s=9) is None
    met = table.offer("q", 1, "vision", "v", deadline_s=9)
    assert met == {"text": "first", "vision": "v"}
    for name in ("text", "vision"):
        assert table.offer("q", 1, name, "again", deadline_s=9) is None


def test_inputs_of_two_attempts_never_meet() -> None:
    table = joins()
    table.offer("q", 1, "text", "old", deadline_s=9)
    assert table.offer("q", 2, "vision", "new", deadline_s=9) is None
    assert table.offer("q", 1, "text", "old again", deadline_s=9) is None
    assert table.offer("q", 2, "text", "new", deadline_s=9) == {"text": "new", "vision": "new"}
    assert len(table) == 0


def test_a_query_that_has_met_is_joined_anew_by_its_next_attempt_alone() -> None:
    table = joins()
    for name in ("text", "vision"):
        table.offer("q", 1, name, "1", deadline_s=9)
    table.offer("q", 2, "text", "2", deadline_s=9)
    assert len(table) == 1
    assert table.offer("q", 2, "vision", "2", deadline_s=9) == {"text": "2", "vision": "2"}


def test_an_attempt_is_over_once_its_inputs_have_met_or_a_higher_one_has_begun() -> None:
    table = joins()
    assert not table.is_over("q", 1)
    table.offer("q", 1, "text", "t", deadline_s=9)
    assert not table.is_over("q", 1)
    table.offer("q", 1, "vision", "v", deadline_s=9)
    assert table.is_over("q", 1) and not table.is_over("q", 2)
    table.offer("q", 2, "vision", "v", deadline_s=9)
    assert table.is_over("q", 1) and not table.is_over("q", 2)


def test_the_deadline_forgets_a_query_and_names_what_had_not_come() -> None:
    table = joins()
    table.offer("half", 1, "text", "t", deadline_s=2)
    for name in ("text", "vision"):
        table.offer("whole", 1, name, "x", deadline_s=1)
    assert table.next_deadline_s() == 1
    assert table.expire(0.5) == []
    assert table.expire(2) == [UnmetJoin("half", ("vision",))]
    assert (len(table), table.next_deadline_s()) == (0, None)


def test_a_full_table_refuses_new_queries_and_takes_what_completes_old_ones() -> None:
    table = joins(open_max=1)
    table.offer("a", 1, "text", "t", deadline_s=9)
    assert table.has_room("a") and not table.has_room("b")
    assert table.offer("a", 1, "vision", "v", deadline_s=9) is not None
    assert table.has_room("b")


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="came as 'sound'; the inputs are"):
        joins().offer("q", 1, "sound", "s", deadline_s=9)
    with pytest.raises(ValueError, match="each has its own name"):
        Joins(("a", "a"), open_max=1)
    with pytest.raises(ValueError, match="at least one"):
        Joins((), open_max=1)
    with pytest.raises(ValueError, match="open_max=0"):
        joins(open_max=0)


def test_in_any_order_with_repeats_and_deaths_each_attempt_meets_once(seed: int) -> None:
    """What comes late, twice or of old attempts never makes a second answer of one attempt."""
    draw = random.Random(seed)
    for _ in range(200):
        table, met = joins(), []
        newest = draw.randint(1, 3)
        sent = [(attempt, name) for attempt in range(1, newest + 1) for name in ("text", "vision")]
        sent += draw.choices(sent, k=draw.randint(0, 6))
        draw.shuffle(sent)
        for attempt, name in sent:
            found = table.offer("q", attempt, name, f"{attempt}", deadline_s=9)
            if found is not None:
                assert set(found.values()) == {f"{attempt}"}
                met.append(attempt)
        assert met == sorted(set(met))
        assert met[-1:] == [newest]
        assert len(table) == 0
