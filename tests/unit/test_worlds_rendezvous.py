"""Where worlds meet under Ray, with a table that is made up."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from hoplite_ray.plugin.groups import rendezvous
from hoplite_ray.plugin.groups.rendezvous import RayRendezvous
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table

TABLE: dict[str, bytes] = {}
ALIVE: set[str] = set()


class Table:
    """As table.KeyValues."""

    def __init__(self, address: str) -> None:
        self.write, self.read, self.remove = TABLE.__setitem__, TABLE.get, TABLE.pop

    def keys(self, prefix: str) -> list[str]:
        return [key for key in TABLE if key.startswith(prefix)]


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads end before they are waited for, and the table is empty."""
    TABLE.clear()
    ALIVE.clear()
    begin = rendezvous._submit

    def ended(work: Any) -> Any:
        done = begin(work)
        done.exception(60)
        return done

    monkeypatch.setattr(rendezvous, "_submit", ended)
    monkeypatch.setattr(table, "KeyValues", Table)
    monkeypatch.setattr(seams, "connection", lambda: b"here")
    monkeypatch.setattr(seams, "stay_connected", nullcontext)
    monkeypatch.setattr(seams, "is_worker_alive", lambda worker, node: worker in ALIVE)


def of(namespace: str, monkeypatch: pytest.MonkeyPatch, worker: str = "worker") -> RayRendezvous:
    ALIVE.add(worker)
    context = SimpleNamespace(gcs_address="", namespace=namespace, get_node_id=lambda: "node")
    monkeypatch.setattr(seams, "this_worker", lambda: worker)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return RayRendezvous()


def test_worlds_of_two_namespaces_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case review_08."""
    one, same, other = (of(each, monkeypatch) for each in ("a/b", "a/b", "a"))

    async def meet() -> list[bytes | None]:
        await one.set("b/world", b"one")
        await other.set("world", b"other")
        return [await each.get("b/world") for each in (one, same, other)]

    assert asyncio.run(meet()) == [b"one", b"one", None]


def test_a_rank_0_that_leaves_removes_its_own_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case review_08."""
    first, second, reader = (of("", monkeypatch) for _ in range(3))
    asyncio.run(first.set("world", b"first"))
    asyncio.run(second.set("world", b"second"))
    for each in (first, reader):
        each.close()
        assert asyncio.run(reader.get("world")) == b"second"
    second.close()
    assert not TABLE


def test_a_dead_rank_0s_record_goes_when_any_other_world_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case review_08."""
    dead = of("a", monkeypatch, "dead")
    other = of("b", monkeypatch, "other")
    asyncio.run(dead.set("world", b"dead"))
    asyncio.run(other.set("first", b"alive"))
    assert len(TABLE) == 2
    ALIVE.remove("dead")
    asyncio.run(other.set("second", b"alive"))
    assert sorted(TABLE) == ["world/b/first", "world/b/second"]


def test_records_of_the_dead_stay_few_among_any_number_of_worlds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    living = of("a", monkeypatch)
    for number in range(300):
        name = f"dead-{number}"
        asyncio.run(of("a", monkeypatch, name).set(name, b"dead"))
        ALIVE.remove(name)
        asyncio.run(living.set("world", b"alive"))
    assert len(TABLE) <= 1 + rendezvous._LOOKS


def test_a_record_that_was_taken_for_its_predecessors_is_set_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank_0 = of("a", monkeypatch)
    asyncio.run(rank_0.set("world", b"value"))
    TABLE.clear()
    rank_0._remove_dead()
    assert asyncio.run(rank_0.get("world")) == b"value"
    rank_0.close()
    rank_0._remove_dead()
    assert not TABLE
