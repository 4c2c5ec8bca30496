"""What seeing inside costs: throughput with moments and metrics, as a share of that without.

    python benchmarks/overhead.py

Two pairs of nodes of this machine, each pair joined over loopback, and one process attached to all.
The nodes of one pair remember the moments of objects, as they do by default, and are asked for
their counters while they work, every --ask-s, as a steward asks every 5 s; those of the other pair
do neither. Pairs take turns, a batch each, and who begins changes; a ratio is that of two batches
in a row. The interval is that of the ratios' median, by order, at 95 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event

import numpy as np
from meters import machine
from small import AT_ONCE, MIB, groups

from hoplite_ray.control.client import ControlClient
from hoplite_ray.launch import NodeProcess
from hoplite_ray.pending import results
from hoplite_ray.store import Store, new_id

SMALL_BYTES = 1024
RATIO_MIN = 0.99


@dataclass(slots=True)
class Pair:
    """Two nodes, and the stores that are attached to them."""

    near: Store
    far: Store
    is_watched: Event  # set while somebody asks the nodes for their counters
    known: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Kind:
    """One line of the table."""

    name: str
    unit: str
    batch: Callable[[Pair], float]  # what was done, in units
    with_all: list[float] = field(default_factory=list)  # units per second
    without: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.with_all, self.without, strict=True)]

    @property
    def line(self) -> str:
        low, high = interval(self.ratios)
        ratio = statistics.median(self.ratios)
        verdict = "ok" if ratio >= RATIO_MIN else "UNDER" if high < RATIO_MIN else "not shown"
        return (
            f"{self.name:28} {statistics.median(self.with_all):10,.0f} "
            f"{statistics.median(self.without):10,.0f} {self.unit:5} "
            f"{ratio:8.4f} ({low:.4f} to {high:.4f}) {verdict}"
        )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """What holds the median with 95 %, whatever the values are spread like."""
    ordered, n = sorted(values), len(values)
    below, outside = 0.0, 0
    for k in range(n // 2):
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        outside = k
    return ordered[outside], ordered[n - 1 - outside]


def kinds(objects: int, transfers: int, transfer_bytes: int) -> list[Kind]:
    """What is measured, in batches of so many."""
    small = np.arange(SMALL_BYTES, dtype=np.uint8)
    large = np.zeros(transfer_bytes, np.uint8)

    def put(pair: Pair) -> float:
        for group in groups([new_id() for _ in range(objects)]):
            results([pair.near.begin_put(each, small) for each in group])
            for each in group:
                pair.known.append(each)
        return objects

    def get(pair: Pair) -> float:
        for each in pair.known[-objects:]:
            pair.near.get(each)
        return objects

    def transfer(pair: Pair) -> float:
        for _ in range(transfers):
            object_id = new_id()
            pair.near.put(object_id, large)
            pair.far.get(object_id)
            pair.near.delete(object_id)
        return transfers * transfer_bytes / MIB

    return [
        Kind("puts of 1 KiB, 64 at once", "1/s", put),
        Kind("local gets, one at a time", "1/s", get),
        Kind(f"{transfer_bytes >> 20} MiB, put to remote get", "MiB/s", transfer),
    ]


def play(kind: Kind, pair: Pair, is_with: bool) -> None:
    if is_with:
        pair.is_watched.set()
    started = time.perf_counter()
    rate = kind.batch(pair) / (time.perf_counter() - started)
    pair.is_watched.clear()
    (kind.with_all if is_with else kind.without).append(rate)
    for each in pair.known[:-4096]:  # so that no arena fills
        pair.near.delete(each)
    del pair.known[:-4096]


@contextmanager
def made(moments_max: int | None, ask_s: float) -> Iterator[Pair]:
    """A pair of nodes that remember so much; None: as nodes do by default."""
    context = multiprocessing.get_context("spawn")
    options = {} if moments_max is None else {"moments_max": moments_max}
    with ExitStack() as stack:
        nodes: list[NodeProcess] = []
        for _ in range(2):
            beside = nodes[0] if nodes else None
            nodes.append(NodeProcess.start(beside=beside, arena_bytes=256 * MIB, options=options))
            stack.callback(nodes[-1].stop)
        stores = [stack.enter_context(Store.attach(node.socket)) for node in nodes]
        is_watched, is_over = context.Event(), context.Event()
        secret = (nodes[0].directory / "secret").read_bytes().strip()
        controls = [node.control for node in nodes]
        watcher = context.Process(target=watch, args=(controls, secret, ask_s, is_watched, is_over))
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(is_over.set)
        yield Pair(*stores, is_watched)


def watch(
    controls: list[str], secret: bytes, ask_s: float, is_watched: Event, is_over: Event
) -> None:
    """Ask the nodes for their counters, again and again while that is wanted."""

    async def ask() -> None:
        calls = ControlClient(secret)
        while not is_over.is_set():
            if is_watched.is_set():
                await asyncio.gather(*map(calls.stats, controls))
                await asyncio.to_thread(is_over.wait, ask_s)
            await asyncio.sleep(0.01)
        await calls.close()

    asyncio.run(ask())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=4096, help="small ones, of a batch")
    parser.add_argument("--transfers", type=int, default=8, help="of a batch")
    parser.add_argument("--transfer-bytes", type=int, default=32 * MIB)
    parser.add_argument("--rounds", type=int, default=30, help="batches of each kind and pair")
    parser.add_argument("--ask-s", type=float, default=5.0, help="between two looks at counters")
    parser.add_argument("--json", action="store_true", help="add a line with every rate")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    options = parser.parse_args()
    if options.toy:
        options.objects, options.transfers, options.transfer_bytes = 2 * AT_ONCE, 1, MIB
        options.rounds = 2
    where = machine()
    table = kinds(options.objects, options.transfers, options.transfer_bytes)
    with made(None, options.ask_s) as seen, made(0, options.ask_s) as unseen:
        for turn in range(options.rounds + 1):
            for kind in table:
                order = [(seen, True), (unseen, False)]
                for pair, is_with in order if turn % 2 else reversed(order):
                    play(kind, pair, is_with)
                if turn == 0:  # warms up
                    kind.with_all.clear()
                    kind.without.clear()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    print(f"{'':28} {'with':>10} {'without':>10} {'':5} {'ratio':>8} (95 %), at least {RATIO_MIN}")
    for kind in table:
        print(kind.line)
    if options.toy:
        print("toy sizes in two rounds: nothing but that it runs")
    if options.json:
        rates = {kind.name: {"with": kind.with_all, "without": kind.without} for kind in table}
        print(json.dumps(rates | where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
