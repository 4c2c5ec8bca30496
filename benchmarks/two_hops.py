"""How long an object takes over two hops, A -> B -> C, as a multiple of one hop, A -> B.

    sudo .venv/bin/python benchmarks/two_hops.py

B asks for an object of A's, C at most 10 ms later; both links carry it at the same time. The bound
is one hop plus one block: 1 + 1/512. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import bounds
import numpy as np
from cluster import Cluster, why_impossible
from figures import Figure, print_figures
from meters import machine

from hoplite_ray.store import Store, new_id

ASKS_WITHIN_S = 0.010
BLOCKS = 512  # of a large object (native/base/limits.h)


@dataclass(frozen=True, slots=True)
class TwoHops:
    """The figures of one run."""

    size_bytes: int
    rate_mbit: int
    bound_s: float  # of one hop
    one_hops_s: tuple[float, ...]  # of each round
    all_two_hops_s: tuple[float, ...]
    asked_after_s: float  # largest delay between the asking of B and of C

    @property
    def one_hop_s(self) -> float:
        return statistics.median(self.one_hops_s)

    @property
    def two_hops_s(self) -> float:
        return statistics.median(self.all_two_hops_s)

    @property
    def ratio(self) -> float:
        """Two hops as a multiple of one; the bound is 1 + 1/512."""
        return self.two_hops_s / self.one_hop_s


def measure(*, size_bytes: int, rate_mbit: int, repeats: int) -> TwoHops:
    """Take both times in one run, alternating; medians of `repeats`."""
    one_hop, two_hops, delays = [], [], []
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(3, rate_mbit=rate_mbit, arena_bytes=3 * size_bytes))
        a, b, c = (stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes)
        for _ in range(repeats):
            one_hop.append(_one_hop_s(a, b, size_bytes))
            taken_s, delay_s = _two_hops_s(a, b, c, size_bytes)
            two_hops.append(taken_s)
            delays.append(delay_s)
        return TwoHops(
            size_bytes=size_bytes,
            rate_mbit=rate_mbit,
            bound_s=bounds.hop_s(size_bytes, rate_mbit=rate_mbit),
            one_hops_s=tuple(one_hop),
            all_two_hops_s=tuple(two_hops),
            asked_after_s=max(delays),
        )


def figures(result: TwoHops) -> list[Figure]:
    size = f"{result.size_bytes >> 20} MiB"
    bound_s = result.bound_s * (1 + 1 / BLOCKS)
    return [
        Figure(
            case=f"{size} over one hop", unit="s", samples=result.one_hops_s, bound=result.bound_s
        ),
        Figure(
            case=f"{size} over two hops, the second asks within 10 ms",
            unit="s",
            samples=result.all_two_hops_s,
            bound=bound_s,
        ),
    ]


def _one_hop_s(a: Store, b: Store, size_bytes: int) -> float:
    object_id, array = _put(a, size_bytes)
    started_s = time.perf_counter()
    received = b.get(object_id)
    taken_s = time.perf_counter() - started_s
    _check_and_delete(a, object_id, array, [received])
    return taken_s


def _two_hops_s(a: Store, b: Store, c: Store, size_bytes: int) -> tuple[float, float]:
    """Return the time from B's asking until both have it, and how much later C asked."""
    object_id, array = _put(a, size_bytes)
    with ThreadPoolExecutor(2) as threads:
        started_s = time.perf_counter()
        first = b.begin_get(object_id)
        second = c.begin_get(object_id)
        delay_s = time.perf_counter() - started_s
        waits = [threads.submit(pending.result) for pending in (first, second)]
        received = [wait.result().value for wait in waits]
        taken_s = time.perf_counter() - started_s
    _check_and_delete(a, object_id, array, received)
    return taken_s, delay_s


def _put(a: Store, size_bytes: int) -> tuple[bytes, np.ndarray]:
    object_id = new_id()
    array = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    a.put(object_id, array)
    return object_id, array


def _check_and_delete(
    a: Store, object_id: bytes, array: np.ndarray, received: list[np.ndarray]
) -> None:
    for each in received:
        if not np.array_equal(each, array):
            raise AssertionError("the bytes that came are not those that were put")
    received.clear()
    a.delete(object_id)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--rate-mbit", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="a size that proves only that it runs")
    asked = parser.parse_args()
    impossible = why_impossible()
    if impossible:
        print(f"{impossible}; nothing was measured")
        return 0
    where = machine()
    size_mib, repeats = (16, 1) if asked.toy else (asked.size_mib, asked.repeats)
    result = measure(size_bytes=size_mib << 20, rate_mbit=asked.rate_mbit, repeats=repeats)
    print(
        f"{size_mib} MiB at {result.rate_mbit} Mbit/s: one hop {result.one_hop_s:.3f} s "
        f"(bound {result.bound_s:.3f}), two hops {result.two_hops_s:.3f} s: "
        f"{result.ratio:.3f} x one hop (bound {1 + 1 / BLOCKS:.3f})"
    )
    if asked.json:
        print_figures("two_hops", figures(result), where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
