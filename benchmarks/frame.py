"""The frame of a benchmark on an emulated network: what it needs first, and what it prints."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from carried import OverloadError, carried_share, check_carried
from figures import OURS, Figure, print_figures
from meters import machine
from network import Network
from peers.ray_cluster import RayCluster
from ranks import Rank

# Plays a benchmark on a network, and returns its figures. The stack ends what it has begun.
Play = Callable[[Network, ExitStack], Sequence[Figure]]


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that each benchmark has."""
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")


def split_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of an option, which stand between commas."""
    return tuple(float(word) for word in text.split(","))


def refuse(why: str, options: argparse.Namespace) -> int:
    """Say why nothing is measured; returns the exit status, which is no failure of a toy run."""
    print(f"{why}; nothing was measured")
    return 0 if options.toy else 1


def run_on_network(
    benchmark: str,
    options: argparse.Namespace,
    network: Network,
    play: Play,
    describe: Callable[[Sequence[Figure]], Iterable[str]],
) -> int:
    """Play a benchmark on a network that the machine can carry, and print its figures.

    describe:  returns the lines for people.
    Returns:   the exit status: 1 if ours has failed, and in a toy run if anything has.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else namespaces remain
    where = machine()
    with ExitStack() as stack:
        stack.enter_context(network)
        try:
            carried = (carried_share if options.toy else check_carried)(network)
        except OverloadError as error:
            print(error)
            return 1
        print(f"{network}, {carried:.0%} of it carried")
        print_machine(where)
        found = play(network, stack)
    for line in describe(found):
        print(line)
    print_end(benchmark, options, found, where | {"carried_share": carried})
    return int(any(each.failure for each in found if options.toy or each.by == OURS))


def print_machine(where: Mapping[str, object]) -> None:
    """Print what `meters.machine` has returned."""
    print(", ".join(f"{what} {value}" for what, value in where.items()), flush=True)


def print_end(
    benchmark: str,
    options: argparse.Namespace,
    found: Iterable[Figure],
    where: Mapping[str, object],
) -> None:
    """Print what a toy run proves, and the lines of JSON if they are asked for."""
    if options.toy:
        print("toy sizes: they prove only that it runs")
    if options.json:
        print_figures(benchmark, found, where)


def start_driver(
    network: Network, cluster: RayCluster, play: str, store_bytes: int, *arguments: str
) -> Rank:
    """Start the driver at the first node, as in "weights_driver.play".

    It is given the cluster's address, `store_bytes`, the slowest link's rate, and `arguments`.
    """
    link_mbit = str(network.slowest_mbit)
    return Rank.start(
        network.within(0),
        play,
        *(cluster.address, str(store_bytes), link_mbit, *arguments),
        environment=cluster.environment,
    )


def connect_driver(address: str, arena_bytes: str, link_mbit: str, **options: Any) -> None:
    """Connect a driver to its cluster; its node has an arena of this size."""
    import ray  # here, because the benchmark's own process needs none

    flag = {"arena_bytes": int(arena_bytes), "link_mbit": int(link_mbit)}
    ray.init(address, runtime_env={"hoplite": flag}, log_to_driver=False, **options)
