"""Keys of queries: which there are, where they are made, and how they come to the choice."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoplite_ray as hop
from hoplite_ray.serve import ensemble, metrics, pipeline, stage
from hoplite_ray.serve.graph.ensemble import EnsembleIngress
from hoplite_ray.serve.graph.ingress import Ingress
from hoplite_ray.serve.routing import discovery, outlet
from hoplite_ray.serve.routing.handoff import Stored
from hoplite_ray.serve.routing.keys import KeyRule, NearRule, Rule, digest_key
from hoplite_ray.serve.routing.nearness import Part
from hoplite_ray.serve.routing.outlet import Outlet
from hoplite_ray.serve.routing.query import Query
from hoplite_ray.serve.stages.replica import Replica
from hoplite_ray.values.layout import Layout

STAGE = ("application", "cache")
DIGEST = "d935bde35c718af5cfe68997c086270f"  # of the key in its test
REPLICAS = ("one", "two", "three")

Keys = st.recursive(
    st.text() | st.binary() | st.integers() | st.none(), lambda each: st.tuples(each, each)
)


@pytest.fixture(autouse=True)
def stop_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outlets and replicas tell Ray's metrics, and no Ray runs here."""
    for name in ("count", "observe", "observe_query", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)


@given(one=Keys, other=Keys)
@settings(max_examples=30)
def test_digests_differ_as_keys_do(one: Any, other: Any) -> None:
    assert (digest_key(one) == digest_key(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (1, True, True),
        (7, np.int64(7), True),
        ("a", np.str_("a"), True),
        ("1", 1, False),
        ("a", b"a", False),
        (("a", "bc"), ("ab", "c"), False),
        (("a", None), ("a",), False),
        ((("a",), "b"), ("a", ("b",)), False),
        ("\ud800", "?", False),
    ],
)
def test_keys_that_look_alike(one: Any, other: Any, is_same: bool) -> None:
    assert (digest_key(one) == digest_key(other)) is is_same


def test_a_digest_is_that_of_every_other_process() -> None:
    digest = digest_key(("user", 7, b"\0", None))
    assert digest is not None and digest.hex() == DIGEST
    assert digest_key(None) is None


@pytest.mark.parametrize("key", [1.5, ["a"], {"a": 1}, ("a", 1.5), np.zeros(2)])
def test_what_is_no_key_is_told_with_the_stage(key: Any) -> None:
    kind = type(key[1] if isinstance(key, tuple) else key).__name__
    with pytest.raises(TypeError, match=f"a key is {kind}; let it be text, bytes") as raised:
        KeyRule("cache", lambda _: key, 8).derive("a query")
    assert raised.value.__notes__[0].startswith("in stage cache: its key can't be had:\nTraceback")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("user"), KeyError, "'user'"),
        (SystemExit(3), RuntimeError, "SystemExit: 3"),
        (StopIteration(), RuntimeError, "StopIteration: "),
    ],
)
def test_a_function_of_keys_that_raises(error: BaseException, kind: Any, text: str) -> None:
    def fail(query: Any) -> Any:
        raise error

    with pytest.raises(kind) as raised:
        KeyRule("cache", fail, 8).derive("a query")
    assert str(raised.value) == text
    assert "in stage cache: its key can't be had" in raised.value.__notes__[0]


class Cache:
    def __call__(self, queries: list[Any]) -> list[Any]:
        return queries


class Join:
    def __call__(self, left: list[Any], right: list[Any]) -> list[Any]:
        return left


async def ask_later(query: Any) -> str:
    return "later"


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("user", "stage Cache: key='user' is no function; give one that returns a query's key"),
        (ask_later, r"stage Cache: key=<function ask_later .*> is async; let it return the key"),
        (lambda: 1, r"stage Cache: key=<function .*> is to take one value, the query; too many"),
    ],
)
def test_what_is_no_function_of_keys_is_told_at_the_decoration(key: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        stage(key=key)(Cache)
    with pytest.raises(TypeError, match=why):
        stage(Cache).options(key=key)


def by_user(query: Any) -> Any:
    return query["user"]


def test_a_stage_keeps_its_key_under_other_options() -> None:
    made = stage(key=by_user)(Cache).after("a")
    assert made.options(max_batch=4).key is by_user
    assert stage(Cache).bind().options(key=by_user).key is by_user
    assert stage(Cache).key is None
    assert (made.options(max_batch=4).inputs, made.bind(3).options(late="drop").arguments) == (
        ("a",),
        ((3,), {}),
    )


def read_keys(application: Any) -> dict[str, Any]:
    """Return the keys that each deployment of an application knows, by its name."""
    found, left = {}, [application._bound_deployment]
    while left:
        each = left.pop()
        is_ingress = each.name == "ingress"
        keys = each.init_kwargs["keys"] if is_ingress else each.init_args[3]
        found[each.name] = {name: (rule.stage, rule.max_batch) for name, rule in keys.items()}
        nodes = each.init_args[0] if is_ingress else each.init_args[2]
        left += [node._bound_deployment for node in nodes.values()]
    return found


def test_a_pipeline_gives_each_key_to_those_who_choose_by_it() -> None:
    """The replicas of a join are chosen by the ingress, and those of other stages by senders."""
    plain, keyed = stage(Cache), stage(key=by_user, max_batch=8)
    stages = {
        "first": keyed(Cache),
        "left": keyed(Cache).after("first"),
        "right": plain.after("first"),
        "join": keyed(Join).after("left", "right"),
        "last": plain.after("join"),
    }
    found = read_keys(pipeline(stages))
    assert found == {
        "ingress": {"first": ("first", 8), "join": ("join", 8)},
        "first": {"left": ("left", 8)},
        **{name: {} for name in ("left", "right", "join", "last")},
    }
    members = read_keys(ensemble(a=keyed(Cache), b=plain))
    assert members["ingress"] == {"a": ("a", 8)}


class Downstream:
    """Takes what a replica or an ingress sends on. Its key is the query's user."""

    def __init__(self, *_: Any) -> None:
        self.asked: list[tuple[Any, Any, Any]] = []
        self.replicas = list(REPLICAS)

    def derive_key(self, value: Any) -> bytes | None:
        return KeyRule("cache", by_user, 8).derive(value)

    def rank_replicas(self, key: bytes | None) -> tuple[Any, ...]:
        return key, *REPLICAS

    async def wait_ready(self) -> None: ...

    async def call(self, query: Query, *, key: Any = None, **_: Any) -> Any:
        self.asked.append((query, key, query.joins))
        return "answered"

    async def close(self) -> None: ...


def run_replica(user_class: Any, queries: list[Any]) -> tuple[list[Any], Downstream]:
    """Return what a replica before the stage `cache` answers, and what it has sent on."""
    downstream = Downstream()

    async def run() -> list[Any]:
        replica: Any = Replica.__new__(Replica)
        rule = KeyRule("cache", by_user, 8)
        await replica.__init__(stage(user_class), "before", {}, {"cache": rule})
        replica._outlets["cache"] = downstream
        told = asyncio.Event()
        told.set()
        asked = [
            replica._answer_call(Query(f"{each}", 1, "", each, 9.0, {}).fields, lambda _: told)
            for each in queries
        ]
        try:
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await replica.__del__()

    return asyncio.run(run()), downstream


class Counts:
    """Answers numbers with users, in one buffer, and counts its queries."""

    runs = 0

    def __init__(self) -> None:
        type(self).runs = 0
        self._out: dict[str, Any] = {}

    def __call__(self, queries: list[Any]) -> list[Any]:
        type(self).runs += len(queries)
        answers = []
        for query in queries:
            self._out = {"user": f"user {query}"} if query >= 0 else {"nobody": query}
            answers.append(self._out)
        return answers


class CountsAsync(Counts):
    async def __call__(self, queries: list[Any]) -> list[Any]:  # type: ignore[override]
        return super().__call__(queries)


@pytest.mark.parametrize("user_class", [Counts, CountsAsync])
def test_the_key_of_an_answer_is_made_with_it(user_class: Any) -> None:
    """An answer without a user fails alone, and no query runs twice."""
    answers, downstream = run_replica(user_class, [0, 1, -1, 2])
    assert answers[:2] + answers[3:] == ["answered"] * 3
    assert isinstance(answers[2], KeyError)
    assert answers[2].__notes__[0].startswith("in stage cache: its key can't be had")
    assert {key for _, key, _ in downstream.asked} == {digest_key(f"user {n}") for n in range(3)}
    assert user_class.runs == 4


async def open_downstream(nodes: dict[str, Any], *_: Any) -> dict[str, Downstream]:
    return {name: Downstream() for name in nodes}


def test_an_ingress_makes_the_keys_of_first_stages_and_of_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[Ingress.__module__], "open_outlets", open_downstream)

    async def run() -> None:
        ingress: Any = Ingress.__new__(Ingress)
        inputs = {"first": (), "join": ("first", "other")}
        await ingress.__init__(dict.fromkeys(inputs), inputs, "worlds", 9.0)
        assert await ingress.ask({"user": "me"}) == "answered"
        key = digest_key("me")
        [(query, sent, joins)] = ingress._outlets["first"].asked
        assert (query.value, sent) == ({"user": "me"}, key)
        assert joins == {"join": (key, *REPLICAS)}
        with pytest.raises(KeyError) as raised:
            await ingress.ask({"nobody": 1})
        assert raised.value.__notes__[0].startswith("in stage cache: its key can't be had")
        await ingress.__del__()

    asyncio.run(run())


def test_an_ensemble_makes_the_key_of_the_value_also_when_it_sends_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[EnsembleIngress.__module__], "open_outlets", open_downstream)

    async def run() -> None:
        ingress: Any = EnsembleIngress.__new__(EnsembleIngress)
        await ingress.__init__({"a": None}, 1, "majority", 9.0, "worlds")
        value = {"user": "me"}
        await ingress._ask_member("a", "id", value, Stored(b"id", value), 9.0, 7.5)
        [(query, key, _)] = ingress._outlets["a"].asked
        assert isinstance(query.value, Stored) and key == digest_key("me") and query.cut_s == 7.5
        await ingress.__del__()

    asyncio.run(run())


class Edge:
    """An edge that stays until a test ends it."""

    has_left = is_parked = False
    calls_broken = calls_open = 0

    def __init__(self) -> None:
        self.is_over = asyncio.Event()

    async def wait_closed(self) -> None:
        await self.is_over.wait()

    async def close(self) -> None: ...


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> dict[str, Edge]:
    """Return the edges that are open, by their replicas."""
    opened: dict[str, Edge] = {}

    async def open_edge(door: Any, name: str, *_: Any) -> Any:
        edge = opened[name.partition(">")[2]] = Edge()
        return edge

    monkeypatch.setattr(outlet, "open_edge", open_edge)
    return opened


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not become so")


async def sender(rule: Rule | None) -> Any:
    """Return an outlet with an edge to each replica."""
    app, deployment = STAGE
    handle = SimpleNamespace(app_name=app, deployment_name=deployment, is_initialized=True)
    made = Outlet(handle, "an answer", rule)
    await tell(made, *REPLICAS)
    return made


async def tell(of: Outlet, *replicas: str) -> None:
    discovery.publish(STAGE, {each: {"node": f"node {each}"} for each in replicas})
    await until(lambda: of.replicas == sorted(replicas))


def test_an_outlet_chooses_by_key_and_else_by_load(edges: dict[str, Edge]) -> None:
    async def run() -> None:
        made = await sender(KeyRule("cache", by_user, 8))
        key = made.derive_key({"user": "me"})
        ranked = made.rank_replicas(key)
        assert sorted(ranked) == sorted(REPLICAS)
        assert {made.rank_replicas(key) for _ in range(20)} == {ranked}
        home = edges[ranked[0]]
        home.calls_open = 5
        assert made._choose(key) is home, "it is busier than the others, and not full"
        assert made._choose(None) is not home, "a query without a key"
        home.calls_open = 16
        assert made._choose(key) is edges[ranked[1]], "it is full"
        home.calls_open = 0
        made._abandoned_calls[home] = 2
        assert made._choose(key) is edges[ranked[1]], "it is silent"
        del made._abandoned_calls[home]
        assert made._choose(key) is home
        made._forget_edge(home)
        assert made._choose(key) is edges[ranked[1]], "it is broken"
        await made.close()

    asyncio.run(run())


class Lies(hop.Array):
    """A large Array that lies on a node; it has no bytes."""

    __slots__ = ("_node",)

    def __init__(self, node: str) -> None:
        super().__init__(bytes(28), 1, Layout.of(np.zeros(9000)), None)
        self._node = node

    @property
    def _origin(self) -> str:
        return self._node


async def return_edge(edge: Any, query: Query, *, alone: bool) -> Any:
    """Answer a call with the edge that was chosen for it."""
    return edge


def test_an_outlet_chooses_by_the_arrays_and_else_by_load(edges: dict[str, Edge]) -> None:
    async def run() -> None:
        made = await sender(NearRule("cache", 8))
        query = (Part(b"an Array", 100_000, "node two"),)
        assert made.derive_key("no Arrays") is None
        edges["two"].calls_open = 5
        assert made._choose(query) is edges["two"]
        assert made.rank_replicas(query)[0] == "two"
        assert made._choose(None) is not edges["two"]
        made._call_edge = return_edge
        sent = Query("id", 1, "", Stored(b"stored", "its value", Lies("node two")), 9.0, {})
        assert await made.call(sent) is edges["two"], "the value is in the store there"
        edges["two"].calls_open = 16
        assert made._choose(query) is not edges["two"], "it is full"
        edges["two"].calls_open = 0
        await tell(made, "one", "three")
        assert made._nodes == {"one": "node one", "three": "node three"}
        assert made._choose(query) in edges.values()
        await made.close()

    asyncio.run(run())


def test_two_senders_choose_the_same_replica(edges: dict[str, Edge]) -> None:
    async def run() -> None:
        one, other = [await sender(KeyRule("cache", by_user, 8)) for _ in range(2)]
        for number in range(20):
            key = one.derive_key({"user": number})
            assert one.rank_replicas(key) == other.rank_replicas(key)
        await asyncio.gather(one.close(), other.close())

    asyncio.run(run())


def test_a_stage_without_key_has_no_affinity(edges: dict[str, Edge]) -> None:
    async def run() -> None:
        made = await sender(None)
        assert made.derive_key({"user": "me"}) is None
        assert sorted(made.rank_replicas()) == sorted(REPLICAS)
        edges["one"].calls_open = edges["two"].calls_open = 1
        assert made._choose() is edges["three"]
        await made.close()

    asyncio.run(run())
