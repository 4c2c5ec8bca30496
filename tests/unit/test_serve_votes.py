"""When an ensemble answers, and what: votes, deaths, deadlines, quorums, early decisions."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from hoplite_ray.serve.graph.votes import Poll, Verdict, majority, mean

FIVE = ("a", "b", "c", "d", "e")


def poll(quorum: int = 1, **how: Any) -> Poll:
    return Poll(FIVE, quorum=quorum, **how)


def test_all_votes_make_an_answer() -> None:
    asked = poll(combine="mean")
    for number, member in enumerate(FIVE):
        assert asked.verdict is Verdict.OPEN
        asked.vote(member, float(number))
    assert asked.verdict is Verdict.DECIDED
    answer = asked.answer()
    assert (answer.value, answer.voted, answer.missing, answer.late) == (2.0, FIVE, (), ())


def test_a_death_shrinks_what_is_waited_for_at_once() -> None:
    asked = poll(combine="mean")
    for member in "abcd":
        asked.vote(member, 1.0)
    assert asked.verdict is Verdict.OPEN
    asked.mark_lost("e", "its process has ended")
    assert asked.verdict is Verdict.DECIDED
    assert asked.answer().missing == ("e",)
    assert asked.answer().why == {"e": "its process has ended"}


def test_a_vote_that_was_given_stays_when_its_member_dies() -> None:
    asked = poll(combine="mean")
    asked.vote("a", 5.0)
    asked.mark_lost("a", "its process has ended")
    for member in "bcde":
        asked.mark_lost(member, "its process has ended")
    assert asked.answer().value == 5.0
    assert asked.answer().missing == tuple("bcde")


def test_a_vote_of_one_that_was_taken_for_lost_counts() -> None:
    asked = poll(combine="mean")
    asked.mark_lost("a", "suspected")
    asked.vote("a", 1.0)
    asked.expire()
    assert asked.answer().voted == ("a",)


def test_the_deadline_answers_with_a_quorum_and_names_the_late() -> None:
    asked = poll(quorum=2, combine="mean")
    asked.vote("a", 1.0)
    asked.mark_lost("b", "it raised")
    asked.vote("c", 3.0)
    assert asked.verdict is Verdict.OPEN
    asked.expire()
    assert asked.verdict is Verdict.DECIDED
    answer = asked.answer()
    assert (answer.value, answer.voted, answer.missing) == (2.0, ("a", "c"), ("b",))
    assert answer.late == ("d", "e")


def test_without_a_quorum_the_deadline_fails_and_keeps_the_votes() -> None:
    asked = poll(quorum=3)
    asked.vote("a", 1)
    asked.mark_lost("b", "out of memory")
    asked.expire()
    assert asked.verdict is Verdict.FAILED
    assert asked.failure() == (
        "1 of 5 members have voted, the quorum is 3; lost are b: out of memory; "
        "the deadline has come before c, d, e"
    )
    assert asked.partial == {"a": 1}


def test_too_many_deaths_fail_at_once() -> None:
    asked = poll(quorum=4)
    asked.mark_lost("a", "died")
    assert asked.verdict is Verdict.OPEN
    asked.mark_lost("b", "died")
    assert asked.verdict is Verdict.FAILED


def test_a_settled_majority_waits_for_nobody() -> None:
    asked = poll()
    asked.vote("a", "cat")
    asked.vote("b", "cat")
    assert asked.verdict is Verdict.OPEN, "three dogs may come"
    asked.vote("c", "cat")
    assert asked.verdict is Verdict.DECIDED
    assert asked.answer().late == ("d", "e")


def test_a_majority_is_settled_only_if_each_element_is() -> None:
    asked = poll()
    for member, vote in zip("abc", ([1, 1], [1, 2], [1, 1]), strict=True):
        asked.vote(member, np.array(vote))
    assert asked.verdict is Verdict.OPEN
    asked.vote("d", np.array([0, 1]))
    assert asked.verdict is Verdict.DECIDED
    assert asked.answer().value.tolist() == [1, 1]


def test_a_quorum_holds_back_what_is_settled() -> None:
    asked = poll(quorum=4)
    for member in "abc":
        asked.vote(member, 1)
    assert asked.verdict is Verdict.OPEN
    asked.vote("d", 0)
    assert asked.verdict is Verdict.DECIDED


def test_nothing_that_comes_later_changes_an_answer_that_was_settled(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        votes = {member: draw.randint(0, 2) for member in FIVE}
        asked = poll()
        for member in draw.sample(FIVE, 5):
            asked.vote(member, votes[member])
            if asked.verdict is Verdict.DECIDED:
                break
        assert asked.answer().value == majority(list(votes.values()))


@pytest.mark.parametrize("votes", list(itertools.product((0, 1, 2), repeat=3)))
def test_the_majority_of_equals_is_the_smallest(votes: tuple[int, ...]) -> None:
    expected = max(sorted(set(votes)), key=votes.count)
    assert majority(list(votes)) == expected
    arrays = [np.full((2, 3), vote) for vote in votes]
    assert majority(arrays).tolist() == np.full((2, 3), expected).tolist()


def test_a_batch_of_none_has_a_majority_of_none() -> None:
    asked = Poll(("a", "b"), quorum=1)
    asked.vote("a", [])
    asked.vote("b", [])
    assert asked.answer().value.tolist() == []


def test_the_mean_is_of_arrays_or_of_numbers() -> None:
    assert mean([1, 2]) == 1.5
    assert mean([np.zeros(2), np.ones(2)]).tolist() == [0.5, 0.5]


def test_a_function_gets_the_votes_in_the_members_order() -> None:
    asked = poll(combine="".join)
    for member in "edcba":
        asked.vote(member, member)
    assert asked.answer().value == "abcde"


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="quorum=6 must be 1 to 5"):
        poll(quorum=6)
    with pytest.raises(ValueError, match="combine='median' is none of"):
        poll(combine="median")
    with pytest.raises(ValueError, match="combine them by a function"):
        majority([np.zeros(2), np.zeros(3)])
    with pytest.raises(TypeError, match="combine them by a function"):
        majority([{"a": 1}, {"b": 2}])


@pytest.mark.parametrize("make", [np.array, "torch"])
def test_tensors_and_arrays_without_axes_are_votes_as_numbers_are(make: Any) -> None:
    if make == "torch":
        make = pytest.importorskip("torch", reason="torch is not installed").tensor
    asked = poll()
    for member, vote in zip(FIVE, (1, 1, 0, 1), strict=False):
        asked.vote(member, make(vote))
    assert asked.verdict is Verdict.DECIDED
    assert asked.answer().value == 1
    rows = [make([1, 2]), make([1, 3]), make([0, 3])]
    assert majority(rows).tolist() == [1, 3]
    assert mean([make(1.0), make(3.0)]) == 2.0


ODD: dict[str, tuple[str, list[Any], Any, list[int]]] = {
    "another shape": ("majority", [np.zeros(3), np.zeros(4), np.zeros(3)], [0, 0, 0], [1]),
    "another type": ("majority", ["cat", 3, "cat"], "cat", [1]),
    "no label at all": ("majority", [{"a": 1}, 7, 7], 7, [0]),
    "lists of several lengths": ("majority", [[1, 2], [[1], [1, 2]], [1, 2]], [1, 2], [1]),
    "objects": ("majority", [[1, 2], [None, {}], [1, 2]], [1, 2], [1]),
    "text in place of numbers": ("majority", [[1, 2], ["a", "b"], [1, 2]], [1, 2], [1]),
    "a shape in a mean": ("mean", [np.ones(3), np.ones(1), np.ones(3)], [1, 1, 1], [1]),
    "a text in a mean": ("mean", [1.0, "one", 3.0], 2.0, [1]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 2, 0)])
def test_an_odd_vote_is_missing_and_those_that_agree_answer(
    name: str, order: tuple[int, ...]
) -> None:
    """Case review_11."""
    combine, votes, value, odd = ODD[name]
    asked = Poll(["a", "b", "c"], quorum=2, combine=combine)
    for each in order:
        assert asked.verdict is not Verdict.FAILED
        asked.vote("abc"[each], votes[each])
    assert asked.verdict is Verdict.DECIDED
    answer = asked.answer()
    np.testing.assert_array_equal(answer.value, value)
    assert answer.missing == tuple("abc"[each] for each in odd) == tuple(answer.why)
    assert answer.late == () and len(answer.voted) == 2
    assert all("vote" in why for why in answer.why.values())


def test_votes_of_which_too_few_agree_are_no_quorum_and_are_told() -> None:
    asked = Poll(["a", "b", "c"], quorum=2)
    for member, size in (("a", 3), ("b", 4)):
        asked.vote(member, np.zeros(size))
    assert asked.verdict is Verdict.OPEN, "the third one may agree with either"
    asked.vote("c", {"a": 1})
    assert asked.verdict is Verdict.FAILED
    assert "b: its vote is of the shape (4,), and most are of the shape (3,)" in asked.failure()
    assert "c: its vote can't be combined (TypeError: unhashable" in asked.failure()
    assert sorted(asked.partial) == ["a", "b", "c"]


def test_a_majority_is_not_settled_while_another_form_may_overtake() -> None:
    asked = Poll(list("abcde"), quorum=2)
    for member, vote in (("a", "cat"), ("b", "cat"), ("c", 7)):
        asked.vote(member, vote)
    assert asked.verdict is Verdict.OPEN
    asked.vote("d", 7)
    asked.vote("e", 7)
    assert asked.answer().value == 7 and asked.answer().missing == ("a", "b")


def test_labels_without_an_order_are_counted() -> None:
    assert majority([1j, 2j, 2j]) == 2j
