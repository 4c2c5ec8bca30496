"""Processes that put into a table, read cuts of it and watch it, and that can be killed."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.node.start import NodePlace

SMALL = 1_000  # float32 elements, which travel in control messages


@ray.remote(num_cpus=0)
class Writer:
    """Puts pairs of equal arrays under "x" and "y" until it is stopped or killed.

    It waits `pause_s` after each pair, because the table keeps all of them for a while.
    """

    def __init__(self, table: hop.Table, elements: int, pause_s: float) -> None:
        self.table = table
        self.elements = elements
        self.pause_s = pause_s
        self.puts = 0
        self.error: BaseException | None = None
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)  # a node may die under it

    def pid(self) -> int:
        return os.getpid()

    def directory(self) -> str:
        """That of the node here."""
        return str(NodePlace.of_this_process().directory)

    def start(self) -> None:
        self.thread.start()

    def count(self) -> int:
        if self.error is not None:
            raise self.error
        return self.puts

    def stop(self) -> int:
        self.is_over.set()
        self.thread.join()
        return self.count()

    def _run(self) -> None:
        try:
            while not self.is_over.wait(self.pause_s):
                value = np.full(self.elements, self.puts + os.getpid(), np.float32)
                self.table.put_all({"x": value, "y": value}, timeout_s=60)
                self.puts += 1
        except BaseException as error:
            self.error = error


@ray.remote(num_cpus=0)
class Reader:
    """Reads both keys of a cut, again and again, and hears of all versions after one."""

    def __init__(self, table: hop.Table) -> None:
        self.table = table
        self.cuts: deque[tuple[float, float]] = deque(maxlen=5)
        self.heard: deque[tuple[str, int]] = deque()
        self.error: BaseException | None = None

    def pid(self) -> int:
        return os.getpid()

    def read_pairs(self, count: int) -> list[tuple[float, float]]:
        """Read `count` cuts; return the (time, value) of the last ones."""
        while count:
            try:
                with self.table.snapshot(timeout_s=60) as cut:
                    x, y = cut.get("x", timeout_s=60), cut.get("y", timeout_s=60)
            except hop.VersionDroppedError:  # this process has stood still for keep_s
                continue
            assert x[0] == y[0] and (x == x[0]).all() and (y == y[0]).all(), (x[0], y[0])
            self.cuts.append((cut.time_s, float(x[0])))
            count -= 1
        return [*self.cuts]

    def read_at(self, time_s: float) -> float | None:
        """Return the value at a time; None if the table keeps it no longer."""
        try:
            return float(self.table.get("x", at=time_s, timeout_s=60)[0])
        except hop.VersionDroppedError:
            return None

    def read(self, key: str, **which: Any) -> Any:
        return self.table.get(key, timeout_s=60, **which)

    async def read_async(self, key: str, **which: Any) -> Any:
        return await self.table.get_async(key, timeout_s=60, **which)

    def watch(self, since: int) -> None:
        """Watch what comes after the version `since`."""
        changes = self.table.watch(since=since)
        threading.Thread(target=self._hear, args=(changes,), daemon=True).start()

    def take_heard(self) -> list[tuple[str, int]]:
        """Return the keys and numbers of what it has heard of, each once."""
        if self.error is not None:
            raise self.error
        return [self.heard.popleft() for _ in range(len(self.heard))]

    def _hear(self, changes: Any) -> None:
        try:
            for change in changes:
                self.heard.append((change.key, change.version.number))
        except BaseException as error:
            self.error = error


@ray.remote(num_cpus=0)
class Handler:
    """Takes what is sent, and says in which process."""

    def handle(self, key: str, value: Any) -> int:
        return os.getpid()

    def fail(self, key: str, value: Any) -> None:
        raise ValueError(f"key {key!r} is wrong")
