"""The protocol of an edge: a table over every (state, event), and random lives of two ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.serve.edge.protocol import (
    ACTIVE,
    BEGUN,
    CALL,
    CALL_ALONE,
    CANCELLED,
    FAILURE,
    KINDS,
    REPLY,
    Action,
    BrokenCall,
    Protocol,
    State,
)

NUMBER = 0  # of the first call of an end, and of its peer

# What brings a call of this end into each state; None: there is none.
OWN: dict[State | None, Callable[[Protocol], object]] = {
    None: lambda end: None,
    State.WAITING: lambda end: end.open(),
    State.BEGUN: lambda end: (end.open(), end.handle(BEGUN, NUMBER, has_begun=True)),
    State.ANSWERED: lambda end: (end.open(), end.handle(REPLY, NUMBER)),
}
EVENTS: dict[str, Callable[[Protocol], object]] = {
    "reply": lambda end: end.handle(REPLY, NUMBER),
    "failure": lambda end: end.handle(FAILURE, NUMBER),
    "begun": lambda end: end.handle(BEGUN, NUMBER, has_begun=True),
    "begun no more": lambda end: end.handle(BEGUN, NUMBER, has_begun=False),
    "active": lambda end: end.handle(ACTIVE, NUMBER),
    "take back": lambda end: end.cancel(NUMBER),
    "close": lambda end: end.close(NUMBER),
    "broken": lambda end: end.end(set(), has_left=False),
    "broken, unsent": lambda end: end.end({NUMBER}, has_left=False),
    "left": lambda end: end.end(set(), has_left=True),
}
W, B, A = State.WAITING, State.BEGUN, State.ANSWERED
IGNORE, SETTLE, ACTIVATE = Action.IGNORE, Action.SETTLE, Action.ACTIVATE


def at(was_sent: bool, has_begun: bool) -> dict[int, BrokenCall]:
    return {NUMBER: BrokenCall(was_sent, has_begun)}


# Event -> for no call, and one that waits, has begun or is answered: what is returned, the state.
TABLE: dict[str, list[tuple[object, State | None]]] = {
    "reply": [(IGNORE, None), (SETTLE, A), (SETTLE, A), (IGNORE, A)],
    "failure": [(IGNORE, None), (SETTLE, A), (SETTLE, A), (IGNORE, A)],
    "begun": [(IGNORE, None), (IGNORE, B), (IGNORE, B), (IGNORE, A)],
    "begun no more": [(IGNORE, None), (IGNORE, W), (IGNORE, W), (IGNORE, A)],
    "active": [(ACTIVATE, None), (ACTIVATE, W), (ACTIVATE, B), (ACTIVATE, A)],
    "take back": [(False, None), (True, W), (True, B), (False, A)],
    "close": [(None, None), (None, None), (None, None), (None, None)],
    "broken": [({}, None), (at(True, False), None), (at(True, True), None), ({}, None)],
    "broken, unsent": [({}, None), (at(False, False), None), (at(False, True), None), ({}, None)],
    "left": [({}, None), (at(False, False), None), (at(False, False), None), ({}, None)],
}
CASES = [
    (state, event, *outcome)
    for event, outcomes in TABLE.items()
    for state, outcome in zip(OWN, outcomes, strict=True)
]


def test_the_table_is_whole() -> None:
    assert TABLE.keys() == EVENTS.keys()
    assert {None, *State} == OWN.keys()


@pytest.mark.parametrize(("state", "event", "returned", "after"), CASES)
def test_a_call_of_this_end(
    state: State | None, event: str, returned: object, after: State | None
) -> None:
    end = Protocol()
    OWN[state](end)
    assert end.state(NUMBER) is state
    assert EVENTS[event](end) == returned
    assert end.state(NUMBER) is after
    assert not end.is_answering(NUMBER)


# Event -> for a call of the peer's that is not answered, and one that is: the action, and whether
# it is answered then. None: the peer is of no version that does so.
ANSWERING: dict[str, list[tuple[Action | None, bool]]] = {
    "call": [(Action.ANSWER, True), (None, True)],
    "call alone": [(Action.ANSWER_ALONE, True), (None, True)],
    "taken back": [(IGNORE, False), (Action.CANCEL, True)],
    "finish": [(None, False), (None, False)],
}
PEERS = {"call": CALL, "call alone": CALL_ALONE, "taken back": CANCELLED}


@pytest.mark.parametrize("event", ANSWERING)
@pytest.mark.parametrize("is_answering", [False, True])
def test_a_call_of_the_peer(event: str, is_answering: bool) -> None:
    end = Protocol()
    if is_answering:
        end.handle(CALL, NUMBER)
    action, after = ANSWERING[event][is_answering]
    if event == "finish":
        end.finish(NUMBER)
    elif action is None:
        with pytest.raises(ValueError, match="call 0 came while it was being answered"):
            end.handle(PEERS[event], NUMBER)
    else:
        assert end.handle(PEERS[event], NUMBER) is action
    assert end.is_answering(NUMBER) is after
    assert end.state(NUMBER) is None, "the peer's numbers are not this end's"


def test_a_message_of_no_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="a message of kind 7, which there is not"):
        Protocol().handle(max(KINDS) + 1, NUMBER)


def test_numbers_are_not_used_again() -> None:
    end = Protocol()
    first = end.open()
    end.close(first)
    assert end.open() != first


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["call", "alone", "back", "begin", "answer", "go"]), max_size=60))
def test_every_call_between_two_ends_is_settled_once_or_broken(steps: list[str]) -> None:
    """Messages of each end arrive in their order; `go` has the oldest of both arrive."""
    caller, answerer = Protocol(), Protocol()
    there: list[tuple[int, int]] = []  # from the caller
    back: list[tuple[int, int]] = []
    opened: list[int] = []
    working: list[int] = []
    settled: list[int] = []
    given_up: list[int] = []
    for step in [*steps, *(["go"] * 2 * len(steps))]:
        if step in ("call", "alone"):
            opened.append(caller.open())
            there.append((CALL if step == "call" else CALL_ALONE, opened[-1]))
        elif step == "back" and opened and caller.cancel(opened[-1]):
            there.append((CANCELLED, opened[-1]))
            caller.close(opened[-1])
            given_up.append(opened[-1])
        elif step == "begin" and working:
            back.append((BEGUN, working[0]))
        elif step == "answer" and working:
            back.append((REPLY, working[0]))
            answerer.finish(working.pop(0))
        elif step == "go":
            if there:
                kind, number = there.pop(0)
                action = answerer.handle(kind, number)
                if action in (Action.ANSWER, Action.ANSWER_ALONE):
                    working.append(number)
                elif action is Action.CANCEL:
                    working.remove(number)
                    answerer.finish(number)
            if back:
                kind, number = back.pop(0)
                if caller.handle(kind, number, has_begun=True) is Action.SETTLE:
                    settled.append(number)
    broken = caller.end(set(), has_left=False)
    assert sorted([*settled, *given_up, *broken]) == opened
    assert sorted(broken) == sorted(working), "the answerer works on no call that is given up"
