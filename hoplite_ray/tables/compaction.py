"""How the writer of a record after which a state is due stores it, and shortens the log.

The state before the newest one stays with the log from there on. So a process that has loaded
either can go on, and a process that is at most one state behind misses no record.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from hoplite_ray.tables.calls import (
    AddState,
    Answer,
    Call,
    ListSlots,
    ListStates,
    RemoveSlot,
    RemoveState,
)


class Step(Enum):
    """The call that is under way, or comes next."""

    STORING = auto()
    LISTING_STATES = auto()
    LISTING_SLOTS = auto()
    REMOVING = auto()
    DONE = auto()


class Compaction:
    """Stores one state, and removes what is older than the state before it. Pure.

    Slots are removed one after the other in ascending order, which replica.py relies on: where a
    slot is what it was, no later one has been removed. So a failed call ends the compaction, and
    the next one begins at the lowest slot again.
    """

    def __init__(self, slot: int, data: bytes) -> None:
        self._state = AddState(slot, data)
        self._step = Step.STORING
        self._removals: deque[Call] = deque()
        self._states: list[int] = []

    def poll_call(self) -> Call | None:
        """Return the next call; None at the end. REQUIRES: the last one was answered."""
        match self._step:
            case Step.STORING:
                return self._state
            case Step.LISTING_STATES:
                return ListStates()
            case Step.LISTING_SLOTS:
                return ListSlots()
            case Step.REMOVING:
                return self._removals[0]
            case Step.DONE:
                return None

    def handle_answer(self, answer: Answer) -> None:
        match self._step:
            case Step.STORING:
                self._step = Step.LISTING_STATES
            case Step.LISTING_STATES:
                assert isinstance(answer, list)
                self._states = [each for each in answer if isinstance(each, int)]
                self._step = Step.LISTING_SLOTS if len(self._states) > 1 else Step.DONE
            case Step.LISTING_SLOTS:
                assert isinstance(answer, list)
                floor = self._states[-2]
                slots = [each for each in answer if isinstance(each, int) and each < floor]
                states = [each for each in self._states if each < floor]
                self._removals += [RemoveSlot(each) for each in slots]
                self._removals += [RemoveState(each) for each in states]
                self._step = Step.REMOVING if self._removals else Step.DONE
            case Step.REMOVING:
                self._removals.popleft()
                self._step = Step.REMOVING if self._removals else Step.DONE
            case Step.DONE:
                raise AssertionError("no call is under way")

    def handle_failure(self) -> None:
        """End: whether the call was made is unknown, and what comes after it relies on it."""
        self._step = Step.DONE
