"""Versions that publishers before have begun, as the next one derives them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from hoplite_ray.channel.publisher import _TERMS_BEGUN_MAX, Publisher, _list_begun
from hoplite_ray.channel.steps import Steps
from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.values.versions import NO_VERSION, TakenTerm, Term, VersionNumber

NEWEST = VersionNumber(5, 2, 7)
NEXT = VersionNumber(5, 2, 8)


@pytest.mark.parametrize(
    ("newest", "before", "begun"),
    [
        (NO_VERSION, Term(0, 0), []),  # the channel's first publisher
        (NO_VERSION, Term(5, 1), [(5, 1, 1)]),  # it died before its first version
        (NEWEST, Term(5, 2), [NEXT]),
        (NEWEST, Term(5, 4), [NEXT, (5, 3, 1), (5, 4, 1)]),
        (NEWEST, Term(8, 2), [NEXT, (8, 1, 1), (8, 2, 1)]),  # in a later view
        (NEWEST, Term(5, 1), [NEXT]),  # a home that has forgotten terms
    ],
)
def test_the_first_version_of_each_term_behind_the_newest_one_may_be_begun(
    newest: VersionNumber, before: Term, begun: list[tuple[int, int, int]]
) -> None:
    assert _list_begun(TakenTerm(Term(9, 1), newest, before), newest) == begun


def test_a_publisher_looks_at_the_last_terms_only() -> None:
    listed = _list_begun(TakenTerm(Term(9, 1), NEWEST, Term(8, 1000)), NEWEST)
    assert listed[1:] == [
        VersionNumber(8, counter, 1) for counter in range(1001 - _TERMS_BEGUN_MAX, 1001)
    ]


def test_a_publish_that_gives_up_its_turn_lets_none_pass_the_one_before() -> None:
    publisher = Publisher(bytes(28), "", "turns")
    gate: Future[None] = Future()

    def work() -> Steps[None]:
        yield gate

    first = publisher._in_turn(work)
    assert next(first) is gate
    second = publisher._in_turn(work)
    next(second)
    with pytest.raises(GetTimeoutError):
        second.throw(GetTimeoutError("late"))
    third = publisher._in_turn(work)
    turn: Any = next(third)
    assert not turn.done(), "the first one is still under way"
    with pytest.raises(StopIteration):
        next(first)
    assert turn.done()
