"""What users may pass as `timeout_s`, and that 0 takes what there is."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest

from hoplite_ray.errors import GetTimeoutError, InvalidArgumentError, WrongTypeError
from hoplite_ray.pending import Pending, results, results_async
from hoplite_ray.plugin.handle.fetching import in_thread
from hoplite_ray.values.deadlines import checked_timeout, deadline_in, left_s, refuse_late


def test_a_limit_is_a_number_of_seconds() -> None:
    assert checked_timeout(0) == 0.0
    assert checked_timeout(np.float32(1.5)) == 1.5
    for wrong in (math.nan, -math.inf, -1, -0.1):
        with pytest.raises(InvalidArgumentError, match=r"timeout_s is .*; it takes 0 or more sec"):
            checked_timeout(wrong)
    for kind in ("5", True, [1]):
        with pytest.raises(WrongTypeError, match=r"timeout_s is a .*; it takes seconds, or None"):
            checked_timeout(kind)


def test_an_infinite_limit_is_none() -> None:
    for endless in (None, math.inf):
        assert checked_timeout(endless) is None
        assert deadline_in(endless) is None
    assert left_s(None) is None


def test_a_call_of_several_steps_ends_at_its_limit() -> None:
    over = time.monotonic() - 1
    with pytest.raises(GetTimeoutError, match=r"delete of 3 objects .* timeout_s=2"):
        refuse_late(over, 2, "delete of 3 objects")
    refuse_late(deadline_in(60), 60, "delete")
    refuse_late(deadline_in(0), 0, "delete")  # each step takes what can be had at once
    refuse_late(None, None, "delete")


def test_a_deadline_is_never_more_than_over() -> None:
    assert left_s(deadline_in(0)) == 0.0
    assert left_s(time.monotonic() - 5) == 0.0
    assert 59 < (left_s(deadline_in(60)) or 0) <= 60


class Request:
    """Of a node whose answers arrive with the answer to an echo."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.has_come = False
        self.is_cancelled = False

    def wait(self, timeout_s: float) -> bool:
        return self.has_come

    def result(self) -> object:
        return self.answer

    def cancel(self) -> None:
        self.is_cancelled = True


class Node:
    """Stands for the listener of a store."""

    def __init__(self, *requests: Request) -> None:
        self.requests = requests
        self.echoes = 0

    def await_echo(self) -> None:
        self.echoes += 1
        for request in self.requests:
            request.has_come = request.answer is not None

    def wait_all(self, requests: list[Request], timeout_s: float) -> int | None:
        return len(requests) if all(each.has_come for each in requests) else None

    def shortage(self) -> str:
        return ""


def pending(node: Node, request: Request) -> Pending[Any]:
    what: Any = (node, request)
    return Pending(*what, what="get of x", hint="it is not here", decode=lambda value: value)


def test_a_limit_of_0_takes_the_answer_that_the_node_has() -> None:
    for take in (
        lambda each: each.result(0),
        lambda each: asyncio.run(each.result_async(0)),
        lambda each: results([each], 0)[0],
        lambda each: asyncio.run(results_async([each], 0))[0],
    ):
        request = Request("value")
        node = Node(request)
        assert take(pending(node, request)) == "value"
        assert node.echoes == 1
        assert not request.is_cancelled


def test_a_limit_of_0_ends_an_operation_that_is_not_done() -> None:
    for take in (
        lambda each: each.result(0),
        lambda each: asyncio.run(each.result_async(0)),
        lambda each: results([each], 0),
        lambda each: asyncio.run(results_async([each], 0)),
    ):
        request = Request()
        with pytest.raises(GetTimeoutError, match="get of x has not ended"):
            take(pending(Node(request), request))
        assert request.is_cancelled


def test_a_look_asks_the_node_for_nothing() -> None:
    request = Request("value")
    node = Node(request)
    assert not pending(node, request).wait(0)
    assert node.echoes == 0


def test_a_call_without_a_wait_is_made_at_its_deadline() -> None:
    assert asyncio.run(in_thread(time.monotonic(), lambda: "made")) == "made"
