"""A table beside an actor that holds a dict, which is how programs share values by name today.

    python benchmarks/versions.py

Two Ray nodes are on one machine. The actor and half of the clients are on the near one, the other
clients on the far one. One table's values have two copies, on both nodes; another table's and the
actor's have one, and the actor's goes with it. The contenders take turns, twenty calls at a time,
and the order of a round is that of the round before, reversed.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import ray
from figures import OURS, Figure, print_figures, value_text
from meters import machine
from ray.cluster_utils import Cluster

import hoplite_ray as hop

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1 KB": 1 * KIB, "1 MB": 1 * MIB}
BATCH = 20  # calls of one kind in a row, while the contenders take turns
KEPT = 2  # versions that the actor keeps, as a table does
ACTOR = "an actor with a dict"
ONE_COPY = f"{OURS}, one copy"
DEEDS = {
    "put": "put of {}, {}",
    "get": "get of the latest {}, {}",
    "again": "get of a version of {} that was got before, {}",
    "snapshot": "snapshot of all keys and gets of two of {}, {}",
}


@ray.remote(num_cpus=0, resources={"near": 0.001})
class Holder:
    """The actor: a dict with the KEPT newest versions of each key, whatever their age."""

    def __init__(self) -> None:
        self.kept: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.puts = 0

    def put(self, values: dict[str, Any]) -> int:
        self.puts += 1
        for key, value in values.items():
            self.kept[key].append((self.puts, value))
        return self.puts

    def get(self, key: str, version: int | None = None) -> Any:
        return next(v for number, v in reversed(self.kept[key]) if version in (None, number))

    def get_all(self, keys: list[str]) -> list[Any]:
        return [self.kept[key][-1][1] for key in keys]


@ray.remote(num_cpus=0)
class Client:
    """Calls a table of two copies, one of one copy, and the actor; measures each call."""

    def __init__(self, name: str, holder: Any) -> None:
        self.keys = [f"{name}-x", f"{name}-y"]
        self.holder = holder
        self.tables = {
            OURS: hop.Table("both", keep_s=1),
            ONE_COPY: hop.Table("one", keep_s=1, copies=1),
        }
        self.numbers: dict[str, int] = {}

    def measure(self, deed: str, by: str, size_bytes: int) -> list[float]:
        call = self.call_actor(deed) if by == ACTOR else self.call_table(deed, by)
        values = [
            {key: np.full(size_bytes, turn, np.uint8) for key in self.keys} for turn in range(BATCH)
        ]
        if deed in ("get", "again", "snapshot"):  # others' calls come between
            values = values[:1] * BATCH
        return [time_call(partial(call, each)) for each in values]

    def call_table(self, deed: str, by: str) -> Callable[[dict[str, Any]], Any]:
        table, key = self.tables[by], self.keys[0]

        def put(values: dict[str, Any]) -> None:
            self.numbers[by] = table.put_all(values)[key].number

        def read_cut(values: dict[str, Any]) -> list[Any]:
            with table.snapshot() as cut:
                return [cut.get(each) for each in values]

        return {
            "put": put,
            "get": lambda values: table.get(key),
            "again": lambda values: table.get(key, version=self.numbers[by]),
            "snapshot": read_cut,
        }[deed]

    def call_actor(self, deed: str) -> Callable[[dict[str, Any]], Any]:
        holder, key = self.holder, self.keys[0]

        def put(values: dict[str, Any]) -> None:
            self.numbers[ACTOR] = ray.get(holder.put.remote(values))

        return {
            "put": put,
            "get": lambda values: ray.get(holder.get.remote(key)),
            "again": lambda values: ray.get(holder.get.remote(key, self.numbers[ACTOR])),
            "snapshot": lambda values: ray.get(holder.get_all.remote([*values])),
        }[deed]


def main() -> None:
    options = parse_options()
    where = machine()
    cluster = start_cluster()
    try:
        found = measure(options.rounds)
    finally:
        ray.shutdown()
        cluster.shutdown()
    for figure in found:
        assert figure.median is not None
        most = sorted(figure.samples)[int(0.99 * len(figure.samples))]
        times = f"{value_text(figure.median, 's'):>8}, p99 {value_text(most, 's'):>8}"
        print(f"{figure.case:<70}{figure.by:<24}{times}")
    if options.json:
        print_figures("versions", found, where)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help=f"batches of {BATCH} of each kind")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="sizes that only prove that it runs")
    options = parser.parse_args()
    if options.toy:
        options.rounds = 1
    return options


def start_cluster() -> Cluster:
    common = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 512 * MIB}
    cluster = Cluster(initialize_head=True, head_node_args={**common, "resources": {"near": 9}})
    cluster.add_node(
        num_cpus=2, object_store_memory=512 * MIB, include_dashboard=False, resources={"far": 9}
    )
    ray.init(
        address=cluster.address,
        runtime_env={"hoplite": {"arena_bytes": 512 * MIB}},
        log_to_driver=False,
    )
    return cluster


def measure(rounds: int) -> list[Figure]:
    holder = Holder.remote()
    clients = {
        name: Client.options(resources={name: 0.001}).remote(name, holder)
        for name in ("near", "far")
    }
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    contenders = [OURS, ONE_COPY, ACTOR]
    for number in range(rounds + 1):
        contenders.reverse()
        for size, size_bytes in SIZES.items():
            for name, client in clients.items():
                for deed, words in DEEDS.items():
                    for by in contenders:
                        seconds = ray.get(client.measure.remote(deed, by, size_bytes))
                        if number:  # the first round attaches and imports
                            taken[words.format(size, name), by] += seconds
    return [
        Figure(case=case, by=by, unit="s", samples=tuple(seconds))
        for (case, by), seconds in sorted(taken.items())
    ]


def time_call(deed: Callable[[], object]) -> float:
    started = time.perf_counter()
    deed()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
