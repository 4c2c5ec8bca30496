"""A pipeline over worlds answers as the same one over plain handles does."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.serve import pipeline, stage
from hoplite_ray.serve.metrics import METRICS
from tests.ray.raycluster import eventually
from tests.ray.spilling import told as told_by_the_node
from tests.serve.applications import (
    BAD,
    KEY,
    LIGHT,
    Configured,
    Counting,
    Cross,
    Deadly,
    Refers,
    Resolves,
    Search,
    Text,
    Through,
    Unsendable,
    Vision,
    Waiting,
    Wrong,
)
from tests.serve.conftest import Application, Node


def four_stages(orders: str = "", **options: Any) -> Any:
    return pipeline(
        text=Text.bind(orders),
        vision=Vision.bind(orders),
        cross=Cross.bind(KEY, orders).after("text", "vision"),
        search=Search.bind(orders).after("cross"),
        **options,
    )


def the_same_over_handles() -> Any:
    """With one replica of each stage."""
    text, vision, cross = (stage(**LIGHT)(each.user_class) for each in (Text, Vision, Cross))
    return pipeline(
        text=text,
        vision=vision,
        cross=cross.bind(KEY).after("text", "vision"),
        search=Search.after("cross"),
        edges="serve",
        replicas=1,
    )


@pytest.fixture(scope="module")
def worlds(node: Node) -> Iterator[Application]:
    started = Application("worlds", four_stages(replicas=1))
    yield started
    started.delete()


@pytest.fixture(scope="module")
def counting(node: Node) -> Iterator[Application]:
    """A slow join of two inputs."""
    stages = {"one": Through, "two": Through, "join": Counting.after("one", "two")}
    started = Application("counting", pipeline(**stages, replicas=1))
    yield started
    started.delete()


def told(application: Application, queries: list[Any]) -> list[Any]:
    """The outcome of each query, asked at once: its answer, or the error's own words."""
    told = []
    for asked in [application.ask(query) for query in queries]:
        try:
            told.append(asked.result(timeout_s=60))
        except Exception as error:
            told.append(f"{error}".strip().splitlines()[-1])
    return told


def test_it_answers_as_over_plain_handles(worlds: Application) -> None:
    plain = Application("plain", the_same_over_handles())
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


def series(node: Node, of: str = r"ray_hoplite_serve_\w+") -> dict[str, float]:
    """The metrics of stages from Ray's agent, with the labels of their processes."""
    with urllib.request.urlopen(node.metrics, timeout=10) as answer:
        lines = re.findall(rf"^({of}\{{.*\}}) (\S+)$", answer.read().decode(), re.M)
    return {labelled: float(value) for labelled, value in lines}


def metric_names(node: Node) -> set[str]:
    return {labelled.partition("{")[0] for labelled in series(node)}


STORED = "ray_hoplite_serve_stored_bytes_total"
OF_OTHER_TESTS = {
    *("serve_edges_broken", "serve_reissues", "serve_votes", "serve_edge_gpu_bytes"),
    *("serve_drift", "serve_late", "serve_missed", "serve_releases"),
    *("serve_budget_queries", "serve_budget_ms", "serve_spent_ms"),
    *("serve_arrivals_per_s", "serve_forecast_per_s"),
}


def test_a_large_value_for_two_stages_is_stored_once_and_freed(
    worlds: Application, node: Node
) -> None:
    def settled() -> dict[str, float]:
        """What each process has stored, when all of it has been told."""
        seen = None
        while seen != (now := series(node, STORED)):
            seen = now
            time.sleep(2)  # four of the agent's intervals
        return now

    def count_stored(after: dict[str, float], now: dict[str, float]) -> float:
        """What was stored meanwhile; the agent may forget processes that have ended."""
        return sum(told - after.get(process, 0.0) for process, told in now.items())

    query = np.ones(2_000_000, np.float32)
    worlds.answer(query)
    assert eventually(lambda: series(node, STORED), within_s=30)
    before = settled()
    worlds.answer(query)
    assert eventually(lambda: count_stored(before, series(node, STORED)) > 0, within_s=30)
    assert query.nbytes <= count_stored(before, settled()) < 1.01 * query.nbytes
    assert eventually(lambda: told_by_the_node().objects == 0)


def test_prometheus_reads_every_metric(worlds: Application, node: Node) -> None:
    worlds.answer(1)
    expected = {each.exposed_name for name, each in METRICS.items() if name not in OF_OTHER_TESTS}
    eventually(lambda: expected <= metric_names(node), within_s=60)
    assert sorted(expected - metric_names(node)) == []


def test_over_http_a_query_and_its_answer_are_json(worlds: Application, node: Node) -> None:
    url = f"{node.http}/worlds"
    with urllib.request.urlopen(url, data=json.dumps(2).encode(), timeout=30) as response:
        assert json.load(response) == {"found": 3 + 20 + KEY}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(url, data=b"{", timeout=30)


def test_a_query_has_the_id_that_its_caller_gave_and_a_deadline(node: Node) -> None:
    app = pipeline(only=Deadly, replicas=1, deadline_s=4.0)
    application = Application("only", app)
    assert application.answer_as(-3, "mine") == ("mine",)
    with pytest.raises(TimeoutError, match=r"not answered within 0\.5 s"):
        application.answer_as(-2, "soon", deadline_s=0.5)
    with pytest.raises(TimeoutError, match="not answered within 4 s"):
        application.answer_as(-2, "later", deadline_s=90.0)
    with pytest.raises(ValueError, match="deadline_s=0 must be a number above 0"):
        application.answer_as(-3, "never", deadline_s=0)
    application.delete()


def test_a_stage_says_what_is_wrong_and_has_what_serve_gives(node: Node, tmp_path: Path) -> None:
    app = pipeline(only=Wrong.bind(str(tmp_path)), replicas=1)
    application = Application("wrong", app)  # its __init__ is async
    with pytest.raises(Exception, match="stage only answered 1 queries with a list of 0"):
        application.answer(1)
    with pytest.raises(KeyError, match="no such key") as failed:
        application.answer(-1)
    assert "in stage only" in str(failed.value)
    assert "no_such_thing" in str(failed.value), "where in the user's code"
    with pytest.raises(RuntimeError, match="StopIteration"):
        application.answer(-3)
    assert eventually(lambda: application.answer(-2) > 0), "an async check_health is asked"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{node.http}/wrong", data=b"-1", timeout=30)
    assert (refused.value.code, json.load(refused.value)) == (
        500,
        {"error": "KeyError: 'no such key' (in stage only)"},
    )
    application.delete()
    assert eventually(lambda: (tmp_path / "deleted").exists()), "an object ends as any other"


@pytest.mark.parametrize("where", ["first", "last"])
def test_an_answer_that_cannot_go_on_is_told_with_its_stage(node: Node, where: str) -> None:
    stages = {"first": Through, "last": Through.after("first")}
    stages[where] = Unsendable if where == "first" else Unsendable.after("first")
    application = Application("unsendable", pipeline(**stages, replicas=1))
    with pytest.raises(TypeError, match=rf"the answer of stage {where} can't be sent \(TypeError"):
        application.answer("lock")
    with pytest.raises(RuntimeError, match="OddError: odd 1 2") as failed:
        application.answer("odd")
    assert f"in stage {where}" in str(failed.value)
    with pytest.raises(KeyError, match="alone") as failed:
        application.answer("error")
    assert f"in stage {where}: it was its answer" in str(failed.value)
    for query, text in (
        ("frozen", "FrozenError"),
        ("text", "TextError"),
        ("dumb", "DumbError"),
        ("answered", "FrozenError"),
    ):
        with pytest.raises(RuntimeError, match=text) as failed:
            application.answer(query)
        assert f"in stage {where}" in str(failed.value)
    if where == "last":
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{node.http}/unsendable", data=b'"set"', timeout=30)
        text = json.load(refused.value)["error"]
        assert "the answer can't go over HTTP" in text and "set is not JSON" in text
    application.delete()


@pytest.mark.parametrize("edges", ["worlds", "serve"])
def test_handles_travel_as_handles_and_live_as_long_as_they_are_held(
    node: Node, edges: str
) -> None:
    """Case review_01. Over plain handles Ray may free what a stage keeps after its call."""
    keeps = edges == "worlds"

    @ray.remote(num_cpus=0)
    def small(number: int) -> int:
        return number  # it lives with its owner only

    stages = {"refers": Refers, "resolves": Resolves.bind(keeps=keeps).after("refers")}
    application = Application("handles", pipeline(**stages, edges=edges, replicas=1))
    read: list[Any] = []
    for number in range(3):
        query = {"ref": small.remote(number), "array": hop.array(np.full(1 << 14, number))}
        answer = application.answer(query)
        del query  # the stage that holds its handles is the only one
        read = [*(read if keeps else ()), (number, ("mine", number), [number] * 3)]
        assert answer["read"] == read
        assert answer["copy"][-3:].tolist() == [number + 1] * 3
        assert ray.get(answer["mine"]) == [("mine", number)]
    application.delete()
    assert answer["copy"].copy()[:3].tolist() == [3] * 3, "the caller holds what it was answered"


def test_a_stage_is_configured_and_asked_beside_its_queries(node: Node) -> None:
    application = Application("configured", pipeline(only=Configured, replicas=1))
    assert application.answer(7) == (21, True)
    application.delete()


def test_a_join_does_not_run_what_is_too_late(counting: Application) -> None:
    before = counting.answer("first")
    asked = [counting.ask_as(each, f"q{each}", deadline_s=1.0) for each in range(20)]
    late = 0
    for each in asked:
        try:
            each.result(timeout_s=60)
        except Exception as error:  # Serve's own class, which is a TimeoutError, too
            late += 1
            assert "not answered within 1 s" in str(error)
    assert late > 10
    runs = counting.answer("now") - before
    assert runs < 20, "those whose deadline is over have been taken back"


def test_an_async_stage_goes_on_after_a_cancelled_future(node: Node) -> None:
    application = Application("waiting", pipeline(only=Waiting, replicas=1))
    with pytest.raises(RuntimeError, match="CancelledError"):
        application.answer(-1)
    assert application.answer(5) == 5
    application.delete()


def test_two_may_ask_with_one_id_at_once(counting: Application) -> None:
    before = counting.answer("first")
    asked = [counting.ask_as(each, "the same") for each in range(3)]
    runs = sorted(each.result(timeout_s=60) - before for each in asked)
    assert runs == [1, 2, 3]
