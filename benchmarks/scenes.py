"""Scenes: a collective, its size, and how the nodes come to it.

The bounds are those of bounds.py; seconds count from the moment when the last node comes.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import bounds
from meters import Meters, Usage
from ranks import OBJECTS, Rank, RankError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COLLECTIVES = ("round_trip", "broadcast", "gather", "reduce", "allreduce", "allgather", "objects")
LEAD_S = 0.05  # from telling the ranks to the start, so that all have read their part
SLOW_SHARE = 0.25  # of the normal rate: the rate of a slow link
_MEMORY_SHARE_MAX = 0.7  # of the free memory; a scene that needs more is not played


class Variant(StrEnum):
    """How the nodes come to a collective, and what happens to them meanwhile."""

    PLAIN = "plain"  # all at once
    WAITS = "waits"  # the receivers ask before the object exists
    STAGGERED = "staggered"  # one after the other, the last one S/B after the first
    LATE = "late"  # the last one S/B after all others
    SLOW_LINK = "slow link"  # all at once, the middle node's link at a quarter of its rate
    DEATH = "death"  # all at once; half-way a node that relays the object is killed


@dataclass(frozen=True, slots=True)
class Scene:
    """One collective of float32 objects of `size_bytes`."""

    collective: str
    size_bytes: int  # of one object; of a gather and of many objects, of each
    variant: Variant = Variant.PLAIN
    nodes: int = 8
    rate_mbit: float = 500

    @property
    def hop_s(self) -> float:
        """S/B."""
        return bounds.hop_s(self.size_bytes, rate_mbit=self.rate_mbit)

    @property
    def _where(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "rate_mbit": self.rate_mbit}

    @property
    def bound_s(self) -> float:
        """The least possible time, from the arrival of the last node."""
        if self.variant in (Variant.STAGGERED, Variant.LATE):
            return self.hop_s  # whatever came before, the last one's object has to be carried
        match self.collective:
            case "round_trip":
                return 2 * self.hop_s
            case "broadcast" | "reduce":
                return self.hop_s
            case "objects":
                return OBJECTS * self.hop_s
            case "allreduce":
                return bounds.allreduce_s(self.size_bytes, **self._where)
            case "gather" | "allgather":
                return bounds.gather_s(self.size_bytes, **self._where)
        raise ValueError(f"no such collective: {self.collective}")

    @property
    def moved_bytes(self) -> int:
        """The least bytes of objects that cross all links together, by any algorithm."""
        others = self.nodes - 1
        match self.collective:
            case "round_trip":
                return 2 * self.size_bytes
            case "broadcast" | "reduce" | "gather":
                return others * self.size_bytes
            case "allreduce":
                return 2 * others * self.size_bytes
            case "allgather":
                return self.nodes * others * self.size_bytes
            case "objects":
                return self.nodes * OBJECTS * self.size_bytes
        raise ValueError(f"no such collective: {self.collective}")

    @property
    def arrivals_s(self) -> list[float]:
        """Each rank's arrival, after the first; a broadcast's origin is there from the start."""
        if self.variant == Variant.LATE:
            return [0.0] * (self.nodes - 1) + [self.hop_s]
        if self.variant != Variant.STAGGERED:
            return [0.0] * self.nodes
        if self.collective == "broadcast":
            return [0.0, *(self.hop_s * i / (self.nodes - 1) for i in range(self.nodes - 1))]
        return [self.hop_s * i / (self.nodes - 1) for i in range(self.nodes)]

    @property
    def node_bytes(self) -> int:
        """The bytes that a node's store needs for the scene, with a margin."""
        if self.collective in ("gather", "allgather"):
            return (self.nodes + 2) * self.size_bytes
        if self.collective == "objects":
            return 4 * OBJECTS * self.size_bytes
        return max(4 * self.size_bytes, min(8 * self.size_bytes, 256 * MIB))

    @property
    def why_not(self) -> str | None:
        """Say why this machine's memory is too small for all nodes; None if it suffices."""
        factor = {"broadcast": 2, "round_trip": 2, "gather": 4, "allgather": 2 * self.nodes}
        needed = factor.get(self.collective, 3) * self.nodes * self.size_bytes
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > _MEMORY_SHARE_MAX * free:
            return f"needs {needed / GIB:.0f} GiB of memory, of which {free / GIB:.0f} are free"
        return None

    @property
    def slow_rank(self) -> int | None:
        """The node whose link is slow."""
        return self.nodes // 2 if self.variant == Variant.SLOW_LINK else None

    @property
    def receivers(self) -> list[int]:
        """The ranks whose finish counts: those that receive, except the one on a slow link."""
        match self.collective:
            case "broadcast":
                ranks = range(1, self.nodes)
            case "allreduce" | "allgather" | "objects":
                ranks = range(self.nodes)
            case _:
                ranks = range(1)
        return [rank for rank in ranks if rank != self.slow_rank]

    def sample(self, ended_s: dict[int, float], usage: Usage) -> Sample:
        """Make a sample from each rank's end, in seconds after the arrival of the first rank."""
        last_s = max(ended_s[rank] for rank in self.receivers if rank in ended_s)
        return Sample(last_s - max(self.arrivals_s), ended_s, usage)


@dataclass(frozen=True, slots=True)
class Sample:
    """One play of a collective: its time, each rank's end, and the resources used."""

    seconds: float
    ended_s: dict[int, float]  # by rank, after the start
    usage: Usage


class Contender(ABC):
    """A store or library that plays scenes on the emulated network."""

    peer: str  # its name in the table
    level: str  # "store": processes on the network; "ray": tasks of Ray

    def why_not(self, scene: Scene) -> str | None:
        """Say why this scene can't be played; None if it can."""
        return None

    @abstractmethod
    def play(self, scene: Scene) -> Sample:
        """Play it, from a barrier to the last receiver's finish, and check the bytes afterwards.

        Raises:  RankError naming the rank that failed.
        """


class Play:
    """Calls that ranks are told beforehand and make at a given time."""

    def __init__(self, ranks: Sequence[Rank], meters: Meters) -> None:
        self._ranks = ranks
        self._meters = meters
        self._start_s = time.monotonic() + LEAD_S
        self._told: list[int] = []
        self._faults: list[tuple[float, Callable[[], int]]] = []

    def tell(self, rank: int, verb: str, *, after_s: float = 0.0, **arguments: Any) -> None:
        """Have `rank` call `verb` `after_s` after the start."""
        self._ranks[rank].tell(verb, at_s=self._start_s + after_s, **arguments)
        self._told.append(rank)

    def fault(self, after_s: float, deed: Callable[[], int]) -> None:
        """Call `deed` `after_s` after the start; the rank that it returns may fail from then on."""
        self._faults.append((after_s, deed))

    def finish(self) -> tuple[dict[int, float], Usage]:
        """Return each rank's end, in seconds after the start, and the resources used.

        Raises:  RankError naming the rank that failed, once all have answered.
        """
        time.sleep(max(0.0, self._start_s - time.monotonic()))
        self._meters.restart()
        excused = set()
        for after_s, deed in self._faults:
            time.sleep(max(0.0, self._start_s + after_s - time.monotonic()))
            excused.add(deed())
        ended: dict[int, float] = {}
        failures = []
        for rank in self._told:
            try:
                ended[rank] = self._ranks[rank].answer() - self._start_s
            except RankError as error:
                if rank not in excused:
                    failures.append(f"rank {rank}: {error}")
        usage = self._meters.usage()
        if failures:
            raise RankError("; ".join(failures))
        return ended, usage
