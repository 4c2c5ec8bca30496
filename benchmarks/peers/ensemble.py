"""Peers that are one process per node, each of which takes part in every collective: MPI, Gloo."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
from meters import Links, Meters
from network import Network
from ranks import Rank, RankError, check, sleep_until, values
from scenes import SLOW_SHARE, Contender, Play, Sample, Scene, Variant

Array = npt.NDArray[np.float32]


class Ensemble(Contender):
    """A peer of one process per node. Buffers are filled before the clock starts."""

    level = "store"

    def __init__(self, peer: str, network: Network, ranks: Sequence[Rank], links: Links) -> None:
        self.peer = peer
        self._network = network
        self._ranks = ranks
        self._failure: str | None = None
        self._meters = Meters(links, lambda: [rank.pid for rank in ranks])

    def why_not(self, scene: Scene) -> str | None:
        """Refuse scenes with a wait for a put, many objects or a death; else return None."""
        if self._failure is not None:
            return self._failure
        match scene.variant:
            case Variant.WAITS:
                return "has no put"
            case Variant.DEATH:
                return "ends with its rank"
        if scene.collective == "objects":
            return "has no objects"
        return None

    def play(self, scene: Scene) -> Sample:
        """Have each rank call the collective at its arrival time.

        Raises:  RankError. The other ranks may then wait for each other without end, so
                 that this peer plays nothing more.
        """
        try:
            return self._play(scene)
        except RankError as error:
            self._failure = f"has failed before: {error}"
            raise

    def _play(self, scene: Scene) -> Sample:
        what = {"collective": scene.collective, "size_bytes": scene.size_bytes}
        for rank in self._ranks:
            rank.tell("prepare", **what)
        self._answers()
        slow = scene.slow_rank
        with nullcontext() if slow is None else self._network.slowed(slow, SLOW_SHARE):
            play = Play(self._ranks, self._meters)
            for rank, after_s in enumerate(scene.arrivals_s):
                play.tell(rank, "take_part", after_s=after_s)
            sample = scene.sample(*play.finish())
        for rank in self._ranks:
            rank.tell("check")
        self._answers()
        return sample

    def _answers(self) -> None:
        for number, rank in enumerate(self._ranks):
            try:
                rank.answer()
            except RankError as error:
                raise RankError(f"rank {number}: {error}") from error


class Member(ABC):
    """One rank of an ensemble, in its process."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self._deed: Callable[[], object] | None = None
        self._result: Array | None = None
        self._check: Callable[[Array], None] | None = None

    @abstractmethod
    def deed(self, collective: str, own: Array, result: Array | None) -> Callable[[], object]:
        """Return what takes part: `own` goes in, `result` comes out where there is one.

        `own` may be written into. The result of a gather is of all ranks' size.
        """

    def prepare(self, *, collective: str, size_bytes: int) -> None:
        """Make and fill the buffers of the next collective."""
        own = values(size_bytes, self.rank).copy()
        self._result = None
        if self._receives(collective):
            gathers = collective in ("gather", "allgather")
            self._result = np.zeros(own.size * (self.count if gathers else 1), np.float32)
        self._check = self._checks(collective)
        self._deed = self.deed(collective, own, self._result)

    def take_part(self, *, at_s: float) -> float:
        """Call the collective at `at_s`; return when it ended."""
        assert self._deed is not None
        sleep_until(at_s)
        self._deed()
        return time.monotonic()

    def check(self) -> None:
        """Check the result, and free the buffers."""
        if self._result is not None:
            assert self._check is not None
            self._check(self._result)
        self._deed = self._result = None

    def _receives(self, collective: str) -> bool:
        match collective:
            case "broadcast":
                return self.rank != 0
            case "allreduce" | "allgather":
                return True
            case "round_trip":
                return self.rank < 2
        return self.rank == 0

    def _checks(self, collective: str) -> Callable[[Array], None]:
        match collective:
            case "reduce" | "allreduce":
                total = self.count * (self.count - 1) // 2
                return lambda result: check(result, count=self.count, addend=total)
            case "gather" | "allgather":
                return self._check_gathered
        return lambda result: check(result, count=1, addend=0)

    def _check_gathered(self, result: Array) -> None:
        for rank, each in enumerate(np.split(result, self.count)):
            check(each, count=1, addend=rank)
