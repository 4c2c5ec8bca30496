"""An hour of random kills under Ray, with more to read than the arenas hold: what is lost, and why.

    python benchmarks/soak.py --minutes 60 --objects 1000

Tasks all over a local cluster make objects, readers on every node read them, reduces combine them,
and handles are dropped, while workers, stewards, nodes (the oldest too, which proposes the views)
and whole Ray nodes are killed. Every read has to end with the right bytes, or with an
ObjectLostError of an object whose node, or its steward, had died since it was made: a dead
steward's objects are evicted where there is need for room. At the end all handles go:
nothing may stay pinned, and what stays to be evicted has to go as soon as there is need for room.
Prints one line of JSON; the exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from meters import machine
from ray.cluster_utils import Cluster

import hoplite_ray as hop
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.node.start import node_name
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation

FLOATS = (1_000, 25_000, 50_000)  # within a message, in blocks, in more blocks
SHARES = (50, 35, 15)
OVERCOMMITTED = 4  # all objects, against one arena: every reader's node wants them all
PINNED = 0.5  # of an arena, by what tasks make there: that is not evicted
LIMIT_S = 60.0  # of a get; one that reaches it counts as hung
HEARD_S = 30.0  # from the others' view of a node's death to its own next life
EMPTY_S = 60.0  # from the last handle's end to the last byte's
READ_AT_ONCE = 20


def numbers(seed: int, floats: int) -> np.ndarray[Any, Any]:
    """Return whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(0, 1000, floats).astype(np.float32)


@ray.remote(num_cpus=0, max_retries=-1)
def make(seed: int, floats: int) -> Any:
    return hop.array(numbers(seed, floats))


@ray.remote(num_cpus=0, max_restarts=-1)
class Reader:
    """A process on one Ray node that reads what all of them have made."""

    def pid(self) -> int:
        return os.getpid()

    def read(self, refs: list[Any], expected: list[tuple[int, int]]) -> list[str]:
        """How each read has ended: "right", "lost ..." or what is wrong."""
        return [_read(ref, numbers(*each)) for ref, each in zip(refs, expected, strict=True)]


def _read(ref: Any, expected: np.ndarray[Any, Any]) -> str:
    try:
        return "right" if np.array_equal(hop.get(ref, timeout_s=LIMIT_S), expected) else "wrong"
    except hop.ObjectLostError as error:
        return f"lost: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Kept:
    """One object: its ref, what is in it, where it was made, and since when."""

    ref: Any
    seed: int
    floats: int
    rank: int
    since_s: float


@dataclass
class Soak:
    """A cluster, what lives in it, and what has become of the rest."""

    cluster: Cluster
    ranks: int
    random: random.Random
    objects: int
    nodes: dict[int, Any] = field(default_factory=dict)  # Ray's, but for the head
    kept: list[Kept] = field(default_factory=list)
    died_s: dict[int, float] = field(default_factory=dict)  # by rank, the last time
    lives: dict[Path, tuple[int, int]] = field(default_factory=dict)  # of nodes, the last seen
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def on(self, rank: int, share: float) -> dict[str, Any]:
        """Options that place something there, beside others until their shares make 1."""
        return {"num_cpus": 0, "resources": {f"n{rank}": share}}

    def fill(self) -> None:
        """Make objects until there are as many as there should be."""
        made = [sum(k.floats for k in self.kept if k.rank == rank) for rank in range(self.ranks)]
        while len(self.kept) < self.objects:
            rank, seed = made.index(min(made)), self.random.getrandbits(31)
            [floats] = self.random.choices(FLOATS, SHARES)
            made[rank] += floats
            ref = make.options(**self.on(rank, 0.4)).remote(seed, floats)
            self.kept.append(Kept(ref, seed, floats, rank, time.monotonic()))
            self.seen["made"] += 1

    def drop(self, share: float) -> None:
        self.random.shuffle(self.kept)
        del self.kept[: int(share * len(self.kept))]

    def read(self, readers: list[Any], each: int) -> None:
        """Have every reader read some of them, all at once."""
        asked = []
        for reader in readers:
            batch = self.random.sample(self.kept, min(each, len(self.kept)))
            expected = [(kept.seed, kept.floats) for kept in batch]
            answer = reader.read.remote([kept.ref for kept in batch], expected)
            asked.append((batch, answer))
        lost: set[int] = set()
        ended = []
        for batch, answer in asked:
            try:
                ends = ray.get(answer, timeout=2 * LIMIT_S)
            except ray.exceptions.GetTimeoutError:
                self.failures.append(f"a reader has not answered for {2 * LIMIT_S:.0f} s")
                continue
            except ray.exceptions.RayError:  # it died, and begins again
                self.seen["readers died"] += 1
                continue
            ended += zip(batch, ends, strict=True)
        self._hear_of_deaths([kept for kept, end in ended if end.startswith("lost")])
        for kept, end in ended:
            if self._judge(kept, end):
                lost.add(id(kept))
        self.kept = [kept for kept in self.kept if id(kept) not in lost]

    def _hear_of_deaths(self, lost: list[Kept]) -> None:
        """Note deaths until they explain the losses, because other nodes learn of a death first."""
        deadline_s = time.monotonic() + HEARD_S
        self.note_deaths()
        while not all(map(self._may_be_lost, lost)) and time.monotonic() < deadline_s:
            time.sleep(0.2)
            self.note_deaths()

    def _may_be_lost(self, kept: Kept) -> bool:
        return self.died_s.get(kept.rank, 0.0) > kept.since_s

    def _judge(self, kept: Kept, end: str) -> bool:
        """Count one read; returns whether the object is lost."""
        kind = end.partition(":")[0]
        self.seen[kind] += 1
        if kind != "right" and not (kind == "lost" and self._may_be_lost(kept)):
            self.failures.append(f"{kept.ref.hex()}, made on {kept.rank}: {end}")
        return kind == "lost"

    def note_deaths(self) -> None:
        """Find nodes with a new incarnation, also those that this program has not killed.

        A node that gets no processor for 3 s counts as dead for the others, as a frozen one does.
        """
        for directory, record in running():
            life = (record["pid"], record["incarnation"])
            before = self.lives.setdefault(directory, (life[0], 1))
            if life != before:
                self.lives[directory] = life
                self.died_s[rank_of(directory)] = time.monotonic()
            if life[0] == before[0] and life[1] > before[1]:
                self.seen["held for dead"] += life[1] - before[1]

    def reduce(self) -> None:
        """Add up three objects of one size."""
        floats = self.random.choice(FLOATS)
        chosen = [kept for kept in self.kept if kept.floats == floats][:3]
        expected = np.sum([numbers(kept.seed, kept.floats) for kept in chosen], axis=0)
        end = _read(hop.reduce([kept.ref for kept in chosen]), expected)
        if end.startswith("ReduceError") and any(kept.rank in self.died_s for kept in chosen):
            end = "reduce lost a source"
        elif end == "right":
            end = "reduced"
        else:
            self.failures.append(f"reduce of {floats} floats: {end}")
        self.seen[end.partition(":")[0]] += 1

    def kill(self, readers: list[Any]) -> None:
        """End one process, or one machine's worth of them."""
        what = self.random.choices([*KILLS], [*KILLS.values()])[0]
        self.seen[f"killed: {what}"] += 1
        rank = self.random.randrange(1, self.ranks)
        if what == "reader":
            with suppress(ray.exceptions.RayError):
                os.kill(ray.get(readers[rank].pid.remote(), timeout=LIMIT_S), signal.SIGKILL)
        elif what == "ray node":
            self.cluster.remove_node(self.nodes.pop(rank), allow_graceful=False)
            self.died_s[rank] = time.monotonic()
            self.nodes[rank] = add_node(self.cluster, rank)
        else:
            self._kill_ours(what)

    def _kill_ours(self, what: str) -> None:
        records = list(running())
        directory, record = self.random.choice(records)
        if what == "steward":
            with suppress(ValueError, FileNotFoundError, ray.exceptions.RayError):
                steward = ray.get_actor(directory.name, namespace="hoplite_ray")
                place = replace(attachment().place, directory=directory)
                life = StewardIncarnation.current(place)
                ray.kill(steward, no_restart=False)
                # Until then the steward still has what is made.
                while StewardIncarnation.current(place) == life:
                    time.sleep(0.05)
        else:
            if what == "oldest":
                directory, record = min(records, key=lambda each: _began(each[1]))
            with suppress(ProcessLookupError):
                os.kill(record["pid"], signal.SIGKILL)
        self.died_s[rank_of(directory)] = time.monotonic()

    def run(self, *, until_s: float, every_s: float) -> None:
        """Make, read, reduce, drop and kill."""
        readers = [Reader.options(**self.on(rank, 0.1)).remote() for rank in range(self.ranks)]
        next_kill_s = time.monotonic() + every_s
        while time.monotonic() < until_s and not self.failures:
            self.fill()
            self.read(readers, READ_AT_ONCE)
            self.reduce()
            self.drop(0.05)
            if time.monotonic() > next_kill_s:
                self.kill(readers)
                next_kill_s = time.monotonic() + every_s
        for _ in range(-(-len(self.kept) // READ_AT_ONCE) if not self.failures else 0):
            self.read(readers[:1], READ_AT_ONCE)
        for reader in readers:
            ray.kill(reader)

    def end(self, arena_bytes: int) -> dict[str, int]:
        """Drop everything; returns how many bytes stay in the arenas.

        Objects that a dead steward had anchored remain as copies without a pin, which any node may
        evict. They have to make room for one object on each node, as large as all that puts may
        fill: an eighth of an arena is for reduces alone (design decision 6).
        """
        pages = -(-arena_bytes // mmap.PAGESIZE)
        floats = (pages - pages // 8) * mmap.PAGESIZE // 4
        self.kept.clear()
        pinned = self._wait_for_none("arena_bytes_pinned")
        unpinned = self._left("arena_bytes_used")
        for rank in range(self.ranks) if not self.failures else ():
            ray.get(make.options(**self.on(rank, 0.4)).remote(0, floats), timeout=LIMIT_S)
        return {
            "left_pinned_bytes": pinned,
            "left_to_evict_bytes": unpinned,
            "left_bytes": self._wait_for_none("arena_bytes_used"),
        }

    def _left(self, counter: str) -> int:
        """Return a counter's sum over all nodes; -1 if one does not answer, as in a restart."""
        try:
            return sum(getattr(each, counter) for each in told())
        except hop.HopliteError:
            return -1

    def _wait_for_none(self, counter: str) -> int:
        deadline_s = time.monotonic() + EMPTY_S
        while left := self._left(counter):
            gc.collect()  # errors that were caught may keep frames, and these refs
            if time.monotonic() > deadline_s:
                self.failures.append(f"{counter} is still {left} after {EMPTY_S:.0f} s")
                break
            time.sleep(0.2)
        return left


KILLS = {"reader": 50, "steward": 10, "node": 20, "oldest": 5, "ray node": 15}


def _began(record: dict[str, Any]) -> float:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{record['pid']}").stat().st_ctime
    return time.time()


def running() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every running node's directory and record, of this session."""
    for file in attachment().place.directory.parent.glob("hoplite-*/node.json"):
        with suppress(FileNotFoundError, json.JSONDecodeError):
            record = json.loads(file.read_text())
            if Path(f"/proc/{record['pid']}").exists():
                yield file.parent, record


def rank_of(directory: Path) -> int:
    """Whose directory that is."""
    for node in ray.nodes():
        if node_name(node["NodeID"]) == directory.name:
            return next(int(name[1:]) for name in node["Resources"] if name[1:].isdigit())
    raise AssertionError(f"no Ray node has {directory}")


def told() -> list[NodeStats]:
    """Return the counters of every node."""
    return [
        NodeStats.read(record["control"], (directory / "secret").read_bytes().strip())
        for directory, record in running()
    ]


def add_node(cluster: Cluster, rank: int) -> Any:
    """One more Ray node, on which what asks for that rank runs."""
    return cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={f"n{rank}": 1})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=8, help="Ray nodes; the first is never killed")
    parser.add_argument("--every-s", type=float, default=5, help="between two kills")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--toy", action="store_true", help="a size that proves only that it runs")
    asked = parser.parse_args()
    if asked.toy:
        asked.minutes, asked.objects, asked.nodes, asked.every_s = 0.25, 150, 3, 6.0
    seed = random.SystemRandom().getrandbits(31) if asked.seed is None else asked.seed
    all_bytes = asked.objects * 4 * float(np.average(FLOATS, weights=SHARES))
    arena_bytes = int(all_bytes * max(1 / OVERCOMMITTED, 1 / PINNED / asked.nodes))
    head = {"num_cpus": 1, "object_store_memory": 80 << 20, "resources": {"n0": 1}}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
    try:
        soak = Soak(cluster, asked.nodes, random.Random(seed), asked.objects)
        for rank in range(1, asked.nodes):
            soak.nodes[rank] = add_node(cluster, rank)
        environment = {"hoplite": {"arena_bytes": arena_bytes}}
        ray.init(address=cluster.address, runtime_env=environment, log_to_driver=False)
        began_s = time.monotonic()
        soak.run(until_s=began_s + 60 * asked.minutes, every_s=asked.every_s)
        left = soak.end(arena_bytes)
        asked_for = {"arena_bytes": arena_bytes, "nodes": asked.nodes, "objects": asked.objects}
        asked_for |= {"minutes": (time.monotonic() - began_s) / 60, "seed": seed, **left}
        print(json.dumps({**machine(), **asked_for, "seen": soak.seen, "failures": soak.failures}))
        return 1 if soak.failures else 0
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
