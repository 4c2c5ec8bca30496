"""Which replica a sender takes: a table over everything that it can know of a preferred one."""

from __future__ import annotations

import itertools

import pytest

from hoplite_ray.serve.routing.choice import (
    MEET_S,
    REACH_S,
    Decision,
    ReplicaStatus,
    decide,
    least_loaded,
)

NOW, MET, LONG = 0.0, MEET_S + 0.1, REACH_S + 0.1  # for how long it was waited for

# (listed, was listed) -> what a sender without an edge does at these times.
TABLE = {
    (False, False): {NOW: Decision.WAIT, MET: Decision.GONE, LONG: Decision.GONE},
    (False, True): {NOW: Decision.WAIT, MET: Decision.NEXT, LONG: Decision.NEXT},
    (True, False): {NOW: Decision.WAIT, MET: Decision.WAIT, LONG: Decision.UNREACHABLE},
    (True, True): {NOW: Decision.WAIT, MET: Decision.WAIT, LONG: Decision.UNREACHABLE},
}


@pytest.mark.parametrize("known", list(itertools.product([False, True], repeat=4)))
@pytest.mark.parametrize("waited_s", [NOW, MET, LONG])
def test_a_preferred_replica(known: tuple[bool, bool, bool, bool], waited_s: float) -> None:
    is_dead, has_edge, is_listed, was_listed = known
    expected = TABLE[is_listed, was_listed][waited_s]
    if has_edge:
        expected = Decision.TAKE
    if is_dead:
        expected = Decision.NEXT
    assert decide(ReplicaStatus(is_dead, has_edge, is_listed, was_listed), waited_s) is expected


def test_the_limits_themselves_are_still_waited_for() -> None:
    assert decide(ReplicaStatus(False, False, False, False), MEET_S) is Decision.WAIT
    assert decide(ReplicaStatus(False, False, True, True), REACH_S) is Decision.WAIT


def test_the_least_loaded_is_taken_and_equals_are_drawn() -> None:
    assert least_loaded({"a": 2, "b": 1, "c": 3}, lambda: 0.0) == "b"
    draws = iter([0.7, 0.2, 0.9])
    assert least_loaded({"a": 1, "b": 1, "c": 1}, lambda: next(draws)) == "b"
    assert least_loaded(dict[str, int](), lambda: 0.0) is None
