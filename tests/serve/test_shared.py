"""Two pipelines of one application share a stage, whose replicas answer the queries of both."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from hoplite_ray.serve import pipeline, pipelines, stage
from tests.serve.applications import LIGHT, Marks
from tests.serve.conftest import Application, Node

WAYS = {"search": ("text", "rank"), "chat": ("hear", "text")}
QUERIES = 40


@pytest.fixture(scope="module")
def application(node: Node) -> Iterator[Application]:
    marks, text = stage(**LIGHT)(Marks), stage(num_replicas=2, **LIGHT)(Marks)
    made = pipelines(
        search=pipeline(text=text, rank=marks.after("text"), replicas=1),
        chat=pipeline(hear=marks, text=text.after("hear"), replicas=1),
    )
    started = Application("shared", made)
    yield started
    started.delete()


def begin(application: Application) -> list[tuple[str, int, Any]]:
    """Ask both pipelines in turns; returns the pipeline, the number and the answer to come."""
    return [
        (name, number, application.ask({"number": number, "pids": []}, pipeline=name))
        for number in range(QUERIES)
        for name in WAYS
    ]


def test_a_shared_replica_answers_both_and_its_death_loses_no_query(
    application: Application,
) -> None:
    members = {name: set(application.pids(name)) for name in ("text", "rank", "hear")}
    assert {name: len(pids) for name, pids in members.items()} == {"text": 2, "rank": 1, "hear": 1}
    texts: dict[str, set[int]] = {name: set() for name in WAYS}
    asked = begin(application)
    for name, number, answer in asked:
        read = answer.result(timeout_s=60)
        assert read["number"] == number and len(read["pids"]) == len(WAYS[name])
        for deployment, pid in zip(WAYS[name], read["pids"], strict=True):
            assert pid in members[deployment]
        texts[name].add(read["pids"][WAYS[name].index("text")])
    assert texts["search"] & texts["chat"], "one deployment"
    asked = begin(application)
    os.kill(min(members["text"]), signal.SIGKILL)
    for name, number, answer in asked + begin(application):
        read = answer.result(timeout_s=60)
        assert read["number"] == number and len(read["pids"]) == len(WAYS[name])


def test_over_http_the_path_names_the_pipeline(application: Application, node: Node) -> None:
    body = json.dumps({"number": 1, "pids": []}).encode()
    for name, way in WAYS.items():
        url = f"{node.http}/shared/{name}"
        with urllib.request.urlopen(url, data=body, timeout=30) as response:
            assert len(json.load(response)["pids"]) == len(way)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{node.http}/shared/speech", data=body, timeout=30)
    assert raised.value.code == 404
    assert "['search', 'chat']" in json.load(raised.value)["error"]
    with pytest.raises(ValueError, match="this application has"):
        application.answer({"number": 1, "pids": []})
