"""What a query over HTTP is answered with, whatever becomes of it: JSON, and never a bare 500."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest
from starlette.requests import Request

from hoplite_ray.serve import QuorumError
from hoplite_ray.serve.graph.http import answer_http

DEEP = 200_000


def answered(body: bytes, outcome: Any) -> tuple[int, Any]:
    """What comes of a POST whose query is answered with, or raises, `outcome`."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def ask(query: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    response = asyncio.run(answer_http(request, ask))
    return response.status_code, json.loads(bytes(response.body))


def nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(DEEP):
        value = [value]
    return value


class DumbError(Exception):
    def __str__(self) -> str:
        raise KeyError


@pytest.mark.parametrize(
    ("body", "outcome", "status", "why"),
    [
        (b"[" * DEEP + b"]" * DEEP, 1, 400, "the query is no JSON .*; POST"),
        (b"1", nested(), 500, r"the answer can't go over HTTP \(RecursionError.*; have the last"),
        (b"1", {1}, 500, r"the answer can't go over HTTP \(TypeError.*set is not JSON"),
        (b"1", "\ud800", 500, "the answer can't go over HTTP"),
        (b"1", ValueError("\ud800"), 500, r"ValueError: \\ud800"),
        (b"1", DumbError(), 500, "DumbError: <its text can't be had>"),
    ],
    ids=["deep query", "deep answer", "set", "surrogate", "surrogate error", "dumb error"],
)
def test_an_error_is_json(
    body: bytes, outcome: Any, status: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker of pytest-xdist can't report a log that has a surrogate.
    monkeypatch.setattr(logging.getLogger("ray.serve"), "disabled", True)
    code, told = answered(body, outcome)
    assert code == status
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(told["error"])


def test_votes_that_json_has_not_are_named_and_the_others_told() -> None:
    partial = {"a": {1}, "b": 2, "c": nested(), "d": "\ud800"}
    code, told = answered(b"1", QuorumError("4 of 5 have voted", partial))
    assert (code, told["partial"]) == (503, {"b": 2})
    for member in "acd":
        assert f"the vote of {member} can't go over HTTP" in told["error"]


def test_no_answer_is_made_json_in_the_loop() -> None:
    """Case review_13."""
    threads: list[int] = []

    class Answer:
        def tolist(self) -> list[int]:
            threads.append(threading.get_ident())
            return [1, 2]

    assert answered(b"1", {"large": Answer()}) == (200, {"large": [1, 2]})
    told = answered(b"1", QuorumError("1 of 2 have voted", {"a": Answer()}))
    assert told == (503, {"error": "1 of 2 have voted", "partial": {"a": [1, 2]}})
    assert len(threads) == 2 and threading.get_ident() not in threads
