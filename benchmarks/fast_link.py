"""How fast one object goes from node to node over loopback, beside one plain TCP stream in C++.

    python benchmarks/fast_link.py
    python benchmarks/fast_link.py --io-threads 0 1 2 4

Two nodes of this machine, and one process that is attached to both. A round puts an object at one
node and gets it at the other. Plain streams move as many bytes by calls of 1 MiB, and take turns
with the nodes: one between two buffers of 1 MiB, which stay in the cache, and one from memory to
memory, as the nodes do. A first get is of nodes that have just started, so the kernel makes memory
for its bytes; "with prefault_bytes" the nodes had made that ahead. Also: what the thread of each
node that moves the bytes spends on a GB. Limits are shares of the stream between two buffers.

With --io-threads it compares those values of the option instead, in turns. Each pair of nodes then
has as many rails on one address as threads, so that each thread has a connection for blocks.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from figures import OURS, Figure, print_figures, value_text
from meters import find_built, machine

from hoplite_ray.launch import NodeProcess
from hoplite_ray.store import Store, new_id

PLAIN, FROM_MEMORY = "a plain TCP stream", "a plain TCP stream from memory to memory"
MIB, GB = 1 << 20, 1e9
THREADS = {"hoplite-node", "hoplite-bulk"}  # those that move bytes between nodes
WARM_UP_ROUNDS = 2
SHARE_MIN = {"again": 0.85, "first": 0.35, "first, with prefault_bytes": 0.7}
SLEEPS_MAX = 1000  # of the receiver, for a GB
PREFAULT_S_MAX = 60.0


class PlainStream:
    """A running native/io/sockets/stream_bench.cc."""

    def __init__(self, size_bytes: int, buffer_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._process = subprocess.Popen(
            [find_built("stream_bench"), str(size_bytes), str(buffer_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def bytes_per_s(self) -> float:
        """Move all bytes once."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._size_bytes / float(self._process.stdout.readline())

    def close(self) -> None:
        """Have it end."""
        self._process.communicate()


@dataclass(frozen=True, slots=True)
class Spent:
    """Time and sleeps of a node's threads that move bytes."""

    run_s: float
    wait_s: float  # for a core
    sleeps: int

    @classmethod
    def by(cls, pid: int) -> Spent:
        """Read the kernel's counters."""
        run_ns = wait_ns = sleeps = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().strip() not in THREADS:
                continue
            run, wait, _ = map(int, (task / "schedstat").read_text().split())
            words = (task / "status").read_text().split("voluntary_ctxt_switches:")[1].split()
            run_ns, wait_ns, sleeps = run_ns + run, wait_ns + wait, sleeps + int(words[0])
        return cls(run_ns * 1e-9, wait_ns * 1e-9, sleeps)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.run_s - other.run_s, self.wait_s - other.wait_s, self.sleeps - other.sleeps
        )


@dataclass(slots=True)
class Pair:
    """Two nodes, and this process's stores at them."""

    near: Store
    far: Store
    pids: tuple[int, int]
    value: np.ndarray

    def bytes_per_s(self) -> float:
        """Put at one node, and time the get at the other."""
        object_id = new_id()
        self.near.put(object_id, self.value)
        begin_s = time.perf_counter()
        received = self.far.get(object_id, timeout_s=60.0)
        took_s = time.perf_counter() - begin_s
        assert received[0] == self.value[0] and received[-1] == self.value[-1]
        del received
        self.near.delete(object_id)
        return self.value.nbytes / took_s


@contextmanager
def start_pair(
    value: np.ndarray, arena_bytes: int, prefault_bytes: int = 0, io_threads: int = 0
) -> Iterator[Pair]:
    """Two nodes that have just started; with `prefault_bytes`, once they have made that memory."""
    nodes: list[NodeProcess] = []
    try:
        for _ in range(2):
            beside = nodes[0] if nodes else None
            nodes.append(
                NodeProcess.start(
                    beside=beside,
                    arena_bytes=arena_bytes,
                    listen=["127.0.0.1:0"] * max(io_threads, 1),
                    options={"prefault_bytes": prefault_bytes, "io_threads": io_threads},
                )
            )
        for node in nodes:
            wait_for_memory(node.process.pid, prefault_bytes)
        with Store.attach(nodes[0].socket) as near, Store.attach(nodes[1].socket) as far:
            yield Pair(near, far, (nodes[0].process.pid, nodes[1].process.pid), value)
    finally:
        for node in nodes:
            node.stop()


def wait_for_memory(pid: int, size_bytes: int) -> None:
    """Wait until a node's memory is at least that large."""
    deadline_s = time.monotonic() + PREFAULT_S_MAX
    while resident_bytes(pid) < size_bytes:
        if time.monotonic() > deadline_s:
            sys.exit(f"prefault_bytes is not done after {PREFAULT_S_MAX:.0f} s")
        time.sleep(0.1)


def resident_bytes(pid: int) -> int:
    """The memory of a process, with the part that it shares."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


@dataclass(slots=True)
class Measured:
    """All samples of a run."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    spent: dict[str, list[Spent]] = field(default_factory=lambda: defaultdict(list))

    def figures(self, size_bytes: int) -> list[Figure]:
        rows = []
        for (case, by), rates in self.rates.items():
            bound = statistics.median(self.rates[case, PLAIN])
            ours = by == OURS
            rows.append(
                Figure(
                    case=f"{size_bytes / MIB:.0f} MiB to the other node, {case}",
                    by=by,
                    unit="bytes/s",
                    samples=tuple(rates),
                    bound=bound if ours else None,
                    goal=SHARE_MIN[case] * bound if ours and case in SHARE_MIN else None,
                    is_more_better=True,
                )
            )
        for role, spent in self.spent.items():
            sleeps = tuple(each.sleeps for each in spent)
            goal = SLEEPS_MAX if role == "receiver" else None  # of a node without io_threads
            rows += [
                Figure(
                    case=f"{role}: run, for a GB",
                    unit="s",
                    samples=tuple(each.run_s for each in spent),
                ),
                Figure(
                    case=f"{role}: waits for a core, for a GB",
                    unit="s",
                    samples=tuple(each.wait_s for each in spent),
                ),
                Figure(case=f"{role}: sleeps, for a GB", unit="sleeps", samples=sleeps, goal=goal),
            ]
        return rows


def measure_again(
    measured: Measured,
    plain: Mapping[str, PlainStream],
    pair: Pair,
    rounds: int,
    case: str = "again",
) -> None:
    """Play rounds in turns with nodes whose memory is there."""
    of_case = "" if case == "again" else f", {case}"
    for _ in range(WARM_UP_ROUNDS):
        pair.bytes_per_s()
    for _ in range(rounds):
        before = [Spent.by(pid) for pid in pair.pids]
        measured.rates[case, OURS].append(pair.bytes_per_s())
        after = [Spent.by(pid) for pid in pair.pids]
        for by, stream in plain.items():
            measured.rates[case, by].append(stream.bytes_per_s())
        share = pair.value.nbytes / GB
        for role, then, now in zip(("sender", "receiver"), before, after, strict=True):
            spent = now - then
            measured.spent[role + of_case].append(
                Spent(spent.run_s / share, spent.wait_s / share, round(spent.sleeps / share))
            )


def measure_starts(
    measured: Measured, plain: PlainStream, value: np.ndarray, arena_bytes: int, starts: int
) -> None:
    """Time the first gets of nodes that have just started."""
    for _ in range(starts):
        for case, prefault_bytes in (("first", 0), ("first, with prefault_bytes", arena_bytes)):
            with start_pair(value, arena_bytes, prefault_bytes) as pair:
                measured.rates[case, OURS].append(pair.bytes_per_s())
                measured.rates[case, PLAIN].append(plain.bytes_per_s())


def main() -> None:
    """Print a table, and JSON lines if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9, help="of nodes whose memory is there")
    parser.add_argument("--starts", type=int, default=3, help="pairs of nodes for the first gets")
    parser.add_argument(
        "--io-threads", type=int, nargs="+", help="compare these values of the option io_threads"
    )
    parser.add_argument("--json", action="store_true", help="add a line of JSON for each figure")
    parser.add_argument("--toy", action="store_true", help="seconds, for the gate: proves it runs")
    options = parser.parse_args()
    if options.toy:
        options.size_mib, options.rounds, options.starts = 8, 1, 1
    size_bytes = options.size_mib * MIB
    arena_bytes = 2 * size_bytes + 64 * MIB
    value = np.frombuffer(np.random.default_rng(0).bytes(size_bytes), np.uint8)
    measured = Measured()
    plain = {PLAIN: PlainStream(size_bytes, MIB), FROM_MEMORY: PlainStream(size_bytes, size_bytes)}
    if options.io_threads:
        for _ in range(options.starts):
            for count in options.io_threads:
                with start_pair(value, arena_bytes, io_threads=count) as pair:
                    measure_again(measured, plain, pair, options.rounds, f"io_threads={count}")
    else:
        measure_starts(measured, plain[PLAIN], value, arena_bytes, options.starts)
        with start_pair(value, arena_bytes) as pair:
            measure_again(measured, plain, pair, options.rounds)
    for stream in plain.values():
        stream.close()
    figures = measured.figures(size_bytes)
    for row in figures:
        assert row.median is not None
        share = f"{row.median / row.bound:5.2f} of it" if row.bound else ""
        missed = "MISSED" if row.misses_its_goal() else ""
        print(f"{row.case:56} {row.by:42} {value_text(row.median, row.unit):>12} {share} {missed}")
    if options.json:
        print_figures("fast_link", figures, machine())


if __name__ == "__main__":
    main()
