"""How long a small get takes beside large broadcasts over the same links, and its cost to them.

    sudo .venv/bin/python benchmarks/many_objects.py

Ten objects of 32 MiB go from one node to two others; meanwhile one of these gets 1 KiB after the
other from the first. A small get waits mostly for the switch's queue, a MiB of other packets, which
no sender can pass. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import bounds
import numpy as np
from cluster import Cluster, why_impossible
from figures import Figure, print_figures
from meters import machine

from hoplite_ray.store import Store, new_id

MIB = 1 << 20
SMALL_BYTES = 1024
LIMIT_S = 60.0
PAUSE_S = 0.02  # between two small gets


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one run."""

    objects: int
    size_bytes: int
    rate_mbit: int
    idle_s: tuple[float, ...]  # of small gets alone
    beside_s: tuple[float, ...]  # of small gets beside the large ones
    bulk_s: float
    bulk_bound_s: float
    load: float

    @property
    def p95_s(self) -> float:
        return sorted(self.beside_s)[len(self.beside_s) * 95 // 100]

    @property
    def large(self) -> str:
        return f"{self.objects} broadcasts of {self.size_bytes // MIB} MiB"

    def figures(self) -> list[Figure]:
        beside = f"get of 1 KiB beside {self.large}"
        return [
            Figure(case="get of 1 KiB alone", unit="s", samples=self.idle_s),
            Figure(case=beside, unit="s", samples=self.beside_s),
            Figure(case=f"{beside}: p95", unit="s", samples=(self.p95_s,)),
            Figure(case=self.large, unit="s", samples=(self.bulk_s,), bound=self.bulk_bound_s),
        ]


def measure(*, objects: int, size_bytes: int, rate_mbit: int) -> Row:
    """Get small objects alone, and then for as long as the large ones are under way."""
    with ExitStack() as stack:
        arena_bytes = 2 * objects * size_bytes
        cluster = stack.enter_context(Cluster(3, rate_mbit=rate_mbit, arena_bytes=arena_bytes))
        a, b, c = (stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes)
        idle = [_small_get_s(a, b) for _ in range(50)]
        array = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
        ids = [new_id() for _ in range(objects)]
        for object_id in ids:
            a.put(object_id, array, timeout_s=LIMIT_S)
        started_s = time.perf_counter()
        gets = [store.begin_get(object_id) for object_id in ids for store in (b, c)]
        bound_s = objects * bounds.hop_s(size_bytes, rate_mbit=rate_mbit)
        beside = [_small_get_s(a, b)]  # one at least, however late we come to it
        while time.perf_counter() < started_s + 0.9 * bound_s:
            beside.append(_small_get_s(a, b))
        came = [get.result(LIMIT_S).value for get in gets]
        bulk_s = time.perf_counter() - started_s
        if not all(np.array_equal(each, array) for each in came):
            raise AssertionError("the bytes that came are not those that were put")
        return Row(
            objects=objects,
            size_bytes=size_bytes,
            rate_mbit=rate_mbit,
            idle_s=tuple(idle),
            beside_s=tuple(beside),
            bulk_s=bulk_s,
            bulk_bound_s=bound_s,
            load=os.getloadavg()[0],
        )


def _small_get_s(a: Store, b: Store) -> float:
    object_id = new_id()
    a.put(object_id, np.zeros(SMALL_BYTES, np.uint8), timeout_s=LIMIT_S)
    started_s = time.perf_counter()
    b.get(object_id, timeout_s=LIMIT_S)
    taken_s = time.perf_counter() - started_s
    a.delete(object_id, timeout_s=LIMIT_S)
    time.sleep(PAUSE_S)
    return taken_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=10)
    parser.add_argument("--size-mib", type=int, default=32)
    parser.add_argument("--rate-mbit", type=int, default=500)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="a size that proves only that it runs")
    asked = parser.parse_args()
    impossible = why_impossible()
    if impossible:
        print(f"{impossible}; nothing was measured")
        return 0
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    size_mib = 4 if asked.toy else asked.size_mib
    row = measure(objects=asked.objects, size_bytes=size_mib * MIB, rate_mbit=asked.rate_mbit)
    print(
        f"1 KiB alone: median {statistics.median(row.idle_s) * 1e3:.1f} ms; beside {row.large}: "
        f"{statistics.median(row.beside_s) * 1e3:.1f} (p95 {row.p95_s * 1e3:.1f}, "
        f"n = {len(row.beside_s)}, load {row.load:.1f})\n"
        f"these took {row.bulk_s:.2f} s, {row.bulk_s / row.bulk_bound_s:.2f} x their bound"
    )
    if asked.json:
        print_figures("many_objects", row.figures(), where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
