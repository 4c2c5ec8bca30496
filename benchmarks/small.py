"""How many small objects a second one process moves through its node, and what a node costs idle.

    python benchmarks/small.py

Two nodes of this machine, joined over loopback, and one process that is attached to both. Objects
are arrays of 1 KiB. Kinds take turns, a batch each; a rate is that of the median batch. With
--idle-s the two nodes are then left alone for as long: their share of a core, and the memory that
is theirs alone. Limits are design goals for a machine of two cores that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from figures import Figure, print_figures, value_text
from meters import machine

from hoplite_ray.pending import results
from hoplite_ray.store import Store, new_id

SMALL_BYTES = 1024
AT_ONCE = 64
MIB = 1 << 20
IDLE_CORE_SHARE_MAX = 0.005
IDLE_MIB_MAX = 60.0


@dataclass(slots=True)
class Kind:
    """One line of the table: what is done with a batch of ids, and how often a second it should."""

    name: str
    limit_per_s: float
    ids: Callable[[], Sequence[bytes]]  # of the next batch; not timed
    batch: Callable[[Sequence[bytes]], object]
    rates_per_s: list[float] = field(default_factory=list)

    def play(self) -> None:
        ids = self.ids()
        started = time.perf_counter()
        self.batch(ids)
        self.rates_per_s.append(len(ids) / (time.perf_counter() - started))

    @property
    def figure(self) -> Figure:
        return Figure(
            case=self.name,
            unit="1/s",
            samples=tuple(self.rates_per_s),
            goal=self.limit_per_s,
            is_more_better=True,
        )

    @property
    def line(self) -> str:
        median = statistics.median(self.rates_per_s)
        verdict = "ok" if median >= self.limit_per_s else "UNDER"
        spread = f"({min(self.rates_per_s):,.0f} to {max(self.rates_per_s):,.0f})"
        return f"{self.name:28} {median:9,.0f}/s {spread:>22} {self.limit_per_s:12,.0f} {verdict}"


def kinds(near: Store, far: Store, count: int) -> list[Kind]:
    """Return the kinds of work to measure, with `count` objects in a batch."""
    array = np.arange(SMALL_BYTES, dtype=np.uint8)

    def new_ids() -> list[bytes]:
        return [new_id() for _ in range(count)]

    def put(store: Store, ids: Sequence[bytes]) -> Sequence[bytes]:
        for group in groups(ids):
            results([store.begin_put(each, array) for each in group])
        return ids

    def get(ids: Sequence[bytes]) -> None:
        for each in ids:
            near.get(each)

    def gather(ids: Sequence[bytes]) -> None:
        for group in groups(ids):
            near.gather(group)

    known = put(near, new_ids())
    return [
        Kind("local gets, one at a time", 15_000, lambda: known, get),
        Kind("local gets, 64 at once", 100_000, lambda: known, gather),
        Kind("puts, 64 at once", 50_000, new_ids, partial(put, near)),
        Kind("remote gets, 64 at once", 20_000, lambda: put(far, new_ids()), gather),
    ]


def groups(ids: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE)]


def idle_figures(stores: Sequence[Store], idle_s: float) -> list[Figure]:
    """Return the use of nodes that have objects and members, and nothing to do."""
    pids = [store.node.process.pid for store in stores]
    before_s = [cpu_s(pid) for pid in pids]
    time.sleep(idle_s)
    shares = [(cpu_s(pid) - then) / idle_s for pid, then in zip(pids, before_s, strict=True)]
    memory = [anonymous_mib(pid) for pid in pids]
    core, own = "idle node, of a core", "idle node, anonymous memory"
    return [
        Figure(case=core, unit="share", samples=(max(shares),), goal=IDLE_CORE_SHARE_MAX),
        Figure(case=own, unit="MiB", samples=(max(memory),), goal=IDLE_MIB_MAX),
    ]


def idle_line(figure: Figure) -> str:
    assert figure.median is not None and figure.goal is not None
    verdict = "OVER" if figure.misses_its_goal() else "ok"
    texts = [value_text(each, figure.unit) for each in (figure.median, figure.goal)]
    return f"{figure.case:28} {texts[0]:>11} {'':22} {texts[1]:>12} {verdict}"


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads, to the nanosecond: ticks hide short wake-ups."""
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def anonymous_mib(pid: int) -> float:
    """The process's own memory: neither files, nor the arena, which it shares with its clients."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) / 1024
    raise OSError(f"process {pid} has no RssAnon")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=2048, help="of a batch")
    parser.add_argument("--rounds", type=int, default=15, help="batches of each kind")
    parser.add_argument("--idle-s", type=float, default=20.0, help="0: not measured")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    options = parser.parse_args()
    if options.toy:
        options.objects, options.rounds, options.idle_s = 2 * AT_ONCE, 1, 0.1
    where = machine()
    with Store.start(arena_bytes=256 * MIB) as near:
        with Store.start(join=near, arena_bytes=256 * MIB) as far:
            idle = idle_figures([near, far], options.idle_s) if options.idle_s else []
            table = kinds(near, far, options.objects)
            for _ in range(options.rounds):
                for kind in table:
                    kind.play()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    print(f"{'1 KiB':28} {'median':>11} {'(least to most)':>22} {'limit':>12}")
    for line in [kind.line for kind in table] + [idle_line(each) for each in idle]:
        print(line)
    if options.toy:
        print("toy sizes in one round: they prove only that it runs")
    if options.json:
        print_figures("small", [*(kind.figure for kind in table), *idle], where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
