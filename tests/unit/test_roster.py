"""Where collective groups meet under Ray, with a table that is made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray

from hoplite_ray.plugin.groups.roster import CollectiveMeeting
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table

TABLE: dict[str, bytes] = {}
ALIVE: set[str] = set()


class Table:
    """As table.KeyValues."""

    def __init__(self, address: str) -> None:
        self.write, self.read = TABLE.__setitem__, TABLE.get

    def keys(self, prefix: str) -> list[str]:
        return [key for key in TABLE if key.startswith(prefix)]

    def remove(self, key: str) -> None:
        TABLE.pop(key, None)


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    TABLE.clear()
    ALIVE.clear()
    monkeypatch.setattr(table, "KeyValues", Table)
    monkeypatch.setattr(seams, "is_worker_alive", lambda worker, node: worker in ALIVE)


def of(
    monkeypatch: pytest.MonkeyPatch, name: str, rank: int, size: int, worker: str
) -> CollectiveMeeting:
    ALIVE.add(worker)
    context = SimpleNamespace(gcs_address="", namespace="n", get_node_id=lambda: "node")
    monkeypatch.setattr(seams, "this_worker", lambda: worker)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return CollectiveMeeting(name, rank, size)


def test_what_the_dead_left_goes_when_any_other_group_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case t11."""
    first, second = (of(monkeypatch, "lonely", rank, 2, f"worker-{rank}") for rank in (0, 1))
    for each in (first, second):
        each._write_entry(seen="")
    first._write_list()
    left = {f"collective/n/lonely/{key}" for key in ("0", "1", "list")}
    other = of(monkeypatch, "other", 0, 1, "other")
    other.meet(60)
    assert {*TABLE} == left | {"collective/n/other/list"}, "of the living all stays"
    other.remove_list()
    ALIVE.clear()
    last = of(monkeypatch, "last", 0, 1, "last")
    last.meet(60)
    last.remove_list()
    assert not TABLE


def test_an_entry_that_was_taken_for_its_predecessors_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = of(monkeypatch, "group", 1, 2, "worker")
    member._write_entry(seen="")
    written = dict(TABLE)
    TABLE.clear()
    member._read_list()
    assert written and written == TABLE
