"""How soon a node knows that a peer is gone, killed at 3 GiB or cut off; and that it loses nothing
of one that reads nothing for 10 s.

    python benchmarks/death.py

The killed peer also has an ordinary TCP connection to this process, whose end is what any other
program would see: Linux frees the memory first. Its pages are of 4 KiB and all touched. The cut is
of the cable between two nodes in network namespaces, and needs root.

`--hold-s 600` instead lets three nodes exchange objects for so long while all cores are busy, and
counts their suspicions and false deaths; `--burners 0` if other programs keep the cores busy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from cluster import Cluster, why_impossible
from figures import OURS, Figure, print_figures
from holding import held, reactor_of, stopped
from meters import machine

from hoplite_ray import _native
from hoplite_ray.launch import NodeProcess
from hoplite_ray.store import Store, new_id

GIB, MIB = 1 << 30, 1 << 20
ARENA_BYTES = 128 * MIB
OBJECT_BYTES = 96 * MIB
CONNECTIONS = 3  # control, bulk, liveness
# Small blocks, one at a time: a transfer that lasts until the kill.
SLOW = {"block_bytes_max": 8192, "credit_blocks_min": 1, "credit_bytes": 8192}
LIMIT_S = 30.0

VICTIM = """
import json, mmap, socket, sys
import numpy as np
from hoplite_ray import _native
from hoplite_ray.store import Store
asked = json.loads(sys.stdin.readline())
node = _native.NativeNode(
    node_id=2, incarnation=asked["incarnation"], socket_path=asked["socket"],
    listen=["127.0.0.1:0"], arena_bytes=asked["arena_bytes"],
    secret=bytes.fromhex(asked["secret"]), options=asked["options"])
node.start()
own = (2, asked["incarnation"], node.rails())
node.set_view(asked["epoch"], [(1, 1, asked["rails"]), own])
plain = socket.create_connection(tuple(asked["plain"]))
memory = mmap.mmap(-1, asked["bytes"], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(15)  # MADV_NOHUGEPAGE
memory.madvise(23)  # MADV_POPULATE_WRITE
if asked["object"]:
    store = Store.attach(asked["socket"])
    store.put(bytes.fromhex(asked["object"]), np.ones(asked["object_bytes"], np.uint8))
print(json.dumps(node.rails()), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Detection times of one kind of death."""

    case: str
    ours_s: tuple[float, ...]
    plain_s: tuple[float, ...]  # of a plain socket of the same process
    load: float

    @classmethod
    def of(cls, case: str, ours: Sequence[float], plain: Sequence[float]) -> Row:
        return cls(case, tuple(ours), tuple(plain), os.getloadavg()[0])

    @property
    def n(self) -> int:
        return len(self.ours_s)

    @property
    def line(self) -> str:
        text = f"{self.case}: median {statistics.median(self.ours_s) * 1e3:.1f} ms, "
        text += f"p95 {p95(self.ours_s) * 1e3:.1f} (n = {self.n}, load {self.load:.1f})"
        if self.plain_s:
            text += f"; plain socket {statistics.median(self.plain_s) * 1e3:.1f} "
            text += f"and {p95(self.plain_s) * 1e3:.1f}"
        return text

    def figures(self) -> list[Figure]:
        taken = {OURS: self.ours_s, "plain socket": self.plain_s}
        return [
            Figure(case=case, by=by, unit="s", samples=samples)
            for by, all_samples in taken.items()
            if all_samples
            for case, samples in (
                (self.case, all_samples),
                (f"{self.case}: p95", (p95(all_samples),)),
            )
        ]


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[-(-len(values) * 95 // 100) - 1]


class Observer:
    """A node in this process, which sees one peer after the other die. A context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hoplite-")
        self._secret = secrets.token_bytes(32)
        self._node = _native.NativeNode(
            node_id=1,
            incarnation=1,
            socket_path=self._socket("observer"),
            listen=["127.0.0.1:0"],
            arena_bytes=ARENA_BYTES,
            secret=self._secret,
            options=SLOW,
        )
        self._node.start()
        self._store = Store.attach(self._socket("observer"))
        self._plain = socket.create_server(("127.0.0.1", 0))
        self._life = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.close()
        self._node.stop()
        self._plain.close()
        self._folder.cleanup()

    def see(self, *, size_bytes: int, in_transfer: bool) -> tuple[float, float]:
        """Kill a peer of that size; returns when its death and its plain connection's end came."""
        self._life += 1
        before = self._node.stats()
        object_id = new_id()
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert victim.stdin is not None
        assert victim.stdout is not None
        with victim, contextlib.ExitStack() as held:
            held.callback(victim.kill)
            asked = {
                "incarnation": self._life,
                "epoch": self._life,
                "socket": self._socket(f"victim{self._life}"),
                "rails": self._node.rails(),
                "secret": self._secret.hex(),
                "plain": self._plain.getsockname(),
                "arena_bytes": ARENA_BYTES,
                "bytes": size_bytes,
                "object": object_id.hex() if in_transfer else "",
                "object_bytes": OBJECT_BYTES,
                "options": SLOW,
            }
            victim.stdin.write(json.dumps(asked).encode() + b"\n")
            victim.stdin.flush()
            plain, _ = self._plain.accept()
            held.enter_context(plain)
            rails = json.loads(victim.stdout.readline())
            members = [(1, 1, self._node.rails()), (2, self._life, rails)]
            self._node.set_view(self._life, members)
            self._wait("link_handshakes", before["link_handshakes"] + CONNECTIONS)
            if in_transfer:
                pending = self._store.begin_get(object_id)
                held.callback(pending.cancel)
                self._wait("blocks_received", before["blocks_received"] + 100)
            return self._kill(victim.pid, plain)

    def _socket(self, name: str) -> str:
        return f"{self._folder.name}/{name}.sock"

    def _wait(self, counter: str, least: int) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while self._node.stats()[counter] < least:
            if time.monotonic() > limit_s:
                raise TimeoutError(f"{counter} stayed below {least}")
            time.sleep(0.005)

    def _kill(self, pid: int, plain: socket.socket) -> tuple[float, float]:
        plain.settimeout(LIMIT_S)
        ended_s: list[float] = []

        def wait_for_end() -> None:
            with contextlib.suppress(ConnectionResetError):
                plain.recv(1)
            ended_s.append(time.monotonic())

        waiting = threading.Thread(target=wait_for_end)
        waiting.start()
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        event = self._node.next_event(LIMIT_S)
        known_s = time.monotonic()
        if event != ("peer_dead", 2, self._life):
            raise RuntimeError(f"expected the death of life {self._life}, heard {event}")
        waiting.join()
        return known_s - killed_s, ended_s[0] - killed_s


def kills(count: int, size_bytes: int) -> list[Row]:
    """Kill `count` idle peers and as many in mid-transfer, in turns."""
    seen: dict[str, list[tuple[float, float]]] = {"idle": [], "mid-transfer": []}
    with Observer() as observer:
        for _ in range(count):
            for case, deaths in seen.items():
                deaths.append(observer.see(size_bytes=size_bytes, in_transfer=case != "idle"))
    return [
        Row.of(
            f"killed at {size_bytes / GIB:.1f} GiB, {case}",
            [ours for ours, _ in deaths],
            [plain for _, plain in deaths],
        )
        for case, deaths in seen.items()
    ]


DEAD = re.compile(r"node \w+ of incarnation \d+ is dead: (.*)")


def cuts(count: int) -> Row:
    """Pull the cable of one of two nodes, `count` times; both must notice."""
    taken_s = []
    for _ in range(count):
        with Cluster(2, rate_mbit=500, arena_bytes=64 * MIB) as cluster:
            logs = [node.directory / "node.log" for node in cluster.nodes]
            for rank, node in enumerate(cluster.nodes):
                while counters(node, cluster.network.within(rank))["link_handshakes"] < CONNECTIONS:
                    pass
            cut_s = time.monotonic()
            cluster.network.cut(1)
            for log in logs:
                while (found := DEAD.search(log.read_text())) is None:
                    if time.monotonic() > cut_s + LIMIT_S:
                        raise TimeoutError("a cut cable was never noticed")
                    time.sleep(0.001)
                if found[1] != "no rail reaches it any more":
                    raise RuntimeError(f"the wrong verdict: {found[1]}")
                taken_s.append(time.monotonic() - cut_s)
    return Row.of("cable cut, seen from each end", taken_s, [])


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy with processes that only compute."""
    burners = [
        multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
        for _ in range(count)
    ]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()


def _burn() -> None:
    while True:
        sum(range(100_000))


def hold(seconds: float, burners: int) -> dict[str, int]:
    """Let three nodes exchange objects on busy cores; returns what their counters say of deaths."""
    nodes: list[NodeProcess] = []
    totals = {"peers_suspected": 0, "peers_dead": 0, "links_down": 0, "gets": 0}
    try:
        for _ in range(3):
            beside = nodes[0] if nodes else None
            nodes.append(NodeProcess.start(beside=beside, arena_bytes=64 * MIB))
        stores = [Store.attach(node.socket) for node in nodes]
        array = np.arange(MIB, dtype=np.uint8)
        with busy_cores(burners):
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                for giver, taker in ((0, 1), (1, 2), (2, 0)):
                    object_id = new_id()
                    stores[giver].put(object_id, array, timeout_s=LIMIT_S)
                    stores[taker].get(object_id, timeout_s=LIMIT_S)
                    stores[giver].delete(object_id, timeout_s=LIMIT_S)
                    totals["gets"] += 1
                time.sleep(0.05)
        for node in nodes:
            counted = counters(node)
            for name in ("peers_suspected", "peers_dead", "links_down"):
                totals[name] += counted[name]
    finally:
        for node in nodes:
            node.stop()
    return totals


def still(seconds: float) -> Iterator[str]:
    """Let a peer read nothing for so long while both fetch from each other; yields what came of it.

    A peer whose liveness thread runs is busy, never dead. A peer that is stopped as a whole counts
    as frozen after `liveness_dead_ms`; this option is raised, so that the peer stays a member.
    """
    patient = {"liveness_dead_ms": round(1000 * (3 * seconds + LIMIT_S))}
    cases = [
        ("its reactor is held", {}, lambda pid: held(reactor_of(pid))),
        ("all of it is stopped", patient, stopped),
    ]
    array = np.random.default_rng(0).integers(0, 256, OBJECT_BYTES, np.uint8)
    for case, more, holds in cases:
        options = {**SLOW, **more}
        with contextlib.ExitStack() as stack:
            here = NodeProcess.start(arena_bytes=4 * OBJECT_BYTES, options=options)
            stack.callback(here.stop)
            peer = NodeProcess.start(beside=here, arena_bytes=4 * OBJECT_BYTES, options=options)
            stack.callback(peer.stop)
            stores = [stack.enter_context(Store.attach(node.socket)) for node in (here, peer)]
            ids = [new_id(), new_id()]
            for store, object_id in zip(stores, ids, strict=True):
                store.put(object_id, array, timeout_s=LIMIT_S)
            gets = [
                store.begin_get(each) for store, each in zip(stores, reversed(ids), strict=True)
            ]
            with holds(peer.process.pid):
                time.sleep(seconds)
                landed = counters(here)["blocks_received"]
            came = [get.result(LIMIT_S).value for get in gets]
            ends = [counters(node) for node in (here, peer)]
            lost = sum(end["peers_dead"] + end["links_down"] for end in ends)
            if lost or not all(np.array_equal(each, array) for each in came):
                raise RuntimeError(f"{lost} deaths and broken links, or wrong bytes, after: {case}")
            yield (
                f"{case} for {seconds:.0f} s when {landed / ends[0]['blocks_received']:.0%} had "
                f"come: all came afterwards, nobody died, {ends[0]['peers_suspected']} times "
                f"suspected (load {os.getloadavg()[0]:.1f})"
            )


COUNTERS = """
import asyncio, json, sys
from hoplite_ray.control.client import ControlClient
async def ask():
    calls = ControlClient(bytes.fromhex(sys.argv[2]))
    print(json.dumps(await calls.stats(sys.argv[1])))
    await calls.close()
asyncio.run(ask())
"""


def counters(node: NodeProcess, within: Sequence[str] = ()) -> dict[str, int]:
    """Ask a node, from within its namespace, for its counters."""
    ask = [*within, sys.executable, "-c", COUNTERS, node.control, node.secret.hex()]
    answer: dict[str, int] = json.loads(subprocess.check_output(ask))
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="of each kind")
    parser.add_argument("--gib", type=float, default=3.0, help="of the killed process")
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("--hold-s", type=float, help="count false deaths for so long instead")
    parser.add_argument("--still-s", type=float, default=10.0, help="that a peer reads nothing")
    parser.add_argument("--burners", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--json", action="store_true", help="add a line for each figure")
    parser.add_argument("--toy", action="store_true", help="a size that proves only that it runs")
    asked = parser.parse_args()
    where = machine()
    print(", ".join(f"{what} {value}" for what, value in where.items()))
    if asked.hold_s is not None:
        counted = hold(asked.hold_s, asked.burners)
        print(f"{asked.hold_s:.0f} s, load {os.getloadavg()[0]:.1f}: {counted}")
        return 0
    sizes = (asked.kills, asked.gib, asked.cuts, asked.still_s)
    count, gib, cut, still_s = (2, 0.25, 1, 1.0) if asked.toy else sizes
    for line in still(still_s):
        print(line, flush=True)
    rows = kills(count, round(gib * GIB))
    impossible = why_impossible()
    if impossible is None:
        rows.append(cuts(cut))
    else:
        print(f"no cable was cut: {impossible}")
    for row in rows:
        print(row.line)
    if asked.json:
        print_figures("death", [each for row in rows for each in row.figures()], where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
