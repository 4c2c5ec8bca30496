"""The meaning of an edge's messages, by their numbers. Pure.

Each end numbers its own calls. CALL, CALL_ALONE and CANCELLED have a number of the caller's;
REPLY, FAILURE and BEGUN have the number of the call that they answer. ACTIVE belongs to no call,
and its number is 0. A `Protocol` is one end. Its methods take what this end does and which messages
arrive, and return what to do.

    a call of this end      open -> WAITING <-> BEGUN -> ANSWERED -> close
    a call of the peer's    CALL or CALL_ALONE -> answering -> finish

    open, close      this end makes a call, and forgets it
    cancel           the caller cancels a call; True if the peer needs CANCELLED
    handle           a message arrives
    finish           this end has answered a call of the peer's, or given the call up
    end              the edge breaks; returns how far each open call was

The table over every (state, event) is tests/unit/test_serve_protocol.py.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

# Kinds of messages, as they travel; an IntEnum would cost each message its conversion.
CALL, REPLY, FAILURE, CANCELLED, BEGUN, CALL_ALONE, ACTIVE = range(7)
KINDS = (CALL, REPLY, FAILURE, CANCELLED, BEGUN, CALL_ALONE, ACTIVE)


class State(Enum):
    """A call of this end."""

    WAITING = "waiting"
    """The peer has not reported that it works on the call."""
    BEGUN = "begun"
    """The peer works on the call."""
    ANSWERED = "answered"
    """The reply or failure has arrived; later ones are ignored."""


class Action(Enum):
    """The reaction of an end to a message."""

    IGNORE = "ignore"
    """Nothing: the message is too late, or all is done."""
    ANSWER = "answer"
    """Have the handler answer the call."""
    ANSWER_ALONE = "answer alone"
    """Have the handler answer the call after its caller knows that work begins."""
    SETTLE = "settle"
    """Give the reply or failure to the call's caller."""
    CANCEL = "cancel"
    """Cancel the work on the call: no caller waits for its answer."""
    ACTIVATE = "activate"
    """Take the peer for active: it is not parked any more."""


# Once, because a look-up in an Enum runs Python code up to version 3.11.
_WAITING, _BEGUN, _ANSWERED = State
_IGNORE, _ANSWER, _ANSWER_ALONE, _SETTLE, _CANCEL, _ACTIVATE = Action
_OPEN = (_WAITING, _BEGUN)


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """How far an open call was when its edge broke.

    was_sent:   True if the peer may have received the call.
    has_begun:  True if the peer worked on the call.
    """

    was_sent: bool
    has_begun: bool


class Protocol:
    """The calls of one end of an edge, and those of its peer that it answers."""

    def __init__(self) -> None:
        self._next_number = 0
        self._calls: dict[int, State] = {}
        self._peer_calls: set[int] = set()

    def state(self, number: int) -> State | None:
        """Return the state of a call of this end; None if no call has that number."""
        return self._calls.get(number)

    def is_answering(self, number: int) -> bool:
        """Return True if this end works on that call of the peer's."""
        return number in self._peer_calls

    def open(self) -> int:
        """Begin a call of this end; returns its number."""
        number = self._next_number
        self._next_number += 1
        self._calls[number] = _WAITING
        return number

    def cancel(self, number: int) -> bool:
        """Cancel a call; returns True if the peer needs CANCELLED."""
        return self._calls.get(number) in _OPEN

    def close(self, number: int) -> None:
        """Forget a call; later messages for it are ignored."""
        self._calls.pop(number, None)

    def finish(self, number: int) -> None:
        """Record that this end no longer works on a call of the peer's."""
        self._peer_calls.discard(number)

    def handle(self, kind: int, number: int, *, has_begun: bool = False) -> Action:
        """Handle a message; returns what to do about it.

        has_begun:  the value of a BEGUN.

        Raises:  ValueError for a message that no peer of this version sends.
        """
        if kind == CALL or kind == CALL_ALONE:
            if number in self._peer_calls:
                raise ValueError(f"call {number} came while it was being answered")
            self._peer_calls.add(number)
            return _ANSWER if kind == CALL else _ANSWER_ALONE
        if kind == CANCELLED:
            return _CANCEL if number in self._peer_calls else _IGNORE
        if kind == ACTIVE:
            return _ACTIVATE
        if kind not in KINDS:
            raise ValueError(f"a message of kind {kind}, which there is not")
        if self._calls.get(number) not in _OPEN:
            return _IGNORE
        if kind == BEGUN:
            self._calls[number] = _BEGUN if has_begun else _WAITING
            return _IGNORE
        self._calls[number] = _ANSWERED
        return _SETTLE

    def end(self, unsent: Set[int], *, has_left: bool) -> dict[int, BrokenCall]:
        """Return how far each open call was; all are closed.

        unsent:    calls that were not sent before the edge broke.
        has_left:  True if the peer left by itself, so that no call has killed it.
        """
        open_calls = {number: each for number, each in self._calls.items() if each in _OPEN}
        self._calls.clear()
        return {
            number: BrokenCall(
                was_sent=number not in unsent and not has_left,
                has_begun=each is _BEGUN and not has_left,
            )
            for number, each in open_calls.items()
        }
