"""Parked replicas, as senders choose them, and as doors and edges tell of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.door import Door
from hoplite_ray.serve.edge.edge import Edge
from hoplite_ray.serve.edge.frames import Message, unpack_frame
from hoplite_ray.serve.edge.protocol import ACTIVE
from hoplite_ray.serve.routing import discovery, outlet
from hoplite_ray.serve.routing.choice import find_candidates
from hoplite_ray.serve.routing.keys import KeyRule
from hoplite_ray.serve.routing.outlet import Outlet
from hoplite_ray.serve.routing.query import Query
from tests.unit.test_serve_door import hello, knock
from tests.unit.test_serve_edges import _World, no_handler

STAGE = ("application", "stage")


@pytest.fixture(autouse=True)
def silence_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges and outlets tell Ray's metrics, and no Ray runs here."""
    for name in ("count", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)


@pytest.mark.parametrize(
    ("parked", "is_opening", "candidates"),
    [
        ({}, False, []),
        ({}, True, []),
        ({"a": False}, True, ["a"]),
        ({"b": True, "a": False}, False, ["a"]),
        ({"b": True, "a": True}, False, ["a", "b"]),
        ({"b": True, "a": True}, True, []),
    ],
)
def test_which_replicas_may_get_a_query(
    parked: dict[str, bool], is_opening: bool, candidates: list[str]
) -> None:
    assert list(find_candidates(parked, is_opening=is_opening)) == candidates


@given(st.dictionaries(st.text(max_size=3), st.booleans()), st.booleans())
def test_parked_and_active_replicas_are_never_mixed(
    parked: dict[str, bool], is_opening: bool
) -> None:
    found = find_candidates(parked, is_opening=is_opening)
    assert len({parked[each] for each in found}) <= 1
    if not all(parked.values()):
        assert not any(parked[each] for each in found) and found
    elif not is_opening:
        assert list(found) == sorted(parked), "all senders begin with the same one"


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not become so")


class Sent:
    """An edge of a sender, which a test parks and loads."""

    has_left = False
    calls_broken = calls_open = 0

    def __init__(self, is_parked: bool, notify_active: Callable[[], None]) -> None:
        self.is_parked = is_parked
        self.notify_active = notify_active
        self.is_over = asyncio.Event()

    def activate(self) -> None:
        self.is_parked = False
        self.notify_active()

    async def wait_closed(self) -> None:
        await self.is_over.wait()

    async def close(self) -> None: ...


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sent]:
    """Return the edges that are open by their replicas; one opens when its door says so."""
    opened: dict[str, Sent] = {}

    async def open_edge(
        door: Any, name: str, handler: Any, what: str, notify_active: Callable[[], None]
    ) -> Any:
        await door["opens"].wait()
        if door["is_unreachable"]:
            raise ConnectionResetError
        edge = opened[name.partition(">")[2]] = Sent(door["is_parked"], notify_active)
        return edge

    monkeypatch.setattr(outlet, "open_edge", open_edge)
    return opened


def make_door(
    *, is_parked: bool, is_open: bool = True, is_unreachable: bool = False
) -> dict[str, Any]:
    opens = asyncio.Event()
    if is_open:
        opens.set()
    return {"opens": opens, "is_parked": is_parked, "is_unreachable": is_unreachable}


async def sender(doors: dict[str, Any], rule: KeyRule | None = None) -> Any:
    """Return an outlet that Serve has told of these doors, once those that open have edges."""
    app, deployment = STAGE
    handle = SimpleNamespace(app_name=app, deployment_name=deployment, is_initialized=True)
    made = Outlet(handle, "an answer", rule)
    discovery.publish(STAGE, doors)
    await until(lambda: len(made._edges) == sum(each["opens"].is_set() for each in doors.values()))
    return made


RULES = [None, KeyRule("stage", lambda query: query, 1)]


@pytest.mark.parametrize("rule", RULES, ids=["by load", "by key"])
def test_parked_replicas_are_chosen_when_no_other_is_left(
    edges: dict[str, Sent], rule: KeyRule | None
) -> None:
    async def run() -> None:
        doors = {each: make_door(is_parked=each != "b") for each in ("a", "b", "c")}
        made = await sender(doors, rule)

        def choose() -> set[Sent]:
            return {made._choose(made.derive_key(key)) for key in range(50)}

        assert choose() == {edges["b"]}
        edges["b"].calls_open = 100
        assert choose() == {edges["b"]}, "however busy it is"
        edges["b"].calls_open = 0
        assert made.rank_replicas(made.derive_key(1)) == ("b", "a", "c")
        edges["c"].is_parked = False
        assert choose() == {edges["b"], edges["c"]}
        for each in ("b", "c"):
            made._forget_edge(edges[each])
        edges["a"].calls_open = 1
        assert choose() == {edges["a"]}
        await made.close()

    asyncio.run(run())


@pytest.mark.parametrize("rule", RULES, ids=["by load", "by key"])
def test_senders_begin_with_the_same_parked_replica_and_spread_a_flood(
    edges: dict[str, Sent], rule: KeyRule | None
) -> None:
    async def run() -> None:
        made = await sender({each: make_door(is_parked=True) for each in ("c", "a", "b")}, rule)
        assert {made._choose(made.derive_key(key)) for key in range(20)} == {edges["a"]}
        assert made.rank_replicas(made.derive_key(1)) == ("a", "b", "c")
        chosen = []
        for key in range(3):
            chosen.append(made._choose(made.derive_key(key)))
            chosen[-1].calls_open += 1
        assert chosen == [edges["a"], edges["b"], edges["c"]]
        await made.close()

    asyncio.run(run())


ENDS: dict[str, tuple[dict[str, bool], float, str]] = {
    "an active one": ({"is_parked": False}, 60.0, "active"),
    "another parked one": ({"is_parked": True}, 60.0, "parked"),
    "one that can't be reached": ({"is_parked": False, "is_unreachable": True}, 60.0, "parked"),
    "one that takes too long": ({"is_parked": False, "is_open": False}, 0.01, "parked"),
}


@pytest.mark.parametrize(("other", "open_s", "chosen"), ENDS.values(), ids=ENDS.keys())
def test_a_sender_that_starts_waits_for_an_edge_that_may_be_active(
    monkeypatch: pytest.MonkeyPatch,
    edges: dict[str, Sent],
    other: dict[str, bool],
    open_s: float,
    chosen: str,
) -> None:
    monkeypatch.setattr(outlet, "OPEN_S", open_s)

    async def run() -> None:
        last = make_door(**{**other, "is_open": False})
        made = await sender({"parked": make_door(is_parked=True), "zlast": last})
        called: list[Any] = []

        async def call_edge(edge: Any, query: Query, *, alone: bool) -> None:
            called.append(edge)

        monkeypatch.setattr(made, "_call_edge", call_edge)
        refuses = {"should_wait": lambda: False}  # it has an edge, and so waits all the same
        asked = asyncio.create_task(made.call(Query("q", 1, "", 0, 60.0, {}), **refuses))
        await asyncio.sleep(0)
        assert open_s < 1 or not (called or asked.done())
        if other.get("is_open", True):
            last["opens"].set()
        await asyncio.wait_for(asked, 30)
        assert called == [edges["zlast" if chosen == "active" else "parked"]]
        await made.close()

    asyncio.run(run())


@pytest.mark.parametrize("waits", ["a query", "a join"])
def test_a_sender_that_waits_hears_at_once_that_a_parked_replica_is_active(
    monkeypatch: pytest.MonkeyPatch, edges: dict[str, Sent], waits: str
) -> None:
    monkeypatch.setattr(outlet, "OPEN_S", 60.0)

    async def run() -> None:
        other = make_door(is_parked=False, is_open=False)
        made = await sender({"parked": make_door(is_parked=True), "zlast": other})
        called: list[Any] = []

        async def call_edge(edge: Any, query: Query, *, alone: bool) -> None:
            called.append(edge)

        monkeypatch.setattr(made, "_call_edge", call_edge)
        ask = made.call(Query("q", 1, "", 0, 60.0, {})) if waits == "a query" else made.wait_ready()
        asked = asyncio.create_task(ask)
        await asyncio.sleep(0)
        assert not asked.done()
        edges["parked"].activate()
        await asyncio.wait_for(asked, 10)
        assert called == ([edges["parked"]] if waits == "a query" else [])
        await made.close()

    asyncio.run(run())


def list_kinds(world: _World) -> list[int]:
    return [each.kind for frame in world.frames for each in unpack_frame(frame)]


def test_a_door_tells_its_edges_and_those_that_were_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        door = Door(no_handler, "an answer", is_parked=True)
        worlds = [_World(lacks=False) for _ in range(3)]
        joining = asyncio.Event()

        async def join_async(name: str, **_: Any) -> Any:
            if name == "1":
                await joining.wait()
            return worlds[int(name)]

        manager = SimpleNamespace(join_async=join_async)
        monkeypatch.setattr("hoplite_ray.serve.edge.door.manager", lambda: manager)
        sock: Any = SimpleNamespace(close=lambda: None)

        def open_edge(name: str) -> asyncio.Task[None]:
            return asyncio.create_task(door._run_edge(sock, name, knows_parked=door.is_parked))

        tasks = [open_edge("0"), open_edge("1")]
        await until(lambda: len(door.edges) == 1)
        door.activate()
        joining.set()
        tasks.append(open_edge("2"))
        await until(lambda: len(door.edges) == 3)
        await asyncio.gather(*(each._outbox.has_sent.wait() for each in door.edges))
        assert [list_kinds(world) for world in worlds] == [[ACTIVE], [ACTIVE], []]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_a_door_says_whether_its_replica_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite_ray.serve.edge.door.manager", None)  # no world is joined
    answer, _ = knock(hello, is_parked=True)
    assert answer.endswith(b'"parked": true}')


def test_an_edge_learns_that_its_peer_is_active() -> None:
    async def run() -> None:
        told: list[bool] = []
        edge = Edge(
            _World(lacks=False),  # type: ignore[arg-type]
            no_handler,
            is_parked=True,
            notify_active=lambda: told.append(edge.is_parked),
        )
        edge._handle_message(Message.pack(ACTIVE, 0, None))
        assert told == [False]

    asyncio.run(run())
