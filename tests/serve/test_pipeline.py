"""A pipeline over worlds answers as the same one over plain handles does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hoplite_ray.serve import pipeline
from tests.serve.applications import BAD, KEY, Cross, Deadly, Search, Text, Vision, Wrong
from tests.serve.conftest import Application


def four_stages(**options: Any) -> Any:
    return pipeline(
        text=Text,
        vision=Vision,
        cross=Cross.bind(KEY).after("text", "vision"),
        search=Search.after("cross"),
        **options,
    )


@pytest.fixture(scope="module")
def worlds(node: str) -> Iterator[Application]:
    started = Application("worlds", four_stages(replicas=1))
    yield started
    started.delete()


def told(application: Application, queries: list[Any]) -> list[Any]:
    """What comes of each query, asked at once: its answer, or the error's own words."""
    told = []
    for asked in [application.ask(query) for query in queries]:
        try:
            told.append(asked.result(timeout_s=60))
        except Exception as error:
            told.append(f"{error}".strip().splitlines()[-1])
    return told


def test_it_answers_as_over_plain_handles(worlds: Application) -> None:
    plain = Application("plain", four_stages(edges="serve", replicas=1))
    queries = list(range(40))
    expected = [{"found": query + 1 + 10 * query + KEY} for query in queries]
    for application in (worlds, plain):
        answers = told(application, queries)
        assert answers[:BAD] + answers[BAD + 1 :] == expected[:BAD] + expected[BAD + 1 :]
        assert answers[BAD] == f"ValueError: {BAD} brings bad luck", "alone of its batch"
    plain.delete()


def test_arrays_arrive_as_they_are(worlds: Application) -> None:
    for size in (0, 1000, 2_500_000):
        query = np.arange(size, dtype=np.float32)
        answer = worlds.answer(query)["found"]
        np.testing.assert_array_equal(answer, query + 1 + 10 * query + np.float32(KEY))


def test_over_http_a_query_and_its_answer_are_json(worlds: Application, node: str) -> None:
    url = f"{node}/worlds"
    with urllib.request.urlopen(url, data=json.dumps(2).encode(), timeout=30) as response:
        assert json.load(response) == {"found": 3 + 20 + KEY}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(url, data=b"{", timeout=30)


def test_a_query_has_the_id_that_its_caller_gave_and_a_deadline(node: str) -> None:
    app = pipeline(only=Deadly, replicas=1, deadline_ms=4000)
    application = Application("only", app)
    assert application.answer_as(-3, "mine") == ("mine",)
    with pytest.raises(Exception, match="TimeoutError"):
        application.answer(-2)
    application.delete()


def test_a_list_of_the_wrong_length_is_named(node: str) -> None:
    application = Application("wrong", pipeline(only=Wrong, replicas=1))
    with pytest.raises(Exception, match="stage only answered 1 queries with 0"):
        application.answer(1)
    application.delete()
