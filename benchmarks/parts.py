"""Rows of several writers, read as columns: when all readers have them, and bytes of each link.

    sudo .venv/bin/python benchmarks/parts.py
    sudo .venv/bin/python benchmarks/parts.py --size-mib 64 --rounds 1

Real Ray nodes, each in a network namespace with a full-duplex link. Each writer has some rows of
one matrix of float32, each reader wants some of its columns. hoplite_ray composes the rows and gets
a part; with plain Ray a reader gets all rows and cuts them. All readers begin at once. The bound is
the time of one reader's columns over one link, and their bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import bounds
from figures import OURS, Figure, value_text
from frame import refuse, run_on_network
from meters import Links
from network import Network, why_impossible
from parts_driver import HOPLITE, RAY
from peers.ray_cluster import RayCluster
from ranks import Rank

MIB = 1 << 20
GOAL = 1.05  # times a shard's bytes, over each link
CONTENDERS = {HOPLITE: OURS, RAY: "Ray"}


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if impossible:
        return refuse(impossible, options)
    network = Network(2 * options.sides, rate_mbit=options.rate_mbit)
    return run_on_network("parts", options, network, partial(play, options), describe)


def play(options: argparse.Namespace, network: Network, stack: ExitStack) -> list[Figure]:
    """Measure both ways."""
    return list(measure(options, network, stack))


def describe(figures: Sequence[Figure]) -> Iterator[str]:
    """Return a line for each figure."""
    for figure in figures:
        bound = value_text(figure.bound or 0.0, figure.unit)
        median = value_text(figure.median or 0.0, figure.unit)
        yield f"{figure.case}: {figure.by} {median}, bound {bound}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size-mib", type=int, default=256, help="of the matrix")
    parser.add_argument("--sides", type=int, default=4, help="writers, and as many readers")
    parser.add_argument("--rate-mbit", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3, help="plays of each contender")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")
    options = parser.parse_args()
    if options.toy:
        options.size_mib, options.sides, options.rounds = 8, 2, 1
    if options.size_mib < 1 or options.sides < 1 or options.rounds < 1:
        parser.error("at least one MiB, one writer and one round")
    return options


def measure(options: argparse.Namespace, network: Network, stack: ExitStack) -> Iterator[Figure]:
    """Play all rounds, and give the figures of each contender."""
    size_bytes, sides = options.size_mib * MIB, options.sides
    store_bytes = 3 * size_bytes + 256 * MIB  # with plain Ray a reader has the whole
    cluster = RayCluster.start(network, store_bytes=store_bytes)
    driver = Rank.start(
        network.within(0),
        "parts_driver.play",
        *(cluster.address, str(store_bytes), str(network.slowest_mbit), str(sides)),
        environment=cluster.environment,
    )
    stack.callback(driver.close)
    links = Links(network)
    stack.callback(links.close)
    took_s: dict[str, list[float]] = defaultdict(list)
    most_bytes: dict[str, list[int]] = defaultdict(list)
    for _ in range(options.rounds):
        for contender, by in CONTENDERS.items():
            driver.do("write", contender=contender, size_bytes=size_bytes)
            sent = [links.sent_bytes(rank) for rank in range(sides)]
            received = [links.received_bytes(rank) for rank in range(sides, 2 * sides)]
            took_s[contender].append(driver.do("read", contender=contender))
            carried = [
                *(links.sent_bytes(rank) - sent[rank] for rank in range(sides)),
                *(
                    links.received_bytes(rank) - received[rank - sides]
                    for rank in range(sides, 2 * sides)
                ),
            ]
            most_bytes[contender].append(max(carried))
            print(
                f"{by}: all readers after {took_s[contender][-1]:.2f} s; MiB sent by each writer "
                f"and received by each reader: {', '.join(f'{n / MIB:.1f}' for n in carried)}",
                flush=True,
            )
            driver.do("forget")
    shard_bytes = size_bytes // sides
    what = f"{options.size_mib} MiB, {sides} x {sides} at {options.rate_mbit} Mbit/s"
    for contender, by in CONTENDERS.items():
        yield Figure(
            case=f"{what}, all readers",
            by=by,
            unit="s",
            samples=tuple(took_s[contender]),
            bound=bounds.hop_s(shard_bytes, rate_mbit=options.rate_mbit),
        )
        yield Figure(
            case=f"{what}, busiest link",
            by=by,
            unit="MiB",
            samples=tuple(each / MIB for each in most_bytes[contender]),
            bound=shard_bytes / MIB,
            goal=GOAL * shard_bytes / MIB if contender == HOPLITE else None,
        )


if __name__ == "__main__":
    sys.exit(main())
