"""The rows of docs/explain/lifetime.md: processes to kill, and what the arenas hold."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from hoplite_ray.errors import ControlError
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.client import steward_on
from hoplite_ray.store import Store, new_id
from tests.ray.raycluster import ARENA_BYTES, RayCluster, eventually

VERBS = ("put", "array", "empty", "reduce", "gather")
BYTES = 1 << 20  # of each array
PIECE_BYTES = 256 << 10  # smaller than an array: the room of one that may be evicted is needed
SETTLES_S = 90.0  # a crash of a Ray node is believed after 15, and its reduces are orphans 30 later
OWNER_DIED = "its owner had died and its memory was needed"

Row = dict[str, str]  # verb -> outcome


def make(verb: str) -> list[hop.Array]:
    """Something made by `verb`, as Arrays. Run by any process."""
    ones = np.ones(BYTES // 4, np.float32)
    if verb == "put":
        return [ray.get(hop.put(ones))]
    if verb == "array":
        return [hop.array(ones)]
    if verb == "empty":
        array = hop.empty(ones.shape, np.float32)
        array[...] = 1
        return [array]
    sources = [hop.put(ones / 2) for _ in range(2)]
    if verb == "reduce":
        return [ray.get(hop.reduce(sources))]
    return list(ray.get(hop.gather([ray.put(hop.array(ones))])))


Canary = tuple[str, bytes]  # Ray node id of a steward, and one of its anchors


def canary() -> tuple[Any, Canary]:
    """An anchor that only this process has: when it goes, Ray has seen that the process did."""
    here = attachment()
    anchor = here.anchors.take()
    return anchor, (here.place.ray_node_id, anchor.binary())


def await_end(of: Canary) -> None:
    """Wait until Ray knows that the process with that canary has gone, and what it borrowed."""
    node, anchor = of
    steward = steward_on(node)

    def has_gone() -> bool:
        known = ray.get(steward.__ray_call__.remote(lambda self: self._anchors))
        return anchor not in known

    assert eventually(has_gone, within_s=SETTLES_S)


@ray.remote(num_cpus=0)
class Process:
    """A maker or a borrower: it can make, keep, lend, read and drop, and it can be killed."""

    def __init__(self) -> None:
        self.kept: dict[str, list[hop.Array]] = {}

    def attach(self) -> None:
        """Attach as the first use does, so that no later step waits for the start of a process."""
        hop.delete(hop.array(np.zeros(BYTES, np.uint8)))

    def make(self, verb: str) -> list[hop.Array]:
        self.kept[verb] = make(verb)
        return self.kept[verb]

    def lend(self, verb: str, borrower: Any) -> None:
        if verb not in self.kept:
            self.kept[verb] = make(verb)
        ray.get(borrower.keep.remote(verb, self.kept[verb]))

    def keep(self, verb: str, arrays: list[hop.Array]) -> None:
        self.kept[verb] = arrays

    def read(self, verb: str) -> float | str:
        try:
            return float(sum(hop.get(each, timeout_s=60).mean() for each in self.kept[verb]))
        except ray.exceptions.ObjectLostError as error:
            return str(error)

    def drop(self) -> None:
        self.kept.clear()

    def canary(self) -> Canary:
        self.anchor, named = canary()
        return named

    def fill(self) -> None:
        """Put as much as this node takes beside what it must keep, and delete it."""
        store = Store(attachment().store)
        room = ARENA_BYTES // 8 * 7 - held(attachment().place.directory).pinned
        pieces = []
        try:
            for _ in range(room // PIECE_BYTES - 1):
                piece = new_id()
                store.put(piece, np.zeros(PIECE_BYTES, np.uint8), timeout_s=60)
                pieces.append(piece)
        finally:  # or a piece that finds no room would leave none to the tests that follow
            for each in pieces:
                store.delete(each)

    def pid(self) -> int:
        return os.getpid()

    def node_pid(self) -> int:
        record = (attachment().place.directory / "node.json").read_text()
        return int(json.loads(record)["pid"])

    def steward_pid(self) -> int:
        return int(ray.get(attachment().steward.__ray_call__.remote(lambda self: os.getpid())))

    def fork(self) -> list[str]:
        """Start a child that tries every call; it lives until this process is dead."""
        ref = ray.put(1)
        said, say = os.pipe()
        dead, _held = os.pipe()
        if os.fork() == 0:
            os.close(_held)
            attempts: list[Callable[[], Any]] = [
                lambda: hop.put(np.zeros(3)),
                lambda: hop.array(np.zeros(3)),
                lambda: hop.empty(3),
                lambda: hop.get(ref),
                lambda: hop.wait([ref]),
                lambda: hop.reduce([ref]),
                lambda: hop.gather([ref]),
                lambda: hop.delete(self.kept["array"]),
                lambda: hop.get(self.kept["array"]),
            ]
            for attempt in attempts:
                try:
                    attempt()
                except Exception as error:
                    os.write(say, f"{type(error).__name__}\n".encode())
            os.write(say, b"end\n")
            os.read(dead, 1)
            os._exit(0)
        with os.fdopen(said) as lines:
            return [line.strip() for line in iter(lines.readline, "end\n")]


@dataclass
class Crew:
    """Processes that outlive each row: one to fill each arena, and the borrower."""

    cluster: RayCluster
    name: str = field(default_factory=lambda: f"borrower-{new_id().hex()}")

    def __post_init__(self) -> None:
        here = {"namespace": "table", **self.cluster.on(2)}
        self.fillers = [Process.options(**self.cluster.on(node)).remote() for node in range(3)]
        self.borrower = Process.options(name=self.name, **here).remote()
        self.gate = Gate.options(name=f"{self.name}-gate", **here).remote()
        self._makers: list[Any] = []
        ray.get(self.borrower.attach.remote())

    def fill(self) -> None:
        ray.get([each.fill.remote() for each in self.fillers])

    def maker(self, node: int = 1) -> Any:
        """On node 1 one that the last row has left alive, if it has."""
        if node == 1 and self._makers:
            return self._makers.pop()
        maker = Process.options(**self.cluster.on(node)).remote()
        ray.get(maker.attach.remote())
        return maker

    def leave(self, maker: Any) -> None:
        """For the next row; it keeps nothing any more."""
        ray.get(maker.drop.remote())
        self._makers.append(maker)


@dataclass
class Bench:
    """One row: a borrower on one Ray node, makers on another, and what the arenas of all hold."""

    crew: Crew
    made: dict[str, int] = field(default_factory=dict)  # bytes that came with each verb
    left: dict[str, int] = field(default_factory=dict)  # ... of those, what can't be evicted
    orphaned: int = 0  # bytes of orphans, before they were evicted
    before: int = 0  # ... of earlier rows, whose memory no put has needed

    def __post_init__(self) -> None:
        self.cluster, self.borrower = self.crew.cluster, self.crew.borrower
        self.before = total().orphaned

    def lent_by(self, maker: Any) -> Callable[[str], None]:
        return lambda verb: ray.get(maker.lend.remote(verb, self.borrower))

    def lend(self, lend: Callable[[str], None], *, made_before: bool = False) -> None:
        """Have the borrower keep what is made with each verb."""
        for verb in VERBS:
            self.made[verb] = len(directories()) - 1 if verb == "reduce" else 1  # one per owner
            self.made[verb] *= BYTES
            lend(verb)
            if not made_before:
                expect(sum(self.made.values()), f"{verb} is made")

    def settle(self, row: Row, *, lent: bool = True) -> None:
        """Check each verb's outcome by the bytes of the arenas, and by what the borrower reads."""
        live, orphans, lost = (
            [verb for verb in VERBS if row[verb] == outcome]
            for outcome in ("live", "orphaned", "lost")
        )
        pinned = sum(self.made[verb] for verb in live)
        expect(pinned, "what is live stays, nothing else")
        self.left = {verb: self.made[verb] if verb in live else 0 for verb in VERBS}
        self.orphaned = total().orphaned
        assert self.orphaned >= sum(self.made[verb] for verb in orphans)
        if lent:
            self.expect_values(live + orphans)
        expect(pinned, "nothing is read any more, so all orphans may be evicted")
        self.crew.fill()
        evicted = [verb for verb in orphans if verb != "reduce"]  # that lies where no put may
        in_reserve = sum(self.made[verb] for verb in orphans if verb not in evicted)
        seen = total().orphaned
        told = f"orphans go first: {seen} bytes, not {self.before} and {in_reserve} in reserve"
        assert seen <= self.before + in_reserve, told
        if lent:
            self.expect_values(live)
            self.expect_lost(evicted, OWNER_DIED)
            self.expect_lost(lost, "object")

    def expect_values(self, verbs: list[str]) -> None:
        for verb in verbs:
            assert ray.get(self.borrower.read.remote(verb)) == 1.0, verb

    def expect_lost(self, verbs: list[str], why: str) -> None:
        for verb in verbs:
            assert why in str(ray.get(self.borrower.read.remote(verb))), verb

    def clear(self) -> None:
        ray.get(self.borrower.drop.remote())
        expect(0, "the last handles have gone")


def directories() -> list[Path]:
    """The directories of the running nodes."""
    return [each.parent for each in Path(seams.ray_directory()).glob("hoplite-*/node.json")]


@dataclass(frozen=True)
class Held:
    """Bytes of arenas that can't be evicted, and of orphans, which can."""

    pinned: int = 0
    orphaned: int = 0


def held(directory: Path) -> Held:
    control = json.loads((directory / "node.json").read_text())["control"]
    stats = NodeStats.read(control, (directory / "secret").read_bytes())
    return Held(stats.arena_bytes_pinned, stats.arena_bytes_orphaned)


def total() -> Held:
    """The sums over all arenas; -1 while a node does not answer."""
    try:
        each = [held(directory) for directory in directories()]
    except (ControlError, FileNotFoundError):
        return Held(-1, -1)
    return Held(sum(one.pinned for one in each), sum(one.orphaned for one in each))


def expect(pinned: int, why: str) -> None:
    seen: list[int] = []

    def is_so() -> bool:
        seen.append(total().pinned)
        return seen[-1] == pinned

    assert eventually(is_so, within_s=SETTLES_S), f"{why}: {seen[-1]} bytes, not {pinned}"


# A job of its own, which does what its input says and ends with it.
_JOB = """
import sys, numpy as np, ray, hoplite_ray as hop
from tests.ray.lifetimes import BYTES, VERBS, Process, canary, make
address, borrower, gate = sys.argv[1:]
ray.init(address=address, namespace="table", log_to_driver=False)
borrower, gate, kept = ray.get_actor(borrower), ray.get_actor(gate), []
anchor, (node, named) = canary()
print(node, named.hex(), flush=True)
for line in sys.stdin:
    order, verb = line.split()
    if order == "shutdown":
        ray.shutdown()
    elif order == "detach":
        node = {"num_cpus": 0, "resources": {"n1": 0.001}}
        kept = Process.options(name="detached", lifetime="detached", **node).remote()
        ray.get([kept.make.remote(each) for each in VERBS])
    elif order == "reduce":
        never = ray.get(gate.pending.remote())
        kept.append(hop.reduce([hop.put(np.ones(BYTES // 4, np.float32)), *never]))
    else:
        kept.append(make(verb))
        if order == "lend":
            ray.get(borrower.keep.remote(verb, kept[-1]))
    print("done", flush=True)
"""


@ray.remote(num_cpus=0)
class Gate:
    """Owns refs that are pending for ever."""

    async def passed(self) -> None:
        await asyncio.Event().wait()

    async def pending(self) -> list[ray.ObjectRef]:
        return [ray.get_runtime_context().current_actor.passed.remote()]


class Job:
    """A driver of its own, on the first Ray node."""

    def __init__(self, bench: Bench) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _JOB,
                bench.cluster.cluster.address,
                bench.crew.name,
                f"{bench.crew.name}-gate",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        node, anchor = self.process.stdout.readline().split()
        self.canary = node, bytes.fromhex(anchor)

    def say(self, order: str, verb: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{order} {verb}\n")
        self.process.stdin.flush()
        while (line := self.process.stdout.readline()) != "done\n":
            assert line, "the job has died"

    def end(self, *, killed: bool) -> None:
        if killed:
            self.process.kill()
        self.process.communicate()
        await_end(self.canary)
