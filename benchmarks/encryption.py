"""The cost of the option data_tls: bytes per core second between two nodes, with and without it.

    python benchmarks/encryption.py

Two nodes over loopback, without TLS and with it, taking turns: an object is put on one and got on
the other. Told are the goodput, and what 10 Gbit/s would take of a core on either side; both count
the node's whole process, which a transfer of one object keeps busy with one thread. Then two
members of a world, whose edge goes by TCP over loopback: the goodput of arrays, each of which is
acknowledged, and the round trip of a small one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from figures import Figure, print_figures, value_text
from meters import cpu_s, machine

from hoplite_ray import Store, WorldError, new_id
from hoplite_ray.launch import NodeProcess
from hoplite_ray.worlds import World, WorldManager

MIB = 1 << 20
TIMEOUT_S = 60.0
TEN_GIGABIT = 10e9 / 8
ARRAY_BYTES = 4 * MIB  # of an edge's
SMALL_BYTES = 1000
CERTIFY = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node "
    "-addext subjectAltName=IP:127.0.0.1"
)


class Cost(NamedTuple):
    """Seconds of one transfer: of the clock, and of either node's core."""

    wall_s: float
    sender_s: float
    receiver_s: float


class Pair:
    """Two nodes, from the first to the second of which objects go."""

    def __init__(self, stack: ExitStack, data_tls: str, size_bytes: int) -> None:
        how = {"arena_bytes": 2 * size_bytes + 64 * MIB, "options": {"data_tls": data_tls}}
        self._sender = NodeProcess.start(**how)
        stack.callback(self._sender.stop)
        self._receiver = NodeProcess.start(beside=self._sender, **how)
        stack.callback(self._receiver.stop)
        self._from = stack.enter_context(Store.attach(self._sender.socket))
        self._to = stack.enter_context(Store.attach(self._receiver.socket))

    def transfer(self, array: np.ndarray) -> Cost:
        object_id = new_id()
        self._from.put(object_id, array, timeout_s=TIMEOUT_S)
        began_s, sender_s, receiver_s = time.perf_counter(), *self._cores_s()
        self._to.get(object_id, timeout_s=TIMEOUT_S)
        wall_s, (sender_ended_s, receiver_ended_s) = time.perf_counter() - began_s, self._cores_s()
        self._from.delete(object_id, timeout_s=TIMEOUT_S)
        return Cost(wall_s, sender_ended_s - sender_s, receiver_ended_s - receiver_s)

    def _cores_s(self) -> tuple[float, float]:
        sender_s, receiver_s = (
            cpu_s(node.process.pid) or 0.0 for node in (self._sender, self._receiver)
        )
        return sender_s, receiver_s


class Edge:
    """A world of this process and another one, which sends back a small array for each."""

    def __init__(self, stack: ExitStack, data_tls: str) -> None:
        os.environ["HOPLITE_RAY_DATA_TLS"] = data_tls
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        other = multiprocessing.get_context("spawn").Process(target=answer, args=(address,))
        other.start()
        stack.callback(other.join)
        manager = stack.enter_context(WorldManager())
        self._world = joined(manager, 0, address)
        self._array = np.random.default_rng(0).integers(0, 256, ARRAY_BYTES, np.uint8)
        self._small = self._array[:SMALL_BYTES].copy()

    def seconds(self, count: int, *, is_small: bool) -> float:
        """Send so many arrays, each once the one before is acknowledged."""
        array = self._small if is_small else self._array
        began_s = time.perf_counter()
        for _ in range(count):
            self._world.send(array, dst=1)
            self._world.recv(self._small, src=1)
        return time.perf_counter() - began_s


def joined(manager: WorldManager, rank: int, address: str) -> World:
    how = {"size": 2, "rendezvous": address, "transport": "tcp", "timeout_s": TIMEOUT_S}
    return manager.join("edge", rank=rank, **how)


def answer(address: str) -> None:
    """The other process of an edge, until that ends."""
    small = np.zeros(SMALL_BYTES, np.uint8)
    with WorldManager() as manager:
        world = joined(manager, 1, address)
        try:
            while True:
                world.recv(src=0)
                world.send(small, dst=0)
        except WorldError:  # its peer has closed
            pass


def edge_figures(count: int, rounds: int) -> Iterator[Figure]:
    """Play edges of both kinds in turns."""
    with ExitStack() as stack:
        edges = {data_tls: Edge(stack, data_tls) for data_tls in ("off", "on")}
        large: dict[str, list[float]] = {data_tls: [] for data_tls in edges}
        small: dict[str, list[float]] = {data_tls: [] for data_tls in edges}
        for turn in range(rounds + 1):
            for data_tls, edge in edges.items():
                figures = [edge.seconds(count, is_small=is_small) for is_small in (False, True)]
                if turn > 0:
                    large[data_tls].append(figures[0])
                    small[data_tls].append(figures[1])
    for data_tls in edges:
        case = f"an edge of a world by TCP, data_tls {data_tls}"
        rates = tuple(count * ARRAY_BYTES / seconds for seconds in large[data_tls])
        trips_s = tuple(seconds / count for seconds in small[data_tls])
        yield Figure(case=case, unit="bytes/s", samples=rates, is_more_better=True)
        yield Figure(case=f"{case}: round trip of 1 kB", unit="s", samples=trips_s)


def certify(folder: str) -> dict[str, str]:
    """Ray's settings for nodes on this machine, whose certificate is its own authority."""
    key, certificate = f"{folder}/key", f"{folder}/certificate"
    command = [*CERTIFY.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": certificate,
        "RAY_TLS_SERVER_KEY": key,
        "RAY_TLS_CA_CERT": certificate,
    }


def node_figures(data_tls: str, costs: list[Cost], size_bytes: int) -> Iterator[Figure]:
    case = f"{size_bytes // MIB} MiB from node to node, data_tls {data_tls}"
    rates = tuple(size_bytes / each.wall_s for each in costs)
    yield Figure(case=case, unit="bytes/s", samples=rates, is_more_better=True)
    for end in ("sender", "receiver"):
        cores = (getattr(each, f"{end}_s") / size_bytes * TEN_GIGABIT for each in costs)
        yield Figure(case=f"{case}: {end} at 10 Gbit/s", unit="cores", samples=tuple(cores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-mib", type=int, default=1024, help="of each object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arrays", type=int, default=200, help="of each size, over an edge")
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="a size that proves only that it runs")
    asked = parser.parse_args()
    if asked.toy:
        asked.size_mib, asked.rounds, asked.arrays = 16, 1, 2
    where, size_bytes = machine(), asked.size_mib * MIB
    array = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    with ExitStack() as stack:
        os.environ.update(certify(stack.enter_context(tempfile.TemporaryDirectory())))
        pairs = {data_tls: Pair(stack, data_tls, size_bytes) for data_tls in ("off", "on")}
        runs: dict[str, list[Cost]] = {data_tls: [] for data_tls in pairs}
        for turn in range(asked.rounds + 1):  # the first one touches the arena's pages
            for data_tls, pair in pairs.items():
                cost = pair.transfer(array)
                if turn > 0:
                    runs[data_tls].append(cost)
        figures = [each for run in runs.items() for each in node_figures(*run, size_bytes)]
        figures += edge_figures(asked.arrays, asked.rounds)
    for each in figures:
        assert each.median is not None
        print(f"{each.case:60} {value_text(each.median, each.unit)}")
    if asked.json:
        print_figures("encryption", figures, where)


if __name__ == "__main__":
    main()
