"""The cost of observability: throughput with moments and metrics, as a share of that without.

    python benchmarks/overhead.py

Two pairs of nodes of this machine, each pair joined over loopback, and one process attached to all.
The nodes of one pair remember the moments of objects, as they do by default, and are asked for
their counters while they work, every --ask-s, as a steward asks every 5 s; those of the other pair
do neither. Pairs take turns, a batch each, and the first pair alternates; a ratio is that of all
batches in a round. Nodes are restarted now and then, because the placement of a process in memory
changes its speed as much as the effect under test. The interval is the 95 % interval of the ratios'
median, by order.
"""

from __future__ import annotations

import argparse
import asyncio
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
from figures import Figure, print_figures
from meters import machine
from small import AT_ONCE, MIB, groups

from hoplite_ray.control.client import ControlClient
from hoplite_ray.launch import NodeProcess
from hoplite_ray.pending import results
from hoplite_ray.store import Store, new_id

SMALL_BYTES = 1024
RATIO_MIN = 0.99
BATCHES = 8  # of each pair in a round
KNOWN_MAX = 4096


@dataclass(slots=True)
class Pair:
    """Two nodes, and the stores that are attached to them."""

    near: Store
    far: Store
    is_watched: Event  # set while `watch` asks the nodes for their counters
    known: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Kind:
    """One line of the table."""

    name: str
    unit: str
    batch: Callable[[Pair], float]  # plays a batch; returns the work done, in units
    with_all: list[float] = field(default_factory=list)  # units per second
    without: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.with_all, self.without, strict=True)]

    def figures(self) -> list[Figure]:
        ratio = f"{self.name}: with trace and metrics, times without"
        return [
            Figure(
                case=ratio,
                unit="x",
                samples=tuple(self.ratios),
                goal=RATIO_MIN,
                is_more_better=True,
            ),
            Figure(
                case=f"{self.name}: with both",
                unit=self.unit,
                samples=tuple(self.with_all),
                is_more_better=True,
            ),
        ]

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
    """Return the 95 % interval of the median, without an assumption about the distribution."""
    ordered, n = sorted(values), len(values)
    below, outside = 0.0, 0
    for k in range(n // 2):
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        outside = k
    return ordered[outside], ordered[n - 1 - outside]


def kinds(objects: int, transfers: int, transfer_bytes: int) -> list[Kind]:
    """Return the kinds of work to measure, with batches of these sizes."""
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


def play(kind: Kind, seen: Pair, unseen: Pair) -> None:
    """Play one round in short turns, so that other load slows both pairs alike."""
    took_s = {True: 0.0, False: 0.0}
    done = dict(took_s)
    seen.is_watched.set()
    for turn in range(BATCHES):
        for is_with in (True, False) if turn % 2 else (False, True):
            pair = seen if is_with else unseen
            started = time.perf_counter()
            done[is_with] += kind.batch(pair)
            took_s[is_with] += time.perf_counter() - started
    seen.is_watched.clear()
    kind.with_all.append(done[True] / took_s[True])
    kind.without.append(done[False] / took_s[False])
    for pair in (seen, unseen):
        for each in pair.known[:-KNOWN_MAX]:  # so that no arena fills
            pair.near.delete(each)
        del pair.known[:-KNOWN_MAX]


@contextmanager
def made(moments_max: int | None, ask_s: float) -> Iterator[Pair]:
    """Start a pair of nodes with `moments_max`; None means the default."""
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
    """Ask the nodes for their counters every `ask_s` while `is_watched` is set."""

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
    parser.add_argument("--objects", type=int, default=512, help="small ones, of a batch")
    parser.add_argument("--transfers", type=int, default=1, help="of a batch")
    parser.add_argument("--transfer-bytes", type=int, default=32 * MIB)
    parser.add_argument("--starts", type=int, default=8, help="of new nodes")
    parser.add_argument("--rounds", type=int, default=20, help="of each kind and start")
    parser.add_argument("--ask-s", type=float, default=5.0, help="between two looks at counters")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    options = parser.parse_args()
    if options.toy:
        options.objects, options.transfers, options.transfer_bytes = 2 * AT_ONCE, 1, MIB
        options.starts, options.rounds = 1, 2
    where = machine()
    table = kinds(options.objects, options.transfers, options.transfer_bytes)
    for start in range(options.starts):
        with ExitStack() as stack:
            pairs = {}
            for is_with in (True, False) if start % 2 else (False, True):
                moments_max = None if is_with else 0
                pairs[is_with] = stack.enter_context(made(moments_max, options.ask_s))
            for kind in table:  # one after the other: a transfer leaves caches as no get does
                play(kind, pairs[True], pairs[False])  # warms up
                kind.with_all.pop()
                kind.without.pop()
                for _ in range(options.rounds):
                    play(kind, pairs[True], pairs[False])
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    print(f"{'':28} {'with':>10} {'without':>10} {'':5} {'ratio':>8} (95 %), at least {RATIO_MIN}")
    for kind in table:
        print(kind.line)
    if options.toy:
        print("toy sizes in two rounds: they prove only that it runs")
    if options.json:
        print_figures("overhead", [each for kind in table for each in kind.figures()], where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
