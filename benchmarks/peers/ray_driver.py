"""The processes under Ray: a driver on node 0 and an actor on each node.

The same scenes three ways: with Ray's own store, where one task gets everything and adds it up;
with a binary tree of such tasks, as people write it; and with hoplite_ray.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ranks import OBJECTS, check, serve, sleep_until, values

import hoplite_ray as hop

RAY, TREE, HOPLITE = "ray", "ray tree", "hoplite"


def play(address: str, nodes: str, arena_bytes: str, link_mbit: str) -> None:
    """Be the driver of a cluster whose nodes have the resources n0, n1, ..."""
    flag = {"arena_bytes": int(arena_bytes), "link_mbit": int(link_mbit)}
    ray.init(address, runtime_env={"hoplite": flag}, log_to_driver=False)
    serve(_Driver(int(nodes)))


@ray.remote(num_cpus=0, max_concurrency=4)
class _Worker:
    """The actor of one node. A method with `at_s` begins then, and returns when it ended."""

    def __init__(self) -> None:
        self._received: Any = None

    def source(self, store: str, size_bytes: int, addend: int, at_s: float) -> Any:
        """Return the node's object, then; what is below 100 KB Ray moves to the caller at once."""
        own = values(size_bytes, addend)
        sleep_until(at_s)
        return hop.array(own) if store == HOPLITE else own

    def get(self, store: str, refs: Sequence[Any], at_s: float) -> float:
        sleep_until(at_s)
        self._received = _get(store, refs[0])
        return time.monotonic()

    def put(self, store: str, size_bytes: int, addend: int, count: int = 1) -> list[Any]:
        """Put the node's object, or many, where they stay: on the node."""
        put = hop.put if store == HOPLITE else ray.put
        return [put(values(size_bytes, addend)) for _ in range(count)]

    def gather(self, store: str, refs: Sequence[Any], at_s: float) -> float:
        sleep_until(at_s)
        self._received = hop.get(refs) if store == HOPLITE else ray.get(refs)
        return time.monotonic()

    def reduce(self, store: str, refs: Sequence[Any], at_s: float) -> float:
        sleep_until(at_s)
        self._received = hop.get(hop.reduce(refs)) if store == HOPLITE else _sum(ray.get(refs))
        return time.monotonic()

    def total(self, refs: Sequence[Any]) -> Any:
        """The sum of all, as an object."""
        return _sum(ray.get(refs))

    def pair(self, one: Any, other: Any) -> Any:
        """An inner node of the tree."""
        return one + other

    def root(self, one: Any, other: Any) -> float:
        """Its root, where the sum stays."""
        self._received = one + other
        return time.monotonic()

    def round_trip(self, store: str, other: Any, size_bytes: int, at_s: float) -> float:
        own = values(size_bytes, 0)
        sleep_until(at_s)
        there = hop.put(own) if store == HOPLITE else ray.put(own)
        self._received = _get(store, other.echo.remote(store, there))
        return time.monotonic()

    def echo(self, store: str, value: Any) -> Any:
        """Send back what came, as an object of this node."""
        return hop.array(np.asarray(value)) if store == HOPLITE else value

    def check(self, count: int, addends: Sequence[int]) -> None:
        """Check the received values, and free them."""
        received, self._received = self._received, None
        each_received = received if isinstance(received, list) else [received]
        for each, addend in zip(each_received, addends, strict=True):
            check(np.asarray(each), count=count, addend=addend)


class _Driver:
    """The driver's commands; `store` is one of the three ways."""

    def __init__(self, nodes: int) -> None:
        self._workers = [
            _Worker.options(resources={f"n{rank}": 0.001}).remote() for rank in range(nodes)
        ]
        ray.get([worker.__ray_ready__.remote() for worker in self._workers])
        self._sources: list[Any] = []

    def ready(self) -> None:
        """Answer, once everything runs; the node of hoplite_ray comes with its first use."""
        for worker in self._workers:
            ray.get(worker.source.remote(HOPLITE, 4, 0, 0.0))

    def prepare(self, *, store: str, collective: str, size_bytes: int, late: Sequence[int]) -> None:
        """Make the sources of all ranks that are not late."""
        if collective == "objects":
            put = [worker.put.remote(store, size_bytes, 0, OBJECTS) for worker in self._workers]
            self._sources = ray.get(put)
            return
        if collective == "round_trip":
            makers = []
        elif collective == "broadcast":
            makers = [0]
        else:
            makers = list(range(len(self._workers)))
        put = {
            rank: self._workers[rank].put.remote(store, size_bytes, rank)
            for rank in makers
            if rank not in late
        }
        there = dict(zip(put, ray.get(list(put.values())), strict=True))
        self._sources = [there[rank][0] if rank in there else None for rank in makers]

    def play(
        self,
        *,
        store: str,
        collective: str,
        size_bytes: int,
        at_s: float,
        arrivals_s: Sequence[float],
    ) -> dict[int, float]:
        """Begin then; returns when each receiver had ended."""
        workers = self._workers
        comes_s = [at_s + after_s for after_s in arrivals_s]
        refs = [
            self._source(store, size_bytes, rank, comes_s[rank]) if source is None else source
            for rank, source in enumerate(self._sources)
        ]
        everybody = range(len(workers))
        match collective:
            case "round_trip":
                trip = workers[0].round_trip.remote(store, workers[1], size_bytes, at_s)
                ends = {0: trip}
            case "broadcast":
                others = everybody[1:]
                ends = {
                    rank: workers[rank].get.remote(store, refs, comes_s[rank]) for rank in others
                }
            case "objects":
                of_next = [*refs[1:], refs[0]]
                ends = {
                    rank: workers[rank].gather.remote(store, of_next[rank], at_s)
                    for rank in everybody
                }
            case "gather" | "allgather":
                ranks = everybody if collective == "allgather" else everybody[:1]
                ends = {rank: workers[rank].gather.remote(store, refs, at_s) for rank in ranks}
            case "reduce" if store == TREE:
                sleep_until(at_s)
                ends = {0: workers[0].root.remote(*self._halves(refs))}
            case "reduce":
                ends = {0: workers[0].reduce.remote(store, refs, at_s)}
            case "allreduce":
                sleep_until(at_s)
                total = [self._total(store, refs)]
                ends = {rank: workers[rank].get.remote(store, total, 0.0) for rank in everybody}
            case _:
                raise ValueError(f"no such collective: {collective}")
        ended = dict(zip(ends, ray.get(list(ends.values())), strict=True))
        self._sources = []
        return ended

    def check(self, *, ranks: Sequence[int], count: int, addends: Sequence[int]) -> None:
        """Prove that what these received is, object by object, the sum of `count` objects."""
        ray.get([self._workers[rank].check.remote(count, addends) for rank in ranks])

    def _source(self, store: str, size_bytes: int, rank: int, at_s: float) -> Any:
        return self._workers[rank].source.remote(store, size_bytes, rank, at_s)

    def _total(self, store: str, refs: list[Any]) -> Any:
        if store == HOPLITE:
            return hop.all_reduce(refs)
        if store == RAY:
            return self._workers[0].total.remote(refs)
        return self._workers[0].pair.remote(*self._halves(refs))

    def _halves(self, refs: list[Any]) -> list[Any]:
        """The two operands of a tree's root: rank i adds those of i and of i + 1, 2, 4, ..."""
        step = 1
        while len(refs) > 2:
            refs = [
                self._workers[index * step].pair.remote(*refs[index : index + 2])
                if index + 1 < len(refs)
                else refs[index]
                for index in range(0, len(refs), 2)
            ]
            step *= 2
        return refs


def _get(store: str, ref: Any) -> Any:
    return hop.get(ref) if store == HOPLITE else ray.get(ref)


def _sum(arrays: Sequence[Any]) -> Any:
    total = arrays[0].copy()
    for each in arrays[1:]:
        total += each
    return total
