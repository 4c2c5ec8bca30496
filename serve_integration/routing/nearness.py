"""Nearness: the replica of a query by the bytes of its Arrays that each node has. Pure.

An Array is on the node where it was made, which its handle says. It is also on every node where a
replica has read it. A sender remembers the nodes to which it has sent an Array, and takes them for
nodes that have it. So a choice asks no other process.

    a replica that is not full beats a full one
    among replicas that are not full, the most bytes win, then the fewest calls
    among full replicas, the fewest calls win

A sender may be wrong about a copy: its node may have evicted it, or the query was cancelled. Then
the replica fetches the bytes, as every other replica would. Design decision 37.

Source: Ray's leases, which go to the node with the most bytes of a task's arguments; Vortex 4.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from hoplite_ray.serve.routing.affinity import Calls, Probes, find_full

ARRAYS_MAX = 4096  # that a sender remembers, in 2 MiB; the least recent one goes


class Part(NamedTuple):
    """An Array of a query.

    object_id:   of the Array.
    size_bytes:  of its value.
    origin:      the Ray node where it was made; None if that is not known.
    """

    object_id: bytes
    size_bytes: int
    origin: str | None


Arrays = tuple[Part, ...]  # of one query, each Array once


def rank_near(
    held: Mapping[str, int],
    calls: Mapping[str, Calls],
    full: Collection[str],
    draw: Callable[[], float],
) -> tuple[str, ...]:
    """Return the replicas, the best one first.

    held:   bytes of the query's Arrays that the replica's node has.
    calls:  to each replica that can be called.
    full:   the replicas that are full.
    draw:   decides among equals.

    Cost:   O(replicas log replicas).
    """

    def judge(replica: str) -> tuple[bool, int, int, float]:
        is_full = replica in full
        return is_full, 0 if is_full else -held[replica], sum(calls[replica]), draw()

    return tuple(sorted(calls, key=judge))


class Nearness:
    """The choices of one sender among the replicas of one stage."""

    def __init__(
        self,
        *,
        max_batch: int,
        nodes: Mapping[str, str],
        draw: Callable[[], float],
        arrays_max: int = ARRAYS_MAX,
    ) -> None:
        """Begin without copies.

        max_batch:   of the stage. A replica is full as it is for `Affinity`.
        nodes:       the Ray node of each replica, now and later. A replica that is not there is on
                     no known node.
        draw:        returns a number from 0 to 1, by chance.
        arrays_max:  of Arrays that are remembered.
        """
        self._full_calls = 2 * max_batch
        self._nodes = nodes
        self._draw = draw
        self._arrays_max = arrays_max
        self._copies: dict[bytes, frozenset[str]] = {}  # nodes by Array, the least recent one first
        self._probes = Probes()

    def __len__(self) -> int:
        """Return how many Arrays are remembered."""
        return len(self._copies)

    def choose(self, arrays: Arrays, calls: Mapping[str, Calls]) -> str:
        """Return the replica for a query with these Arrays, and remember the copies it makes.

        calls:  to each replica that can be called; at least one.

        Cost:   O(Arrays + replicas log replicas).
        """
        return self.rank(arrays, calls)[0]

    def rank(self, arrays: Arrays, calls: Mapping[str, Calls]) -> tuple[str, ...]:
        """Return all replicas: first that of `choose`, then the others, best first."""
        by_node = self._weigh_nodes(arrays)
        held = {each: by_node[self._nodes.get(each, "")] for each in calls}
        full = find_full(calls, self._full_calls)
        ranked = rank_near(held, calls, full, self._draw)
        most = max(held.values())
        self._probes.keep_only(full)
        for each in full:
            if held[each] == most and self._probes.is_due(each, calls[each]):
                ranked = (each, *(other for other in ranked if other != each))
                break
        self._remember(arrays, self._nodes.get(ranked[0], ""))
        return ranked

    def _weigh_nodes(self, arrays: Arrays) -> Counter[str]:
        """Return the bytes of these Arrays by the node that has them."""
        found: Counter[str] = Counter()
        for each in arrays:
            for node in self._copies.get(each.object_id, frozenset()) | {each.origin}:
                if node:
                    found[node] += each.size_bytes
        return found

    def _remember(self, arrays: Arrays, node: str) -> None:
        """Take note that a node will have these Arrays."""
        for each in arrays:
            nodes = self._copies.pop(each.object_id, frozenset())
            if node and node != each.origin:
                nodes |= {node}
            if nodes:
                self._copies[each.object_id] = nodes
        while len(self._copies) > self._arrays_max:
            del self._copies[next(iter(self._copies))]
