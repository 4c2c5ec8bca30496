"""Which replica a sender takes: of a join the one that all senders of the query take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.serve import metrics
from hoplite_ray.serve.errors import JoinLostError
from hoplite_ray.serve.routing import choice, discovery, outlet
from hoplite_ray.serve.routing.outlet import Outlet
from hoplite_ray.serve.routing.query import Query

STAGE = ("application", "join")
PREFERRED = ("first", "second")
QUERY = Query("query", 1, "", "value", 60.0, {})


class Edge:
    """One that stays."""

    calls_broken = calls_open = 0
    has_left = is_parked = False

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.answers = asyncio.Event()
        self.fails = False

    async def call(self, told: Any, *, alone: bool) -> str:
        self.calls_open += 1
        try:
            await self.answers.wait()
        finally:
            self.calls_open -= 1
        if self.fails:
            raise ValueError("no")
        return "an answer"

    async def wait_closed(self) -> None:
        await self.is_over.wait()

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def edges(monkeypatch: pytest.MonkeyPatch) -> dict[str, Edge]:
    """Return the edges that are open, by their replicas."""
    for name in ("count", "set_gauge"):
        monkeypatch.setattr(metrics, name, lambda *_, **__: None)
    monkeypatch.setattr(choice, "MEET_S", 0.01)
    monkeypatch.setattr(outlet, "_AGAIN_S", 0.01)
    opened: dict[str, Edge] = {}

    async def open_edge(door: Any, name: str, *_: Any) -> Any:
        edge = opened[name.partition(">")[2]] = Edge()
        return edge

    monkeypatch.setattr(outlet, "open_edge", open_edge)
    return opened


async def sender(*replicas: str) -> Outlet:
    """Return an outlet that Serve has told of these replicas, once it has their edges."""
    app, deployment = STAGE
    handle = SimpleNamespace(app_name=app, deployment_name=deployment, is_initialized=True)
    made = Outlet(handle, "an answer")
    await tell(made, *replicas)
    return made


async def tell(of: Outlet, *replicas: str) -> None:
    discovery.publish(STAGE, {each: {} for each in replicas})
    await until(lambda: of.replicas == sorted(replicas))


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not become so")


def test_a_sender_that_never_knew_the_first_replica_takes_no_other(edges: dict[str, Edge]) -> None:
    """Case review_15: the other half may have gone to the first, which drains."""

    async def run() -> None:
        old = await sender(*PREFERRED)
        draining = edges["first"]
        await tell(old, "second")
        chosen: Any = await old._choose_preferred(PREFERRED, 0)
        assert chosen is draining
        new = await sender("second")
        with pytest.raises(JoinLostError, match="replica first of stage join had gone before"):
            await new._choose_preferred(PREFERRED, 0)
        draining.is_over.set()
        await until(lambda: not old._draining)
        assert await old._choose_preferred(PREFERRED, 0) is old._edges["second"], (
            "it knows of the end"
        )
        await asyncio.gather(old.close(), new.close())

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_a_replica_that_hangs_looks_busy_when_its_callers_have_given_up(
    edges: dict[str, Edge], fails: bool
) -> None:
    """Review, smaller findings: it had the fewest calls open, so each next query went there."""

    async def run() -> None:
        made: Any = await sender(*PREFERRED)
        hangs, works = edges["first"], edges["second"]
        works.answers.set()
        for given_up in range(1, 4):
            asked = asyncio.create_task(made._call_edge(hangs, QUERY, alone=False))
            await until(lambda: hangs.calls_open == 1)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert hangs.calls_open == 0 and made._abandoned_calls[hangs] == given_up
            assert await made.call(QUERY) == "an answer"
            assert made._choose() is works
        hangs.answers.set()
        hangs.fails = fails  # an error is an answer as well
        asked = asyncio.create_task(made._call_edge(hangs, QUERY, alone=False))
        await asyncio.gather(asked, return_exceptions=True)
        works.calls_open = 1
        assert made._choose() is hangs, "it answers again"
        await made.close()

    asyncio.run(run())
