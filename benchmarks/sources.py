"""The cost of a reduce of thousands of small objects for four nodes on loopback.

    python benchmarks/sources.py [--sources 4000] [--size-bytes 4096] [--each]

CPU time of the reactors from the first confirmation until the result is there, and the longest turn
of any of them, on a core or waiting for one. A node's sources are combined before they are sent;
--each has them all sent, as where their order is fixed.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from figures import Figure, print_figures
from holding import reactor_of
from meters import machine

from hoplite_ray.control.client import ControlClient
from hoplite_ray.launch import NodeProcess
from hoplite_ray.store import Store, new_id

MIB = 1 << 20
NODES = 4
WAIT_S = 60.0


class Cost(NamedTuple):
    """The time and the CPU time of one reduce."""

    wall_s: float
    reactors_s: float  # of all nodes' reactors on a core
    longest_turn_s: float  # since the nodes have started


def cpu_s(node: NodeProcess) -> float:
    """Return the time that the node's reactor has been on a core."""
    pid = node.process.pid
    schedule = Path(f"/proc/{pid}/task/{reactor_of(pid)}/schedstat").read_text()
    return int(schedule.split()[0]) / 1e9


async def longest_turn_us(node: NodeProcess) -> int:
    """Return how long the reactor has been at it without looking at its sockets, at most."""
    calls = ControlClient(node.secret)
    try:
        return (await calls.stats(node.control))["longest_turn_us"]
    finally:
        await calls.close()


def reduce_once(stores: list[Store], nodes: list[NodeProcess], options: argparse.Namespace) -> Cost:
    """Put the sources, reduce them, print a line, delete all."""
    values = np.ones(options.size_bytes // 4, np.float32)
    ids = [new_id() for _ in range(options.sources)]
    for index, object_id in enumerate(ids):
        stores[index % NODES].put(object_id, values, timeout_s=WAIT_S)
    before = [cpu_s(node) for node in nodes]
    begun = perf_counter()
    target = stores[0].reduce(new_id(), ids, deterministic=options.each, timeout_s=WAIT_S).target
    result = stores[0].get(target, timeout_s=WAIT_S)
    took_s = perf_counter() - begun
    used = [cpu_s(node) - then for node, then in zip(nodes, before, strict=True)]
    assert (result == len(ids)).all()
    longest_us = max(asyncio.run(longest_turn_us(node)) for node in nodes)
    print(
        f"{len(ids)} sources of {options.size_bytes} bytes: {took_s:.2f} s; reactors "
        f"{sum(used):.2f} s on a core, the busiest {max(used):.2f}; longest turn so far "
        f"{longest_us / 1000:.1f} ms"
    )
    for each in (*ids, target):
        stores[0].delete(each, timeout_s=WAIT_S)
    return Cost(took_s, sum(used), longest_us / 1e6)


def figures(costs: list[Cost], options: argparse.Namespace) -> list[Figure]:
    how = ", each sent by itself" if options.each else ""
    reduce = f"reduce of {options.sources:,} objects of {options.size_bytes:,} bytes{how}"
    names = (reduce, f"{reduce}: CPU time of {NODES} reactors", f"{reduce}: longest turn")
    return [
        Figure(case=name, unit="s", samples=samples)
        for name, samples in zip(names, zip(*costs, strict=True), strict=True)
    ]


def main() -> None:
    """Start the nodes and reduce a few times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sources", type=int, default=4000)
    parser.add_argument("--size-bytes", type=int, default=4096)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="be quick: the figures mean nothing")
    options = parser.parse_args()
    if options.toy:
        options.sources, options.rounds = 40, 1
    where = machine()
    nodes: list[NodeProcess] = []
    try:
        for _ in range(NODES):
            oldest = nodes[0] if nodes else None
            nodes.append(NodeProcess.start(beside=oldest, arena_bytes=256 * MIB))
        stores = [Store.attach(node.socket) for node in nodes]
        costs = [reduce_once(stores, nodes, options) for _ in range(options.rounds)]
    finally:
        for node in nodes:
            node.kill()
    if options.json:
        print_figures("sources", figures(costs, options), where)


if __name__ == "__main__":
    main()
