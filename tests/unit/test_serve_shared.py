"""Pipelines of one application: a shared stage is one deployment, and each query keeps its way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.serve import Application
from starlette.requests import Request

from hoplite_ray.serve import Pipelines, metrics, pipeline, pipelines, stage
from hoplite_ray.serve.edge.frames import Message
from hoplite_ray.serve.errors import JoinLostError, PipelineGoneError, UnknownPipelineError
from hoplite_ray.serve.graph import ingress as ingress_module
from hoplite_ray.serve.graph import shared
from hoplite_ray.serve.graph.shared import Route, SharedIngress
from hoplite_ray.serve.routing.keys import KeyRule, digest_key
from hoplite_ray.serve.routing.query import Query
from hoplite_ray.serve.stages import replica as replicas
from hoplite_ray.serve.stages.replica import Replica


@stage(max_batch=8)
class One:
    def __init__(self, model: Any = None) -> None: ...

    def __call__(self, queries: list[Any]) -> list[Any]:
        return [{**query, "passed": True} for query in queries]


@stage(max_batch=8)
class Other(One.user_class):
    """Not the same, though it answers alike."""


@stage
class Two:
    def __call__(self, left: list[Any], right: list[Any]) -> list[Any]:
        return left


@pytest.fixture(autouse=True)
def count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingresses and replicas tell Ray's metrics, and no Ray runs here."""
    for name in ("count", "observe", "observe_query", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)


def make(**more: Any) -> Pipelines:
    return pipelines(
        search=pipeline(text=One, rank=One.after("text"), latency_s=0.2),
        chat=pipeline(hear=One, text=One.after("hear"), latency_s=0.5, replicas=3, **more),
    )


def find_nodes(application: Application) -> dict[str, list[Any]]:
    """Return the deployments of an application by name, each as often as it was made."""
    found: dict[str, list[Any]] = {}
    left = [application._bound_deployment]
    while left:
        each = left.pop()
        if each not in found.setdefault(each.name, []):
            found[each.name].append(each)
        for argument in (*each.init_args, *each.init_kwargs.values()):
            inner = argument.values() if isinstance(argument, dict) else [argument]
            left += [node._bound_deployment for node in inner if isinstance(node, Application)]
    return found


def test_a_shared_stage_is_one_deployment_with_the_next_stages_of_each_pipeline() -> None:
    found = find_nodes(make())
    assert {name: len(nodes) for name, nodes in found.items()} == dict.fromkeys(
        ("text", "rank", "hear", "ingress"), 1
    )
    downstream, _, next_stages = found["text"][0].init_args[2:]
    assert downstream.keys() == {"rank"}
    assert next_stages == {"search": ("rank",), "chat": ()}
    assert found["hear"][0].init_args[4] == {"chat": ("text",)}
    ingress = found["ingress"][0]
    assert ingress.init_args[0].keys() == {"text", "hear"}, "the first ones"
    assert ingress.num_replicas == 3
    assert {name: each.latency_s for name, each in ingress.init_args[1].items()} == {
        "search": 0.2,
        "chat": 0.5,
    }


def test_pipelines_with_other_stages_keep_the_inputs_of_each() -> None:
    changed = make().replace({"text": One.options(max_batch=3)}, latency_s={"search": 1, "chat": 2})
    for name, inputs, latency_s in (("search", (), 1), ("chat", ("hear",), 2)):
        spec = changed.specs[name]
        assert spec.latency_s == latency_s
        assert (spec.stages["text"].inputs, spec.stages["text"].max_batch) == (inputs, 3)
    assert changed.specs["chat"].stages["hear"].max_batch == 8


_JOIN = {"left": One, "right": One, "c": Two.after("left", "right")}
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "options": (
        lambda: pipelines(one=pipeline(text=One), two=pipeline(text=One.options(max_batch=4))),
        ValueError,
        "stage text is not the same in pipelines one and two: its max_batch is 8 and 4; use one",
    ),
    "arguments": (
        lambda: pipelines(one=pipeline(text=One), two=pipeline(text=One.bind(3))),
        ValueError,
        "its arguments is",
    ),
    "arrays": (
        lambda: pipelines(
            one=pipeline(text=One.bind(np.zeros(2))), two=pipeline(text=One.bind(np.zeros(2)))
        ),
        ValueError,
        "its arguments is",
    ),
    "class": (
        lambda: pipelines(one=pipeline(text=One), two=pipeline(text=Other)),
        ValueError,
        "its user_class",
    ),
    "joins": (
        lambda: pipelines(
            one=pipeline(**_JOIN), two=pipeline({**_JOIN, "c": Two.after("right", "left")})
        ),
        ValueError,
        r"stage c joins .*'right'\) and \('right', 'left'\) in pipelines one and two",
    ),
    "edges": (
        lambda: pipelines(one=pipeline(text=One), two=pipeline(text=One, edges="serve")),
        ValueError,
        "pipeline one has edges='worlds' and two 'serve'",
    ),
    "orders": (
        lambda: pipelines(
            one=pipeline(a=One, b=One.after("a")), two=pipeline(b=One, a=One.after("b"))
        ),
        ValueError,
        r"stages \['a', 'b'\] are after each other in pipelines \['one', 'two'\]",
    ),
    "no pipeline": (lambda: pipelines(text=One), TypeError, "give what pipeline"),
    "unnamed": (lambda: pipelines(pipeline(text=One)), TypeError, "pipelines have names"),
    "a path": (lambda: pipelines({"a/b": pipeline(text=One)}), ValueError, "'a/b': its name is a"),
    "twice": (
        lambda: pipelines({"a": pipeline(text=One)}, a=pipeline(text=One)),
        ValueError,
        "name each pipeline once",
    ),
    "none": (pipelines, ValueError, "at least one pipeline"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pipelines_that_do_not_fit_are_refused_with_the_reason(name: str) -> None:
    build, kind, why = REFUSED[name]
    with pytest.raises(kind, match=why):
        build()


class Downstream:
    """Takes what a replica or an ingress sends on."""

    def __init__(self, handle: Any, *_: Any) -> None:
        self.stage = handle
        self.asked: list[tuple[Query, Any]] = []

    def derive_key(self, value: Any) -> bytes | None:
        return digest_key(f"{self.stage} {value}")

    def rank_replicas(self, key: bytes | None) -> tuple[Any, ...]:
        return (key,)

    async def wait_ready(self) -> None: ...

    async def call(self, query: Query, *, key: Any = None, **_: Any) -> Any:
        self.asked.append((query, key))
        return f"{query.pipeline} by {self.stage}"

    async def close(self) -> None: ...


def run_replica(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Any], Awaitable[None]], **keys: KeyRule
) -> None:
    """Do `work` with a replica of `text`: its answers go to rank in search, and nowhere in chat."""
    monkeypatch.setattr(replicas, "Outlet", Downstream)

    async def run() -> None:
        made: Any = Replica.__new__(Replica)
        following = {"search": ("rank",), "speech": ("speak",), "chat": ()}
        await made.__init__(One, "text", {"rank": "rank", "speak": "speak"}, keys, following)
        try:
            await work(made)
        finally:
            await made.__del__()

    asyncio.run(run())


async def ask(replica: Any, pipeline: str, value: Any) -> Any:
    told = asyncio.Event()
    told.set()
    query = Query("id", 1, "", value, 9.0, {}, pipeline=pipeline)
    return await replica._answer_call(query.fields, lambda _: told)


def test_an_answer_goes_to_the_next_stages_of_its_querys_pipeline_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(replica: Any) -> None:
        answers = await asyncio.gather(
            *(ask(replica, name, {"user": 1}) for name in ("search", "speech", "chat"))
        )
        assert answers[:2] == ["search by rank", "speech by speak"]
        assert Message.pack(0, 0, answers[2]).value() == {"user": 1, "passed": True}
        for name, following in (("search", "rank"), ("speech", "speak")):
            [(query, _)] = replica._outlets[following].asked
            assert (query.pipeline, query.name) == (name, "text")
        before_s = time.time()
        with pytest.raises(JoinLostError, match="text knows no pipeline 'later'") as refused:
            await ask(replica, "later", {})
        assert isinstance(refused.value, UnknownPipelineError)
        assert refused.value.began_s <= before_s

    run_replica(monkeypatch, work)


def test_a_key_is_made_for_the_pipelines_that_have_its_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(replica: Any) -> None:
        assert await ask(replica, "speech", {"nobody": 1}) == "speech by speak"
        assert await ask(replica, "search", {"user": 1}) == "search by rank"
        assert replica._outlets["rank"].asked[0][1] == digest_key(1)
        with pytest.raises(KeyError, match="user"):
            await ask(replica, "search", {"nobody": 1})

    run_replica(monkeypatch, work, rank=KeyRule("rank", lambda query: query["user"], 8))


def run_ingress(
    monkeypatch: pytest.MonkeyPatch,
    routes: dict[str, Route],
    work: Callable[[Any], Awaitable[None]],
) -> None:
    async def open_downstream(nodes: dict[str, Any], *_: Any) -> dict[str, Downstream]:
        return {name: Downstream(name) for name in nodes}

    monkeypatch.setattr(shared, "open_outlets", open_downstream)

    async def run() -> None:
        ingress: Any = SharedIngress.__new__(SharedIngress)
        await ingress.__init__(dict.fromkeys(("hear", "text")), routes, "worlds")
        await work(ingress)
        await ingress.__del__()

    asyncio.run(run())


SEARCH = Route({"text": (), "rank": ("text",)}, 9.0, 0.2)
CHAT = Route({"hear": (), "text": ("hear",)}, 5.0, None)


def test_an_ingress_asks_the_first_stages_of_the_pipeline_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(ingress: Any) -> None:
        assert await ingress(1, pipeline="search") == "search by text"
        assert await ingress(2, pipeline="chat") == "chat by hear"
        assert await ingress.ask(3, "my id", pipeline="chat", deadline_s=2.0) == "chat by hear"
        heard = [query for query, _ in ingress._outlets["hear"].asked]
        assert [query.value for query in heard] == [2, 3]
        assert heard[1].id == "my id" and heard[1].left_s <= 2.0 < heard[0].left_s <= 5.0
        [(query, key)] = ingress._outlets["text"].asked
        assert query.grace_s == pytest.approx(8.8) and heard[0].grace_s == 0
        assert key == digest_key("text 1"), "text has no key of chat's query"
        for name in (None, "speech", ""):
            with pytest.raises(ValueError, match=r"has \['search', 'chat'\]; give one of them as"):
                await ingress(1, pipeline=name)

    run_ingress(monkeypatch, {"search": SEARCH, "chat": CHAT}, work)


class Updated(Downstream):
    """Replicas amid an update: `refusals` of them, one after the other, know no such pipeline."""

    def __init__(self, name: str, later_s: float, refusals: int) -> None:
        super().__init__(name)
        self.began_s = time.time() + later_s
        self.refusals = refusals

    async def call(self, query: Query, **options: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise UnknownPipelineError("it knows no such pipeline", 0, self.began_s)
        return await super().call(query, **options)


@pytest.mark.parametrize(
    ("later_s", "refusals", "is_gone"),
    [
        (60.0, 10_000, True),  # the replicas are newer than the ingress
        (60.0, 2, False),  # an old one is left, and answers
        (-60.0, 100, False),  # they are older: an update adds the pipeline
        (1.0, 100, False),  # clocks may differ by as much
    ],
)
def test_a_query_ends_soon_if_an_update_has_removed_its_pipeline(
    monkeypatch: pytest.MonkeyPatch, later_s: float, refusals: int, is_gone: bool
) -> None:
    monkeypatch.setattr(ingress_module, "_AGAIN_S", 0.001)
    monkeypatch.setattr(ingress_module, "_GONE_S", 0.05)

    async def work(ingress: Any) -> None:
        updated = Updated("text", later_s, refusals)
        for asker in ingress._askers.values():
            asker._first = asker._outlets = {"text": updated}
        if is_gone:
            with pytest.raises(PipelineGoneError, match="removed or renamed pipeline 'search'"):
                await ingress(1, pipeline="search")
        else:
            assert await ingress(1, pipeline="search") == "search by text"
            assert updated.refusals == 0

    run_ingress(monkeypatch, {"search": replace(SEARCH, deadline_s=60.0)}, work)


def post(path: str, root: str = "/app") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"1"}

    scope = {"type": "http", "method": "POST", "headers": [], "path": path, "root_path": root}
    return Request(scope, receive)


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("/app/search", 200, "search by text"),
        ("/app/chat/", 200, "chat by hear"),
        ("/app/speech", 404, "speech"),
        ("/app", 404, "search"),
        ("/app/search/more", 404, "search/more"),
    ],
)
def test_over_http_the_path_is_the_pipeline(
    path: str, status: int, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(ingress: Any) -> None:
        response = await ingress(post(path))
        assert response.status_code == status
        read = json.loads(bytes(response.body))
        assert read == answer if status == 200 else answer in read["error"]

    run_ingress(monkeypatch, {"search": SEARCH, "chat": CHAT}, work)


def test_the_only_pipeline_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(ingress: Any) -> None:
        assert await ingress(1) == await ingress(1, pipeline="search") == "search by text"
        assert (await ingress(post("/app"))).status_code == 200

    run_ingress(monkeypatch, {"search": SEARCH}, work)


def test_a_query_keeps_its_pipeline_from_stage_to_stage() -> None:
    query = Query("id", 1, "", 5, 9.0, {}, pipeline="chat")
    received = Query(*query.fields)
    assert received == query
    assert received.for_next_stage("text", 6, 8.0).pipeline == "chat"
