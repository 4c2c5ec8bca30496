"""Verbs for nodes that join and leave: work that goes on meanwhile, and how a node is drained."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.node.start import NodePlace
from tests.ray.raycluster import LARGE

_PAUSE_S = 0.1  # between rounds that no test waits for


@ray.remote(num_cpus=0)
class Never:
    async def ends(self) -> None:
        await asyncio.Event().wait()


@ray.remote(num_cpus=0)
class Worker:
    """A process on some node, which owns nothing but what it was last asked for."""

    def array(self, value: float) -> hop.Array:
        return hop.array(np.full(LARGE, value, np.float32))

    def put(self, value: float) -> None:
        self.ref = hop.put(np.full(LARGE, value, np.float32))

    def forget(self) -> None:
        del self.ref

    def sum(self, array: hop.Array) -> float:
        return float(np.asarray(array).sum())

    def reduced(self) -> list[ray.ObjectRef[Any]]:
        total = hop.reduce([hop.put(np.ones(LARGE, np.float32)) for _ in range(2)])
        hop.wait([total])
        return [total]

    def reduces_never(self) -> None:
        """Begin a reduce whose source does not come."""
        self.never = Never.remote()
        self.total = hop.reduce([self.never.ends.remote()])

    def where(self) -> tuple[str, str]:
        place = NodePlace.of_this_process()
        return place.ray_node_id, str(place.directory)


class Rounds:
    """Broadcasts and allreduces among workers, one after the other, on a thread of its own."""

    def __init__(self, workers: list[Any]) -> None:
        self.count = 0
        self._workers = workers
        self._changing = threading.Condition()
        self._awaited = 0  # how many wait for more
        self._is_over = False
        self._error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            thread.join()
        if self._error is not None:
            raise self._error

    def take_part(self, worker: Any) -> None:
        """Return when there was a round with it."""
        with self._changing:
            self._workers = [*self._workers, worker]
        self.more()

    def leave(self, worker: Any) -> None:
        with self._changing:
            self._workers = [each for each in self._workers if each is not worker]
        self.more()  # the last one with it has ended

    def more(self) -> None:
        """Return when two more have ended, so that one of them began after this call."""
        with self._changing:
            until = self.count + 2
            self._awaited += 1
            self._changing.notify_all()
            self._changing.wait_for(lambda: self.count >= until or self._error is not None)
            self._awaited -= 1
            if self._error is not None:
                raise self._error  # else what follows would fail for a reason that it can't tell

    def _run(self) -> None:
        try:
            while not self._is_over:
                with self._changing:
                    workers = self._workers
                self._round(workers)
                with self._changing:
                    self.count += 1
                    self._changing.notify_all()
                    if not self._awaited:  # of two cores, which nodes need that start meanwhile
                        self._changing.wait(_PAUSE_S)
        except BaseException as error:
            with self._changing:
                self._error = error
                self._changing.notify_all()

    def _round(self, workers: list[Any]) -> None:
        refs = [worker.array.remote(float(index)) for index, worker in enumerate(workers)]
        total = hop.reduce(refs)
        sums = ray.get([worker.sum.remote(total) for worker in workers])
        assert sums == [LARGE * sum(range(len(workers)))] * len(workers)


def living() -> set[str]:
    return {each["NodeID"] for each in ray.nodes() if each["Alive"]}


def stats_at(directory: str) -> NodeStats:
    control = json.loads(Path(directory, "node.json").read_text())["control"]
    return NodeStats.read(control, Path(directory, "secret").read_bytes().strip())


def drain(address: str, ray_node_id: str, reason: str, deadline_s: int = 60) -> None:
    command = [f"{sys.prefix}/bin/ray", "drain-node", "--address", address]
    command += ["--node-id", ray_node_id]
    command += ["--reason", f"DRAIN_NODE_REASON_{reason}", "--reason-message", "tested"]
    command += ["--deadline-remaining-seconds", str(deadline_s)]
    subprocess.run(command, check=True, capture_output=True)
