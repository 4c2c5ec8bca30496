"""Writers that a table forgets, with threads: others delete, and a slow put is repeated."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hoplite_ray.errors import HopliteError
from hoplite_ray.plugin.tables.follower import Follower
from hoplite_ray.plugin.tables.followers import OpenTable
from hoplite_ray.plugin.tables.operations import Operations
from hoplite_ray.plugin.tables.steps import run
from hoplite_ray.tables.log import Garbage, Options
from tests.unit.test_tables_follower import SOON_S, Cluster, cluster, put

__all__ = ["cluster"]  # the fixture

OPTIONS = Options(keep=1, keep_us=0, writer_us=20_000)


def knows(follower: Follower, writer: str) -> bool:
    follower.read().result(SOON_S)
    return follower.look_up(lambda state: state.last_sequence(writer)) is not None


def test_a_process_that_only_waits_deletes_what_a_dead_one_has_stored(cluster: Cluster) -> None:
    dead, idle = cluster.follower(OPTIONS), cluster.follower(OPTIONS)
    put(dead, "a")
    given = dead.numbers(1).result(SOON_S)
    idle.read().result(SOON_S)
    dead.close(HopliteError("the process has died"))
    dead._thread.join(SOON_S)
    deadline_s = time.monotonic() + SOON_S
    while not cluster.deleted and time.monotonic() < deadline_s:
        time.sleep(0.01)
    (garbage,) = cluster.deleted
    assert garbage.writer == given.writer and given.numbers[0] in garbage.numbers


class Contents:
    """Values whose first storing takes so long that the table forgets the writer."""

    def __init__(self, other: Follower) -> None:
        self.other = other
        self.stored: list[str] = []
        self.deleted: list[tuple[str, tuple[int, ...]]] = []

    def store(self, writer: str, numbers: Any, *rest: Any) -> tuple[int, ...]:
        self.stored.append(writer)
        while len(self.stored) == 1 and knows(self.other, writer):
            time.sleep(0.01)
        return (1,)

    def delete(self, garbage: Garbage) -> None:
        self.deleted.append((garbage.writer, garbage.numbers))


class Ops(Operations):
    """The operations of one follower's table."""

    def __init__(self, follower: Follower, contents: Any) -> None:
        self.here = OpenTable(OPTIONS, follower, contents)
        super().__init__("t", OPTIONS, 1)

    def open(self) -> OpenTable:
        return self.here


def test_a_put_whose_writer_is_forgotten_is_repeated_as_another_writer(cluster: Cluster) -> None:
    slow = cluster.follower(OPTIONS)
    contents = Contents(cluster.follower(OPTIONS))
    ops = Ops(slow, contents)
    steps = ops.put_all({"a": np.zeros(2)})
    version = run(steps, contents, "put of table 't'", SOON_S)["a"]  # type: ignore[arg-type]
    first, second = contents.stored
    assert first != second == version.writer
    slow.janitor.begin_end()
    slow.janitor.join(SOON_S)
    assert contents.deleted == [(first, (1,))]
