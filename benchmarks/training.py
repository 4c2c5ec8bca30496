"""Broadcast, asynchronous and synchronous SGD over hoplite, plain Ray and Gloo, in one run.

    sudo .venv/bin/python benchmarks/training.py

Eight real Ray nodes, each in a network namespace with a full-duplex link of 500 Mbit/s. Turns of a
few rounds alternate between the stores; the first round of a turn is not counted. A round is
asynchronous: half of the gradients in, new parameters out to their workers; synchronous: the sum
of all gradients at every worker; broadcast: the parameters at every worker. The bound is what the
links allow (bounds.py), without any sums. `comm` is the share of all CPU time that neither
gradients nor updates took, thus Ray's own part included.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bounds
from carried import OverloadError, carried_share, check_carried
from meters import SATURATED_SHARE, machine
from network import Network, why_impossible
from peers.ray_cluster import RayCluster

MILLION, MIB = 1_000_000, 1 << 20
PEERS = {
    "broadcast": ("hoplite", "ray"),
    "async SGD": ("hoplite", "ray"),
    "sync SGD": ("hoplite", "gloo", "ray"),
}
OBJECTS = 12  # on the server's node, at most: all gradients, their sum, old and new parameters


@dataclass(slots=True)
class Line:
    """One line of the table: one application over one peer."""

    application: str
    parameters: int
    peer: str
    bound_s: float
    turns: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0  # parameters that the model has

    @property
    def seconds(self) -> list[float]:
        return [each for turn in self.turns for each in turn["seconds"]]

    @property
    def failure(self) -> str | None:
        failures = [turn["failure"] for turn in self.turns if turn["failure"]]
        return failures[0] if failures else None

    @property
    def communication_share(self) -> float:
        """The share of the used CPU time that neither gradients nor updates took."""
        busy_s = self._sum("busy_s")  # in ticks of 10 ms: none of a turn that is very short
        return 1 - self._sum("compute_s") / busy_s if busy_s else 0.0

    @property
    def busy_share(self) -> float:
        """The used share of the machine's CPU time."""
        cores_s = self._sum("cores_s")
        return self._sum("busy_s") / cores_s if cores_s else 0.0

    def _sum(self, name: str) -> float:
        return float(sum(turn[name] for turn in self.turns))

    def text(self) -> str:
        head = f"{self.application:10} {self.size / MILLION:6.1f} M  {self.peer:8}"
        if self.failure:
            return f"{head} FAILED: {self.failure}"
        median_s = statistics.median(self.seconds)
        words = f"{head} {1 / median_s:7.3f} {median_s:8.3f} {min(self.seconds):8.3f} "
        words += f"{max(self.seconds):8.3f} {median_s / self.bound_s:7.2f} "
        words += f"{self.busy_share:5.0%} {self.communication_share:5.0%}"
        return words + ("  CORES SATURATED" if self.busy_share >= SATURATED_SHARE else "")

    def record(self, options: argparse.Namespace) -> dict[str, object]:
        return {
            "benchmark": "training",
            "application": self.application,
            "peer": self.peer,
            "nodes": options.nodes,
            "rate_mbit": options.rate_mbit,
            "parameters": self.size,
            "bound_s": self.bound_s,
            "failure": self.failure,
            "samples": [{"seconds": each} for each in self.seconds],
            "turns": self.turns,
        }


HEAD = (
    f"{'':10} {'model':>8}  {'':8} {'rounds/s':>7} {'median s':>8} {'least':>8} {'most':>8} "
    f"{'x bound':>7} {'cpu':>5} {'comm':>5}"
)


def main() -> int:
    options = parse_options()
    impossible = why_impossible()
    if impossible:
        print(f"{impossible}; nothing was measured")
        return 0 if options.toy else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the namespaces would stay
    where = machine()
    table = lines(options)
    with Network(options.nodes, rate_mbit=options.rate_mbit) as network:
        try:
            weigh = carried_share if options.toy else check_carried
            carried = weigh(network)
        except OverloadError as error:
            print(error)
            return 1
        print(f"{network}, {carried:.0%} of it carried")
        print(", ".join(f"{what} {value}" for what, value in where.items()), flush=True)
        for turn in played(network, table, options):
            line = found(table, turn)
            line.turns.append(turn)
            line.size = turn["parameters"]
            told = turn["failure"] or " ".join(f"{each:.3f}" for each in turn["seconds"])
            print(f"{line.application}, {line.peer}: {told}", flush=True)
    print(HEAD)
    for line in table:
        print(line.text())
    for words in ratios(table):
        print(words)
    if options.toy:
        print("toy sizes: they prove only that it runs")
    if options.json:
        for line in table:
            print(json.dumps(line.record(options) | {"carried_share": carried} | where))
    return int(any(line.failure for line in table if options.toy or line.peer == "hoplite"))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument(
        "--parameters", type=numbers, default=(10.0, 25.0, 60.0), help="of the models, in millions"
    )
    parser.add_argument("--only", default="", help="applications: broadcast,async,sync")
    parser.add_argument("--peers", default="", help="of hoplite,gloo,ray")
    parser.add_argument("--turns", type=int, default=2, help="of each store")
    parser.add_argument("--rounds", type=int, default=3, help="in a turn, and one more before them")
    parser.add_argument("--json", action="store_true", help="add a line with all of each figure")
    parser.add_argument("--toy", action="store_true", help="proves only that it runs")
    options = parser.parse_args()
    if options.toy:
        options.nodes, options.parameters, options.turns, options.rounds = 3, (0.1,), 1, 1
    options.broadcast_bytes = 400_000 if options.toy else 32 * MIB
    if options.nodes < 3 or options.turns < 1 or options.rounds < 1:
        parser.error("at least three nodes, one turn and one round")
    return options


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def lines(options: argparse.Namespace) -> list[Line]:
    """The table's lines, in its order."""
    found = []
    if wanted("broadcast", options.only):
        hop_s = bounds.hop_s(options.broadcast_bytes, rate_mbit=options.rate_mbit)
        found = [
            Line("broadcast", options.broadcast_bytes // 4, peer, hop_s)
            for peer in PEERS["broadcast"]
            if wanted(peer, options.peers)
        ]
    for millions in options.parameters:
        parameters = int(millions * MILLION)
        hop_s = bounds.hop_s(4 * parameters, rate_mbit=options.rate_mbit)
        everywhere_s = bounds.allreduce_s(
            4 * parameters, nodes=options.nodes, rate_mbit=options.rate_mbit
        )
        for application, bound_s in (("async SGD", hop_s), ("sync SGD", everywhere_s)):
            for peer in PEERS[application]:
                if wanted(application.split()[0], options.only) and wanted(peer, options.peers):
                    found.append(Line(application, parameters, peer, bound_s))
    return found


def wanted(name: str, only: str) -> bool:
    return not only or name in only.split(",")


def played(
    network: Network, table: Sequence[Line], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Start Ray on the network, have all turns played at its first node, and yield them."""
    largest = max(line.parameters for line in table)
    store_bytes = OBJECTS * 4 * largest + 128 * MIB
    began_s = time.monotonic()
    cluster = RayCluster.start(network, store_bytes=store_bytes)
    print(f"{network.count} Ray nodes after {time.monotonic() - began_s:.0f} s", flush=True)
    turns = []
    for case in dict.fromkeys((line.application, line.parameters) for line in table):
        peers = [line.peer for line in table if (line.application, line.parameters) == case]
        turns += [(*case, peer, options.rounds) for _ in range(options.turns) for peer in peers]
    flag = {"arena_bytes": store_bytes, "link_mbit": network.slowest_mbit}
    arguments = json.dumps([cluster.address, network.count, flag, turns])
    command = "import applications, json, sys; applications.play(*json.loads(sys.argv[1]))"
    driver = subprocess.Popen(
        [*network.within(0), sys.executable, "-c", command, arguments],
        cwd=Path(__file__).parent,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    with driver.stdout as told:
        for line in told:
            if line.startswith("{"):
                yield json.loads(line)
    if driver.wait() != 0:
        raise SystemExit("the driver has failed: its last words are above")


def found(table: Sequence[Line], turn: dict[str, Any]) -> Line:
    key = turn["application"], turn["asked"], turn["peer"]
    return next(each for each in table if (each.application, each.parameters, each.peer) == key)


def ratios(table: Sequence[Line]) -> list[str]:
    """How many times faster ours is than each peer, by application and model."""
    words = []
    whole = {
        (line.application, line.parameters, line.peer): statistics.median(line.seconds)
        for line in table
        if line.seconds and not line.failure
    }
    for (application, parameters, peer), seconds in whole.items():
        ours = whole.get((application, parameters, "hoplite"))
        if ours and peer != "hoplite":
            model = f"{parameters / MILLION:g} M"
            words.append(f"{application} {model}: {seconds / ours:.2f} x as fast as {peer}")
    return words


if __name__ == "__main__":
    sys.exit(main())
