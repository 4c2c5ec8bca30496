"""Where worlds meet under Ray, with a table that is made up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from hoplite_ray.plugin import rendezvous, seams
from hoplite_ray.plugin.rendezvous import RayRendezvous

TABLE: dict[str, bytes] = {}


class Table:
    """As seams.KeyValues."""

    def __init__(self, address: str) -> None:
        self.write, self.read, self.remove = TABLE.__setitem__, TABLE.get, TABLE.pop


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads end before they are waited for, and the table is empty."""
    TABLE.clear()
    begin = rendezvous._begin

    def ended(work: Any) -> Any:
        done = begin(work)
        done.exception(60)
        return done

    monkeypatch.setattr(rendezvous, "_begin", ended)
    monkeypatch.setattr(seams, "KeyValues", Table)


def of(namespace: str, monkeypatch: pytest.MonkeyPatch) -> RayRendezvous:
    context = SimpleNamespace(gcs_address="", namespace=namespace)
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
        assert list(TABLE.values()) == [b"second"]
    second.close()
    assert not TABLE
