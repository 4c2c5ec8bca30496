"""The steward: one actor per Ray node that outlives the processes for which it keeps things.

It owns the anchors of arrays, runs the pending reduces of its node's processes as coroutines, and
deletes what the dead have left. It uses no CPU, and Ray restarts it when it dies: pending reduces
then begin again under the same ids; anchors of its last life no longer end anything, so their
objects stay until the node goes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ray.errors import HopliteError, NodeLostError
from hoplite_ray.plugin import seams
from hoplite_ray.plugin.array import Array
from hoplite_ray.plugin.attachment import attachment
from hoplite_ray.plugin.journal import Journals
from hoplite_ray.plugin.lifetime import Reaper
from hoplite_ray.plugin.reducing import ReduceRun
from hoplite_ray.plugin.seams import Ref
from hoplite_ray.plugin.start import NodePlace
from hoplite_ray.refs import ReduceOp
from hoplite_ray.store import new_id

_NAMESPACE = "hoplite_ray"
_CALLS_AT_ONCE = 10_000  # pending reduces of one Ray node
_TRIES = 3  # of a reduce whose node dies under it
_REAP_EVERY_S = 2.0
_ORPHAN_S = 10.0  # what a dead process had put stays readable for gets that are under way


class Steward:
    """See the module; all methods are coroutines and run on one thread."""

    def __init__(self) -> None:
        self._here = attachment()
        lives = self._here.place.directory / "steward"  # exists: another one has been here
        self._is_restarted = lives.exists()
        lives.touch()
        self._journals = Journals(self._here.place.journals)
        self._reaper = Reaper(self._anchor_gone)
        self._pending: dict[bytes, asyncio.Task[Any]] = {}
        self._reaping: asyncio.Task[None] | None = None
        self._collect = False  # whether errors have left cycles behind that may keep refs

    async def anchors(self, count: int) -> list[Ref]:
        """`count` new anchors, for arrays that the caller will make."""
        self._keep_reaping()
        return [self._anchor() for _ in range(count)]

    async def reduce(self, refs: list[Ref], op: ReduceOp, count: int | None) -> Array | None:
        """The handle of the reduce's result, once it has committed.

        Its id is the answer's own; a steward that Ray has restarted takes a new one, because the
        death of the last one has cancelled what it had begun.
        """
        self._keep_reaping()
        task = seams.task_id()
        current = asyncio.current_task()
        assert task is not None and current is not None
        answer = seams.return_id(task)
        target = new_id() if self._is_restarted else answer
        self._pending[answer] = current
        try:
            for tries_left in reversed(range(_TRIES)):
                try:
                    store = await asyncio.to_thread(lambda: self._here.store)
                    layout, members = await ReduceRun.of(refs, count, store, target, op).run()
                    break
                except NodeLostError:
                    if not tries_left:
                        raise
                    target = new_id()  # in the next life of the node
        except Exception:
            self._collect = True
            raise
        except asyncio.CancelledError:
            self._collect = True
            if answer in self._pending:
                raise  # ray.cancel
            return None  # abandoned: nobody reads it, and an error would be logged as unhandled
        finally:
            self._pending.pop(answer, None)
            refs.clear()  # whatever still refers to this call
        anchor = self._anchor()
        self._here.journal.anchored(target, anchor.binary(), 0)
        return Array(target, 0, layout, anchor, members=members)

    async def abandon(self, answer: bytes) -> None:
        """Nobody refers to that answer any more: stop if it is still pending."""
        if (task := self._pending.pop(answer, None)) is not None:
            task.cancel()

    def _anchor(self) -> Ref:
        anchor = ray.put(b"")
        self._reaper.watch(anchor)
        return anchor

    def _anchor_gone(self, anchor: bytes) -> None:
        if (bound := self._journals.unbind(anchor)) is not None:
            object_id, incarnation = bound
            self._here.store.delete(object_id, upto=incarnation)

    def _keep_reaping(self) -> None:
        if self._reaping is None or self._reaping.done():
            self._reaping = asyncio.create_task(self._reap())

    async def _reap(self) -> None:
        """Delete what processes have put that are dead."""
        orphans: dict[bytes, tuple[int, float]] = {}
        while True:
            dead = await asyncio.to_thread(self._journals.of_the_dead)
            now = time.monotonic()
            orphans |= {each: (incarnation, now) for each, incarnation in dead.items()}
            for object_id in [each for each, (_, at) in orphans.items() if at + _ORPHAN_S < now]:
                incarnation, _ = orphans.pop(object_id)
                try:
                    self._here.store.delete(object_id, upto=incarnation)
                except HopliteError:
                    pass  # gone with its node
            if self._collect:
                self._collect = False
                gc.collect()
            await asyncio.sleep(_REAP_EVERY_S)


def steward_of(place: NodePlace) -> Any:
    """The handle of a Ray node's steward, which is started unless it runs."""
    return _Actor.options(
        max_concurrency=_CALLS_AT_ONCE,
        lifetime="detached",
        namespace=_NAMESPACE,
        name=place.directory.name,
        get_if_exists=True,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place.ray_node_id, soft=False),
    ).remote()


_Actor: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Steward)
