"""A few real nodes on loopback, with verbs; the fixtures of conftest.py hand them out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hoplite_ray.client import StoreClient
from hoplite_ray.control.client import ControlClient, UnreachableError
from hoplite_ray.control.view import View
from hoplite_ray.launch import NodeProcess
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.store import Store, new_id

T = TypeVar("T")

MIB = 1 << 20

# Longer than anything here takes on a loaded machine; a test that reaches it has failed. Less than
# a test's own limit, so that the test says what it has waited for.
WAIT_S = 80.0


def numbers(size_bytes: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Bytes that are different for every seed."""
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)


class Nodes:
    """Nodes, by rank, with one attached store each."""

    def __init__(self, count: int, **how: Any) -> None:
        self.processes: list[NodeProcess] = []
        self.stores: list[Store] = []
        self._how = {"arena_bytes": 256 * MIB, **how}
        for _ in range(count):
            self.add()

    def __getitem__(self, rank: int) -> Store:
        return self.stores[rank]

    def client(self, rank: int) -> StoreClient:
        """The lower half of a node's store, which the plug-in uses."""
        return self[rank]._client

    def add(self, **how: Any) -> Store:
        """Start one more node, which joins the others, and attach to it."""
        oldest = next((node for node in self.processes if node.process.poll() is None), None)
        node = NodeProcess.start(beside=oldest, **{**self._how, **how})
        self.processes.append(node)
        store = Store.attach(node.socket)
        self.stores.append(store)
        return store

    def key(self, rank: int) -> tuple[int, int]:
        """The node's id and its incarnation."""
        return (self.processes[rank].node_id, self.processes[rank].incarnation)

    def put(self, rank: int, array: npt.NDArray[Any]) -> bytes:
        """Put on one node; returns the new id."""
        object_id = new_id()
        self[rank].put(object_id, array, timeout_s=WAIT_S)
        return object_id

    def get(self, rank: int, object_id: bytes) -> npt.NDArray[Any]:
        """Get on one node."""
        return self[rank].get(object_id, timeout_s=WAIT_S)

    def kill(self, rank: int) -> None:
        """End a node as kill -9 does."""
        self.processes[rank].kill()

    def stats(self, rank: int) -> NodeStats:
        """Counters of one node."""
        return self.wait_for(rank, lambda _: True)

    def wait_for(self, rank: int, condition: Callable[[NodeStats], bool]) -> NodeStats:
        """Ask a node for its counters until `condition` holds; the test's limit ends it else."""
        counters = self.counters(rank, lambda each: condition(NodeStats.from_counters(each)))
        return NodeStats.from_counters(counters)

    def counters(
        self, rank: int, condition: Callable[[dict[str, int]], bool] = lambda _: True
    ) -> dict[str, int]:
        """Like `wait_for`, over all counters that a node publishes."""
        node = self.processes[rank]

        async def poll(calls: ControlClient) -> dict[str, int]:
            while True:
                try:
                    counters = await calls.stats(node.control)
                except UnreachableError:  # on busy cores a connection may take seconds
                    assert node.process.poll() is None
                    continue
                if condition(counters):
                    return counters

        return self.call(rank, poll)

    def converse(self, times: int = 3) -> None:
        """Return when messages that answer one another, so many at most, have all been heard.

        Each node then has something of each other one that was sent after them, so many times.
        """
        ranks = range(len(self.stores))
        for teller, hearer in [pair for pair in product(ranks, ranks) if len({*pair}) > 1] * times:
            self.get(hearer, self.put(teller, np.zeros(1)))

    def view(self, rank: int, *, size: int) -> View:
        """The view of one node, once it has `size` members."""
        return self._view(rank, lambda view: len(view.members) == size)

    def _view(self, rank: int, is_meant: Callable[[View], bool]) -> View:
        async def watch(calls: ControlClient) -> View:
            async for view in calls.watch(self.processes[rank].control, 0):
                if is_meant(view):
                    return view
            raise AssertionError("the view that is waited for did not come")

        return self.call(rank, watch)

    def ranks(self) -> list[int]:
        """The ranks of the living nodes, the oldest first."""
        return [rank for rank, node in enumerate(self.processes) if node.process.poll() is None]

    def meet(self) -> None:
        """Return once the views of all living nodes agree: views may lag behind the newest."""
        ranks = self.ranks()
        living = {self.key(rank) for rank in ranks}
        for rank in ranks:
            self._view(rank, lambda view: {each.key for each in view.members} == living)

    def call(self, rank: int, act: Callable[[ControlClient], Awaitable[T]]) -> T:
        """Make control calls with the secret of a node."""

        async def run() -> T:
            calls = ControlClient(self.processes[rank].secret)
            try:
                return await asyncio.wait_for(act(calls), WAIT_S)
            finally:
                await calls.close()

        return asyncio.run(run())

    def end(self) -> None:
        """End every process."""
        for store in self.stores:
            store.close()
        for node in self.processes:
            node.kill()


MakeNodes = Callable[..., Nodes]
