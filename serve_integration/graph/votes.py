"""The votes of an ensemble on one query: when they make an answer, and which.

Pure: callers give a `Poll` votes, lost members and the deadline. It is decided when at least
`quorum` members have voted and one of these holds:

    all living members have voted      a member that dies counts no more, so it costs no waiting
    the deadline has come
    no vote can change the answer      for a majority: too few votes are outstanding

It fails when fewer than `quorum` members live, or have voted at the deadline.

Votes are combined if they have one form: arrays of one shape, or single values of one type. If
there are several forms, the commonest counts, and members of other forms are missing.

Source: Hoplite 5.5 (serving an ensemble through failures); Clipper (late votes are not waited for).
"""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np

Combine = Callable[[Sequence[Any]], Any]
CombineName = Literal["majority", "mean"]


class Verdict(Enum):
    """The state of a poll."""

    OPEN = "open"
    DECIDED = "decided"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an ensemble. Members are named in the ensemble's order.

    value:    the combined votes.
    voted:    members whose votes are in the value.
    missing:  members that are dead, or have failed on this query.
    late:     members that live and had not voted when the answer was decided.
    why:      by missing member, what was wrong.
    """

    value: Any
    voted: tuple[str, ...]
    missing: tuple[str, ...]
    late: tuple[str, ...]
    why: Mapping[str, str]


class Poll:
    """The votes of an ensemble's members on one query.

    members:  the members' names.
    quorum:   of votes for an answer.
    combine:  "majority", "mean", or a function of the votes, in the order of the members.
    """

    def __init__(
        self, members: Sequence[str], *, quorum: int, combine: str | Combine = "majority"
    ) -> None:
        if type(quorum) is not int:
            raise ValueError(f"quorum={quorum!r} is to be a whole number: so many votes are enough")
        if not 1 <= quorum <= len(members):
            raise ValueError(f"quorum={quorum} must be 1 to {len(members)}, for so many vote")
        if combine not in COMBINATIONS if isinstance(combine, str) else not callable(combine):
            raise ValueError(
                f"combine={combine!r} is none of {list(COMBINATIONS)}, nor a function of the list "
                "of votes; give one of these"
            )
        self._members = tuple(members)
        self._quorum = quorum
        self._combine = COMBINATIONS[combine] if isinstance(combine, str) else combine
        self._votes: dict[str, Any] = {}
        self._forms: dict[str, Any] = {}  # by member, of votes that can be combined
        self._lost: dict[str, str] = {}  # by member, why it is lost
        self._unusable: dict[str, str] = {}  # by member, why its vote can't be combined
        self._is_due = False

    @property
    def verdict(self) -> Verdict:
        """OPEN, DECIDED (`answer` may be called) or FAILED (`failure` says why)."""
        outstanding = len(self._members) - len(self._votes) - len(self._lost)
        count = len(self._agreeing_members()[0])
        if count + (0 if self._is_due else outstanding) < self._quorum:
            return Verdict.FAILED
        if count < self._quorum:
            return Verdict.OPEN
        is_over = self._is_due or outstanding == 0 or self._is_settled(outstanding)
        return Verdict.DECIDED if is_over else Verdict.OPEN

    @property
    def is_due(self) -> bool:
        """True if the deadline has come."""
        return self._is_due

    def vote(self, member: str, value: Any) -> None:
        """Count a member's vote. Its first vote counts, also after `mark_lost`."""
        self._lost.pop(member, None)
        if member in self._votes:
            return
        self._votes[member] = value
        try:
            self._forms[member] = self._form(value)
        except Exception as error:  # of any class: the vote is the user's object
            self._unusable[member] = f"its vote can't be combined ({type(error).__name__}: {error})"

    def mark_lost(self, member: str, why: str) -> None:
        """Record that a member will not vote. An earlier vote of the member stays."""
        if member not in self._votes:
            self._lost.setdefault(member, why)

    def expire(self) -> None:
        """Record that the deadline has come."""
        self._is_due = True

    def answer(self) -> Answer:
        """Combine the votes. REQUIRES: DECIDED."""
        voted, _ = self._agreeing_members()
        lost = {**self._lost, **self._outliers()}
        return Answer(
            self._combine([self._votes[member] for member in voted]),
            tuple(voted),
            tuple(member for member in self._members if member in lost),
            tuple(m for m in self._members if m not in lost and m not in self._votes),
            lost,
        )

    def failure(self) -> str:
        """Return why there is no answer. REQUIRES: FAILED."""
        texts = [
            f"{len(self._votes)} of {len(self._members)} members have voted, "
            f"the quorum is {self._quorum}"
        ]
        if lost := {**self._lost, **self._outliers()}:
            why = "; ".join(f"{member}: {why}" for member, why in lost.items())
            texts.append(f"lost are {why}")
        late = [m for m in self._members if m not in self._votes and m not in self._lost]
        if self._is_due and late:
            texts.append(f"the deadline has come before {', '.join(late)}")
        return "; ".join(texts)

    @property
    def partial(self) -> Mapping[str, Any]:
        """The votes that have come, by member."""
        return dict(self._votes)

    def _form(self, vote: Any) -> Any:
        form = _FORMS.get(self._combine)
        return None if form is None else form(_plain(vote))

    def _agreeing_members(self) -> tuple[list[str], int]:
        """Return the members whose votes have the commonest form, and the next form's count."""
        forms: dict[Any, list[str]] = {}
        for member in self._members:
            if member in self._forms:
                forms.setdefault(self._forms[member], []).append(member)
        most, *others = sorted(forms.values(), key=len, reverse=True) or [[]]
        return most, len(others[0]) if others else 0

    def _outliers(self) -> dict[str, str]:
        """Return the members whose votes are not combined, and why."""
        outliers = dict(self._unusable)
        agreeing, _ = self._agreeing_members()
        for member, form in self._forms.items():
            if member not in agreeing:
                usual = self._forms[agreeing[0]]
                outliers[member] = (
                    f"its vote is of {_describe_form(form)}, "
                    f"and most are of {_describe_form(usual)}"
                )
        return outliers

    def _is_settled(self, outstanding: int) -> bool:
        agreeing, others = self._agreeing_members()
        if self._combine is not majority or len(agreeing) - others <= outstanding:
            return False
        _, counts = _count_votes([self._votes[member] for member in agreeing])
        first, second = np.sort(np.vstack([counts, np.zeros_like(counts[:1])]), axis=0)[:-3:-1]
        return bool((first - second > outstanding).all())


def majority(votes: Sequence[Any]) -> Any:
    """Return the commonest vote, for arrays element by element; the smallest among equals.

    Shapes:  arrays, tensors and lists have one shape, which is the shape of the resulting array.
             Any other vote counts as a whole.
    """
    labels, counts = _count_votes(votes)
    chosen = counts.argmax(axis=0)  # the first among equals, which is the smallest
    return np.asarray(labels)[chosen] if _has_elements(_plain(votes[0])) else labels[int(chosen[0])]


def mean(votes: Sequence[Any]) -> Any:
    """Return the mean of all votes, element by element."""
    value = _stack(votes).mean(axis=0)
    return value if value.ndim else value.item()


COMBINATIONS: dict[str, Combine] = {"majority": majority, "mean": mean}


def _majority_form(vote: Any) -> Any:
    """Return the form of a vote. Votes of one form can be counted together.

    Raises:  TypeError for a vote that can't be compared; ValueError for lists of several lengths.
    """
    if _has_elements(vote):
        return _array_form(np.asarray(vote))
    hash(vote)
    return "number" if isinstance(vote, numbers.Real) else type(vote)


def _mean_form(vote: Any) -> Any:
    form = _array_form(np.asarray(vote))
    if form[0] != "number":
        raise TypeError(f"{form[0]} has no mean")
    return form


def _array_form(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...]]:
    if array.dtype.kind == "O":
        raise TypeError("what is in it can't be compared; combine the votes by a function")
    return "number" if array.dtype.kind in "biufc" else array.dtype.kind, array.shape


_FORMS: dict[Combine, Callable[[Any], Any]] = {majority: _majority_form, mean: _mean_form}


def _describe_form(form: Any) -> str:
    if isinstance(form, tuple):
        return f"the shape {form[1]}" if form[0] == "number" else f"{form[0]} of shape {form[1]}"
    return str(getattr(form, "__name__", form))


def _count_votes(votes: Sequence[Any]) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Return the values of votes, in order, and their counts: rows are values, columns elements."""
    votes = [_plain(vote) for vote in votes]
    if _has_elements(votes[0]):
        arrays = _stack(votes)
        found, codes = np.unique(arrays, return_inverse=True)
        codes = codes.reshape(arrays.shape)
        rows = [(codes == code).sum(axis=0) for code in range(len(found))]
        return list(found), np.stack(rows or [np.zeros(arrays.shape[1:], int)])
    try:
        counts = Counter(votes)
    except TypeError as error:
        raise TypeError(f"votes can't be counted ({error}); combine them by a function") from None
    try:
        labels = sorted(counts)
    except TypeError:  # they have no order
        labels = sorted(counts, key=repr)
    return labels, np.array([[counts[label]] for label in labels])


def _plain(vote: Any) -> Any:
    """Return a tensor as an array, or as a number if it has no axes; other votes as they are.

    Tensors without axes compare by identity, so two of them would be two values.
    """
    if isinstance(vote, list | np.generic) or not hasattr(vote, "__array__"):
        return vote
    array = np.asarray(vote)
    return array if array.ndim else array.item()


def _has_elements(vote: Any) -> bool:
    return isinstance(vote, list | np.ndarray)


def _stack(votes: Sequence[Any]) -> np.ndarray[Any, Any]:
    shapes = {np.shape(vote) for vote in votes}
    if len(shapes) > 1:
        raise ValueError(f"votes have the shapes {sorted(shapes)}; combine them by a function")
    return np.stack([np.asarray(vote) for vote in votes])
