"""The janitor of a table: what a process that ends still does, and what it leaves."""

from __future__ import annotations

import threading
from functools import partial

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin.tables.janitor import Janitor, Kind, compact, end_janitors
from hoplite_ray.tables.log import log_key, state_key

SOON_S = 30.0


class Scene:
    """Two janitors with work behind a gate, so that it waits when the process ends."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = threading.Event()
        self.janitors = [Janitor("a"), Janitor("b")]
        begun = threading.Barrier(1 + len(self.janitors))
        for each in self.janitors:
            each.do(partial(self._wait, begun), Kind.UPKEEP)
        begun.wait(SOON_S)

    def _wait(self, begun: threading.Barrier) -> None:
        begun.wait(SOON_S)
        assert self.gate.wait(SOON_S)

    def add(self, janitor: int, name: str, kind: Kind) -> None:
        self.janitors[janitor].do(partial(self.done.append, name), kind)


def test_a_process_that_ends_deletes_what_waits_and_leaves_the_rest() -> None:
    scene = Scene()
    scene.add(0, "delete 1", Kind.DELETION)
    scene.add(0, "store a state", Kind.UPKEEP)
    scene.add(0, "delete 2", Kind.DELETION)
    scene.add(1, "put a copy again", Kind.UPKEEP)
    ender = threading.Thread(target=end_janitors, args=(scene.janitors, SOON_S))
    ender.start()
    while not all(each.is_ending for each in scene.janitors):
        pass
    scene.gate.set()
    ender.join(SOON_S)
    assert scene.done == ["delete 1", "delete 2"]
    for each in scene.janitors:
        assert each._thread is not None and not each._thread.is_alive()


def test_a_process_that_ends_waits_for_no_work_that_hangs() -> None:
    scene = Scene()
    scene.add(0, "delete 1", Kind.DELETION)
    end_janitors(scene.janitors, 0.01)
    assert scene.done == []
    scene.gate.set()


def test_a_failed_deletion_stops_no_later_one() -> None:
    scene = Scene()

    def fail() -> None:
        raise ControlError("no answer")

    scene.janitors[0].do(fail, Kind.DELETION)
    scene.add(0, "delete 2", Kind.DELETION)
    scene.gate.set()
    end_janitors(scene.janitors, SOON_S)
    assert scene.done == ["delete 2"]


def test_a_janitor_that_had_no_work_has_no_thread_to_wait_for() -> None:
    end_janitors([Janitor("a")], SOON_S)


class Values:
    """The key-value store of a table with two states; it counts the removals."""

    def __init__(self) -> None:
        self.values = {state_key("t", slot): b"" for slot in (2, 4)}
        self.values |= {log_key("t", slot): b"" for slot in range(5)}
        self.removals = 0

    def add(self, key: str, value: bytes) -> bool:
        return self.values.setdefault(key, value) is value

    def read(self, key: str) -> bytes | None:
        return self.values.get(key)

    def read_all(self, keys: object) -> list[bytes | None]:
        raise AssertionError("a compaction reads no slot")

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.values if key.startswith(prefix)]

    def remove(self, key: str) -> None:
        self.removals += 1
        del self.values[key]


def test_a_compaction_ends_with_the_process_between_two_calls() -> None:
    values = Values()
    compact("t", values, 8, b"state", lambda: values.removals < 2)
    assert values.removals == 2
    compact("t", values, 8, b"state")
    assert sorted(values.values) == [log_key("t", 4), state_key("t", 4), state_key("t", 8)]
