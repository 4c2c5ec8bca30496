"""How long a get of 1 KiB takes while its node is busy with large transfers, beside doing nothing.

    sudo .venv/bin/python benchmarks/fairness.py

Three scenes. In the first, three nodes of this machine reduce two sources of 1 GiB: one lies on the
node that the small gets are asked at, which folds all of it. In the second, eight nodes send to
that node at once over loopback, so that the cores are what limits them. In the third, each sends as
fast as its link carries; together the links carry four fifths of the receiver's, so that packets
wait in no queue of the network; it needs root, for network namespaces, and is left out without.
Small objects lie on yet another node, and each is got once. The limit is a design goal for a
machine of two cores that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from cluster import Cluster, why_impossible
from figures import Figure, print_figures
from meters import machine

from hoplite_ray.pending import results
from hoplite_ray.store import Store, new_id

MIB = 1 << 20
SMALL_BYTES = 1024
AT_ONCE = 64
PAUSE_S = 0.001  # between two small gets
P99_MS_MAX = 5.0
LIMIT_S = 120.0
SENDERS = 8
RECEIVER_MBIT = 1000
SENDER_MBIT = 100


def small_objects(store: Store, count: int) -> Iterator[bytes]:
    """Put as many small objects; each is to be got once."""
    array = np.zeros(SMALL_BYTES, np.uint8)
    ids = [new_id() for _ in range(count)]
    for at in range(0, count, AT_ONCE):
        results([store.begin_put(each, array) for each in ids[at : at + AT_ONCE]])
    return iter(ids)


def small_gets_s(store: Store, ids: Iterator[bytes], until: Callable[[], bool]) -> list[float]:
    """Get one after the other; returns how long each took."""
    took_s = []
    while not until():
        started_s = time.perf_counter()
        store.get(next(ids), timeout_s=LIMIT_S)
        took_s.append(time.perf_counter() - started_s)
        time.sleep(PAUSE_S)
    return took_s


def alone_s(store: Store, ids: Iterator[bytes], count: int = 500) -> list[float]:
    left = iter(range(count))
    return small_gets_s(store, ids, lambda: next(left, None) is None)


def beside_s(
    store: Store, ids: Iterator[bytes], work: Callable[[], Any]
) -> tuple[Any, list[float]]:
    """Get small objects for as long as the work goes on in another thread."""
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        took_s = small_gets_s(store, ids, working.done)
        return working.result(), took_s


def reduces(size_bytes: int, rounds: int) -> tuple[list[float], list[float], float]:
    """Time small gets at a node that folds its own source: alone, beside the fold; and GB/s."""
    with ExitStack() as stack:
        arena_bytes = 3 * size_bytes + 64 * MIB
        here = stack.enter_context(Store.start(arena_bytes=arena_bytes))
        there, third = (
            stack.enter_context(Store.start(join=here, arena_bytes=arena_bytes)) for _ in range(2)
        )
        sources = [new_id(), new_id()]
        for store, source in zip((here, there), sources, strict=True):
            store.put(source, np.ones(size_bytes // 4, np.float32), timeout_s=LIMIT_S)
        ids = small_objects(third, 1_000 + 3_000 * rounds)
        idle_s = alone_s(here, ids)

        def reduce_and_get(target: bytes) -> Any:
            here.reduce(target, sources, timeout_s=LIMIT_S)
            return there.get(target, timeout_s=LIMIT_S)

        busy_s, reducing_s = [], 0.0
        for _ in range(rounds):
            target = new_id()
            started_s = time.perf_counter()
            result, took_s = beside_s(here, ids, partial(reduce_and_get, target))
            reducing_s += time.perf_counter() - started_s
            busy_s += took_s
            assert (result == 2).all()
            del result
            here.delete(target, timeout_s=LIMIT_S)
        return idle_s, busy_s, rounds * size_bytes / reducing_s / 1e9


def stores(stack: ExitStack, arena_bytes: int, *, shaped: bool) -> list[Store]:
    """Attach to the receiver, the small objects' node and the senders, on links or loopback."""
    if shaped:
        rates_mbit = [RECEIVER_MBIT, RECEIVER_MBIT] + [SENDER_MBIT] * SENDERS
        cluster = stack.enter_context(
            Cluster(len(rates_mbit), rate_mbit=rates_mbit, arena_bytes=arena_bytes)
        )
        return [stack.enter_context(Store.attach(node.socket)) for node in cluster.nodes]
    here = stack.enter_context(Store.start(arena_bytes=arena_bytes))
    return [here] + [
        stack.enter_context(Store.start(join=here, arena_bytes=arena_bytes))
        for _ in range(1 + SENDERS)
    ]


def senders(
    size_bytes: int, objects: int, *, shaped: bool
) -> tuple[list[float], list[float], float]:
    """Time small gets at a node with eight senders: alone, beside them; and GB/s sent."""
    arena_bytes = SENDERS * objects * size_bytes * 5 // 4 + 64 * MIB  # an eighth is for reduces
    with ExitStack() as stack:
        here, third, *sending = stores(stack, arena_bytes, shaped=shaped)
        array = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
        large = [(store, new_id()) for _ in range(objects) for store in sending]
        for store, object_id in large:
            store.put(object_id, array, timeout_s=LIMIT_S)
        ids = small_objects(third, 1_000 + 3_000 * objects)
        idle_s = alone_s(here, ids)

        def get_all() -> list[Any]:
            gets = [here.begin_get(object_id) for _, object_id in large]
            return [each.value for each in results(gets, LIMIT_S)]

        started_s = time.perf_counter()
        came, busy_s = beside_s(here, ids, get_all)
        took_s = time.perf_counter() - started_s
        assert all(np.array_equal(each, array) for each in came)
        return idle_s, busy_s, len(large) * size_bytes / took_s / 1e9


def p99(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100]


def report(what: str, idle_s: list[float], busy_s: list[float], gb_per_s: float) -> list[Figure]:
    """Print a scene's line; returns its figures."""
    p99_s, limit_s = p99(busy_s), P99_MS_MAX / 1e3
    print(
        f"1 KiB beside {what} ({gb_per_s:.2f} GB/s): median {statistics.median(busy_s) * 1e3:.2f} "
        f"ms ({statistics.median(idle_s) * 1e3:.2f} alone), p99 {p99_s * 1e3:.2f}, "
        f"longest {max(busy_s) * 1e3:.1f}, n = {len(busy_s)}; p99 at most {P99_MS_MAX:.0f}: "
        + ("ok" if p99_s <= limit_s else "OVER"),
        flush=True,
    )
    get = f"get of 1 KiB beside {what}"
    return [
        Figure(case=f"{get}: the node alone", unit="s", samples=tuple(idle_s)),
        Figure(case=get, unit="s", samples=tuple(busy_s)),
        Figure(case=f"{get}: p99", unit="s", samples=(p99_s,), goal=limit_s),
        Figure(case=what, unit="bytes/s", samples=(gb_per_s * 1e9,), is_more_better=True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="reduces")
    parser.add_argument("--objects", type=int, default=8, help="of 32 MiB, of each sender")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    asked = parser.parse_args()
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    source_bytes, rounds = (8 * MIB, 1) if asked.toy else (1024 * MIB, asked.rounds)
    large_bytes, objects = (2 * MIB, 1) if asked.toy else (32 * MIB, asked.objects)
    reduced = f"reduces of {source_bytes // MIB} MiB with a local source"
    figures = report(reduced, *reduces(source_bytes, rounds))
    loopback = f"{SENDERS} senders over loopback"
    figures += report(loopback, *senders(large_bytes, objects, shaped=False))
    if impossible := why_impossible():
        print(f"{impossible}; the third scene was left out")
    else:
        linked = f"{SENDERS} senders of {SENDER_MBIT} Mbit/s"
        figures += report(linked, *senders(large_bytes, objects, shaped=True))
    if asked.toy:
        print("toy sizes: they prove only that it runs")
    if asked.json:
        print_figures("fairness", figures, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
