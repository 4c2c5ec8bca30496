"""Weights on a new node: when k replicas there have them, beside the link's bound and plain Ray.

    sudo .venv/bin/python benchmarks/weights.py
    sudo .venv/bin/python benchmarks/weights.py --size-mib 1024 --rate-mbit 1000 --rounds 1

Real Ray nodes, each in a network namespace with a full-duplex link. Two nodes have a copy of the
weights. For each play a third node joins, and k replicas begin there at once: first bare ones,
whose time is the start of k processes, then those with weights. A replica is ready when it has read
an element of each page. The bound is the start of the bare replicas and the bytes of one copy over
the link; the goal lets the bytes take 1.1 times that. The bytes that a node has received while its
replicas began stand beside the size.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import bounds
from figures import OURS, Figure, value_text
from frame import add_output_options, refuse, run_on_network, start_driver
from meters import Links
from network import Network, why_impossible
from peers.ray_cluster import RayCluster
from weights_driver import BARE, HOPLITE, RAY

MIB = 1 << 20
GOAL = 1.1  # times the bound of the bytes
KEEPERS = 2  # nodes that have a copy from the start
CONTENDERS = {HOPLITE: OURS, RAY: "Ray"}


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if impossible:
        return refuse(impossible, options)
    network = Network(KEEPERS + 1, rate_mbit=options.rate_mbit)
    return run_on_network("weights", options, network, partial(play_all, options), describe)


def describe(figures: Sequence[Figure]) -> Iterator[str]:
    """Return a line for people of each figure."""
    for figure in figures:
        bound = value_text(figure.bound or 0.0, figure.unit)
        median = value_text(figure.median or 0.0, figure.unit)
        yield f"{figure.case}: {figure.by} {median}, bound {bound}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--rate-mbit", type=int, default=500)
    parser.add_argument("--replicas", type=numbers, default=(1, 4), help="of a play: 1,4")
    parser.add_argument("--rounds", type=int, default=3, help="plays of each case")
    add_output_options(parser)
    options = parser.parse_args()
    if options.toy:
        options.size_mib, options.replicas, options.rounds = 8, (2,), 1
    if options.size_mib < 1 or options.rounds < 1:
        parser.error("at least one MiB and one round")
    return options


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


class Times:
    """The times and bytes of all plays, by the number of replicas and the contender."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.size_bytes: int = options.size_mib * MIB
        self._rate_mbit: int = options.rate_mbit
        self._start_s: dict[int, list[float]] = defaultdict(list)
        self._ready_s: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._came_bytes: dict[tuple[int, str], list[int]] = defaultdict(list)

    def add(
        self, contender: str, count: int, start_s: float, ready_s: float, came_bytes: int
    ) -> None:
        """Add a play."""
        self._start_s[count].append(start_s)
        self._ready_s[count, contender].append(ready_s)
        self._came_bytes[count, contender].append(came_bytes)

    def figures(self) -> Iterator[Figure]:
        """Give a figure of the time, and one of the bytes, for each number and contender."""
        hop_s = bounds.hop_s(self.size_bytes, rate_mbit=self._rate_mbit)
        size_mib = self.size_bytes / MIB
        for (count, contender), ready_s in self._ready_s.items():
            starts_s = sorted(self._start_s[count])
            start_s = starts_s[len(starts_s) // 2]
            what = f"{size_mib:g} MiB at {self._rate_mbit} Mbit/s, replicas: {count}"
            ours = contender == HOPLITE
            yield Figure(
                case=f"{what}, ready",
                by=CONTENDERS[contender],
                unit="s",
                samples=tuple(ready_s),
                bound=start_s + hop_s,
                goal=start_s + GOAL * hop_s if ours else None,
            )
            yield Figure(
                case=f"{what}, bytes over the link",
                by=CONTENDERS[contender],
                unit="MiB",
                samples=tuple(each / MIB for each in self._came_bytes[count, contender]),
                bound=size_mib,
            )


def play_all(options: argparse.Namespace, network: Network, stack: ExitStack) -> list[Figure]:
    """Have each play on a new node."""
    times = Times(options)
    plays = [
        (contender, count)
        for _ in range(options.rounds)
        for count in options.replicas
        for contender in CONTENDERS
    ]
    store_bytes = times.size_bytes * 5 // 2 + 256 * MIB  # a keeper has two copies for a while
    cluster = RayCluster.start(network, store_bytes=store_bytes, count=KEEPERS)
    driver = start_driver(network, cluster, "weights_driver.play", store_bytes)
    stack.callback(driver.close)
    links = Links(network)
    stack.callback(links.close)
    driver.do("publish", size_bytes=times.size_bytes)
    rank = KEEPERS
    for number, (contender, count) in enumerate(plays):
        resource = f"play{number}"
        cluster.add(rank, resource)
        start_s = driver.do("start", contender=BARE, resource=resource, count=count)
        before = links.received_bytes(rank)
        ready_s = driver.do("start", contender=contender, resource=resource, count=count)
        came_bytes = links.received_bytes(rank) - before
        times.add(contender, count, start_s, ready_s, came_bytes)
        print(
            f"{contender}, replicas: {count}: ready after {ready_s:.2f} s, bare ones after "
            f"{start_s:.2f} s; {came_bytes / MIB:.1f} MiB came",
            flush=True,
        )
        for pid in network.processes(rank):  # the node leaves, and its place is free
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return list(times.figures())


if __name__ == "__main__":
    sys.exit(main())
