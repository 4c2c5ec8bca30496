"""A cluster, its ranks and its meters: plays one collective at a time, and times it.

Every method is one collective of float32 objects of `size_bytes`, checked bit by bit afterwards.
All ranks are attached, and their sources put, before the clock starts, unless it says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from cluster import Cluster
from meters import Meters, Usage
from ranks import Rank, RankError

from hoplite_ray.store import new_id

LEAD_S = 0.05  # for everybody to have read what to do


@dataclass(frozen=True, slots=True)
class Sample:
    """One collective: how long it took by its own measure, each rank's end, and what it used."""

    seconds: float
    ended_s: dict[int, float]  # by rank, after the start
    usage: Usage


class Play:
    """Deeds that are told beforehand and done in their time."""

    def __init__(self, ranks: Sequence[Rank], meters: Meters) -> None:
        self._ranks = ranks
        self._meters = meters
        self._start_s = time.monotonic() + LEAD_S
        self._told: list[int] = []
        self._faults: list[tuple[float, Callable[[], int]]] = []

    def tell(self, rank: int, verb: str, *, after_s: float = 0.0, **arguments: Any) -> None:
        """Have `rank` do it that long after the start."""
        self._ranks[rank].tell(verb, at_s=self._start_s + after_s, **arguments)
        self._told.append(rank)

    def fault(self, after_s: float, deed: Callable[[], int]) -> None:
        """Do it in its time; what the rank that it returns was told may fail from then on."""
        self._faults.append((after_s, deed))

    def finish(self) -> tuple[dict[int, float], Usage]:
        """Return when each rank had done all, in seconds after the start, and what was used.

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


class Stage:
    """Where the collectives are played. A context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.count = cluster.network.count
        self._others = range(1, self.count)
        self._ranks: list[Rank] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.cluster)
            for rank, node in enumerate(self.cluster.nodes):
                self._ranks.append(Rank(self.cluster.network.within(rank)))
                self._stack.callback(self._ranks[-1].close)
                self._ranks[-1].tell("attach", node=node.socket)
            for each in self._ranks:
                each.answer()
            self._meters = Meters(self.cluster.nodes)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def broadcast(self, size_bytes: int, *, gap_s: float = 0.0, waits: bool = False) -> Sample:
        """From rank 0 to all others, which ask `gap_s` after each other; counts from the last.

        With `waits` all ask before the object is put, and it counts from the call of put.
        """
        object_id = new_id().hex()
        if not waits:
            self._put(0, object_id, size_bytes)
        play = self._play()
        if waits:
            for rank in self._others:
                play.tell(rank, "get", object_id=object_id, after_s=-LEAD_S)
            play.tell(0, "put", object_id=object_id, size_bytes=size_bytes, addend=0)
        else:
            for index, rank in enumerate(self._others):
                play.tell(rank, "get", object_id=object_id, after_s=index * gap_s)
        ended, usage = play.finish()
        last_s = (self.count - 2) * gap_s
        self._check_and_delete([object_id], self._others)
        return Sample(max(ended.values()) - last_s, ended, usage)

    def broadcast_to_a_slow_node(self, size_bytes: int, *, share: float) -> Sample:
        """One receiver's link, the middle one's, has `share` of the rate: how long for the rest."""
        network, slow = self.cluster.network, self.count // 2
        with network.slowed(slow, share):
            sample = self.broadcast(size_bytes)
        healthy = [s for rank, s in sample.ended_s.items() if rank not in (0, slow)]
        return Sample(max(healthy), sample.ended_s, sample.usage)

    def broadcast_past_a_death(self, size_bytes: int, *, after_s: float) -> Sample:
        """The receiver that has passed on the most is killed: how long for the rest."""
        object_id = new_id().hex()
        self._put(0, object_id, size_bytes)
        play = self._play()
        for rank in self._others:
            play.tell(rank, "get", object_id=object_id)
        killed: list[int] = []

        def kill() -> int:
            killed.append(max(self._others, key=self._meters.sent_bytes))
            self.cluster.kill(killed[0])
            return killed[0]

        play.fault(after_s, kill)
        try:
            ended, usage = play.finish()
            survivors = [rank for rank in self._others if rank not in killed]
            self._check_and_delete([object_id], survivors)
        finally:
            self._revive(killed[0], size_bytes)
        return Sample(max(ended[rank] for rank in survivors), ended, usage)

    def reduce(self, size_bytes: int, *, gap_s: float = 0.0) -> Sample:
        """The sum of all nodes' objects to rank 0.

        With a gap, rank 0 asks at once, and sources are put `gap_s` after each other: how long
        after the last put was called.
        """
        gaps = [index * gap_s for index in range(self.count)]
        return self._reduce(size_bytes, put_after_s=gaps if gap_s else None, readers=[0])

    def allreduce(self, size_bytes: int, *, late_s: float = 0.0) -> Sample:
        """The sum of all nodes' objects to everybody.

        With `late_s` the last one's put is called that long after the start: how long from there.
        """
        late = [0.0] * (self.count - 1) + [late_s] if late_s else None
        return self._reduce(size_bytes, put_after_s=late, readers=range(self.count))

    def gather(self, size_bytes: int, *, everywhere: bool = False) -> Sample:
        """All nodes' objects to rank 0, or to everybody."""
        readers = range(self.count) if everywhere else [0]
        ids = [new_id().hex() for _ in range(self.count)]
        for rank, object_id in enumerate(ids):
            self._put(rank, object_id, size_bytes)
        play = self._play()
        for rank in readers:
            play.tell(rank, "gather", object_ids=ids)
        ended, usage = play.finish()
        self._check_and_delete(ids, readers, addends=range(self.count))
        return Sample(max(ended.values()), ended, usage)

    def _reduce(
        self, size_bytes: int, *, put_after_s: Sequence[float] | None, readers: Sequence[int]
    ) -> Sample:
        sources = [new_id().hex() for _ in range(self.count)]
        target = new_id().hex()
        after_s = put_after_s or [0.0] * self.count
        for rank, source in enumerate(sources):
            if after_s[rank] == 0.0:
                self._put(rank, source, size_bytes)
        play = self._play()
        for rank, source in enumerate(sources):
            if after_s[rank] > 0.0:
                what = {"object_id": source, "size_bytes": size_bytes, "addend": rank}
                play.tell(rank, "put", after_s=after_s[rank], **what)
        everywhere = len(readers) > 1
        for rank in readers:
            if rank == 0:
                play.tell(0, "reduce", target=target, sources=sources, everywhere=everywhere)
            else:
                play.tell(rank, "get", object_id=target)
        ended, usage = play.finish()
        for rank in readers:
            total = self.count * (self.count - 1) // 2
            self._ranks[rank].tell("check", object_id=target, count=self.count, addend=total)
        self._answers(readers)
        self._delete([target, *sources])
        return Sample(max(ended.values()) - max(after_s), ended, usage)

    def _play(self) -> Play:
        return Play(self._ranks, self._meters)

    def _put(self, rank: int, object_id: str, size_bytes: int) -> None:
        self._ranks[rank].do("put", object_id=object_id, size_bytes=size_bytes, addend=rank)

    def _check_and_delete(
        self, ids: Sequence[str], readers: Sequence[int], *, addends: Sequence[int] = (0,)
    ) -> None:
        for object_id, addend in zip(ids, addends, strict=True):
            for rank in readers:
                self._ranks[rank].tell("check", object_id=object_id, count=1, addend=addend)
            self._answers(readers)
        self._delete(ids)

    def _delete(self, ids: Sequence[str]) -> None:
        for object_id in ids:
            self._ranks[0].do("delete", object_id=object_id)

    def _answers(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._ranks[rank].answer()

    def _revive(self, rank: int, size_bytes: int) -> None:
        self.cluster.revive(rank)
        self._ranks[rank].do("attach", node=self.cluster.nodes[rank].socket)
        # Not counted, as the first round is not: all links are up again, and the new node is as
        # warm as the others.
        self.allreduce(size_bytes)
