"""The native store on an emulated cluster, without Ray: a process per node, attached to its node.

Every scene is one collective of float32 objects, checked bit by bit afterwards. All ranks are
attached, and their sources put, before the clock starts, unless the scene says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Self

from cluster import Cluster
from meters import Links, Meters
from ranks import OBJECTS, Rank
from scenes import LEAD_S, SLOW_SHARE, Contender, Play, Sample, Scene, Variant

from hoplite_ray.store import new_id


class Stage(Contender):
    """The store and its ranks. A context manager."""

    peer = "hoplite"
    level = "store"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.count = cluster.network.count
        self._ranks: list[Rank] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.cluster)
            for rank, node in enumerate(self.cluster.nodes):
                self._ranks.append(Rank.start(self.cluster.network.within(rank), "store_rank.play"))
                self._stack.callback(self._ranks[-1].close)
                self._ranks[-1].tell("attach", node=node.socket)
            for each in self._ranks:
                each.answer()
            self.links = Links(self.cluster.network)
            self._stack.callback(self.links.close)
            self._meters = Meters(self.links, self._processes)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def play(self, scene: Scene) -> Sample:
        """Have the ranks play the scene."""
        slow = scene.slow_rank
        network = self.cluster.network
        with nullcontext() if slow is None else network.slowed(slow, SLOW_SHARE):
            match scene.collective, scene.variant:
                case "broadcast", Variant.DEATH:
                    return self._broadcast_past_a_death(scene)
                case "broadcast", _:
                    return self._broadcast(scene)
                case "reduce" | "allreduce", _:
                    return self._reduce(scene)
                case "objects", _:
                    return self._objects(scene)
                case "round_trip", _:
                    return self._round_trip(scene)
                case _:
                    return self._gather(scene)

    def _broadcast(self, scene: Scene) -> Sample:
        """From rank 0; if all wait, from the call of put."""
        object_id = new_id().hex()
        waits = scene.variant == Variant.WAITS
        if not waits:
            self._put(0, object_id, scene.size_bytes)
        play = self._play()
        for rank in range(1, self.count):
            after_s = -LEAD_S if waits else scene.arrivals_s[rank]
            play.tell(rank, "get", object_id=object_id, after_s=after_s)
        if waits:
            play.tell(0, "put", object_id=object_id, size_bytes=scene.size_bytes, addend=0)
        sample = scene.sample(*play.finish())
        self._check_and_delete([object_id], range(1, self.count))
        return sample

    def _broadcast_past_a_death(self, scene: Scene) -> Sample:
        """Kill the receiver that has relayed the most; time the other receivers."""
        object_id = new_id().hex()
        others = range(1, self.count)
        self._put(0, object_id, scene.size_bytes)
        before = [self.links.sent_bytes(rank) for rank in range(self.count)]
        play = self._play()
        for rank in others:
            play.tell(rank, "get", object_id=object_id)
        killed: list[int] = []

        def kill() -> int:
            sent = {rank: self.links.sent_bytes(rank) - before[rank] for rank in others}
            killed.append(max(others, key=sent.__getitem__))
            self.cluster.kill(killed[0])
            return killed[0]

        play.fault(scene.hop_s / 2, kill)
        try:
            ended, usage = play.finish()
            survivors = [rank for rank in others if rank not in killed]
            self._check_and_delete([object_id], survivors)
        finally:
            self._revive(killed[0], scene)
        return scene.sample({rank: ended[rank] for rank in survivors}, usage)

    def _round_trip(self, scene: Scene) -> Sample:
        """Rank 0 puts, rank 1 gets it and puts it as its own, rank 0 gets that."""
        there, back = new_id().hex(), new_id().hex()
        play = self._play()
        play.tell(1, "get_and_put", get=there, put=back, after_s=-LEAD_S)
        out = {"size_bytes": scene.size_bytes, "addend": 0}
        play.tell(0, "put_and_get", put=there, get=back, **out)
        sample = scene.sample(*play.finish())
        self._check_and_delete([back], [0])
        self._delete([there])
        return sample

    def _gather(self, scene: Scene) -> Sample:
        ids = [new_id().hex() for _ in range(self.count)]
        for rank, object_id in enumerate(ids):
            self._put(rank, object_id, scene.size_bytes)
        play = self._play()
        for rank in scene.receivers:
            play.tell(rank, "gather", object_ids=ids)
        sample = scene.sample(*play.finish())
        self._check_and_delete(ids, scene.receivers, addends=range(self.count))
        return sample

    def _objects(self, scene: Scene) -> Sample:
        """Every node gets all objects of the next one, at once."""
        ids = [[new_id().hex() for _ in range(OBJECTS)] for _ in range(self.count)]
        of_next = [*ids[1:], ids[0]]
        for rank, own in enumerate(ids):
            self._ranks[rank].tell("put_many", object_ids=own, size_bytes=scene.size_bytes)
        self._answers(range(self.count))
        play = self._play()
        for rank in range(self.count):
            play.tell(rank, "gather", object_ids=of_next[rank])
        sample = scene.sample(*play.finish())
        for rank in range(self.count):
            self._ranks[rank].tell("check_and_delete_many", object_ids=of_next[rank])
        self._answers(range(self.count))
        return sample

    def _reduce(self, scene: Scene) -> Sample:
        """Receivers ask for the result at once; a late rank has not put its source yet."""
        sources = [new_id().hex() for _ in range(self.count)]
        target = new_id().hex()
        after_s, readers = scene.arrivals_s, scene.receivers
        for rank, source in enumerate(sources):
            if after_s[rank] == 0.0:
                self._put(rank, source, scene.size_bytes)
        play = self._play()
        for rank, source in enumerate(sources):
            if after_s[rank] > 0.0:
                what = {"object_id": source, "size_bytes": scene.size_bytes, "addend": rank}
                play.tell(rank, "put", after_s=after_s[rank], **what)
        everywhere = len(readers) > 1
        for rank in readers:
            if rank == 0:
                play.tell(0, "reduce", target=target, sources=sources, everywhere=everywhere)
            else:
                play.tell(rank, "get", object_id=target)
        sample = scene.sample(*play.finish())
        for rank in readers:
            total = self.count * (self.count - 1) // 2
            self._ranks[rank].tell("check", object_id=target, count=self.count, addend=total)
        self._answers(readers)
        self._delete([target, *sources])
        return sample

    def _processes(self) -> list[int]:
        living = [node.process for node in self.cluster.nodes if node.process.poll() is None]
        return [process.pid for process in living] + [rank.pid for rank in self._ranks]

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

    def _revive(self, rank: int, scene: Scene) -> None:
        self.cluster.revive(rank)
        self._ranks[rank].do("attach", node=self.cluster.nodes[rank].socket)
        # Not counted, as the first round is not: all links are up again, and the new node is as
        # warm as the others.
        self._reduce(replace(scene, collective="allreduce", variant=Variant.PLAIN))
