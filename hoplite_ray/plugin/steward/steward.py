"""The steward: one actor per Ray node, which outlives the processes that it serves.

The steward owns the anchors of arrays, and runs the pending reduces and gathers of its node's
processes as coroutines. It finds dead processes, ends their pending calls, and makes orphans of
the objects that they had put. It gives the node's counters to Ray's metrics. It uses no CPU, and
leaves when nothing needs it (departure.py).

When the steward dies, Ray restarts it. Pending calls then begin again. The objects of the dead
steward's anchors become orphans, because no process learns any more when their handles go.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import ray

from hoplite_ray.client import StoreClient
from hoplite_ray.errors import NodeLostError
from hoplite_ray.plugin.handle.array import Array
from hoplite_ray.plugin.handle.messages import Bare, BareResult, Combination, Gathered
from hoplite_ray.plugin.node.start import node_number
from hoplite_ray.plugin.process import job_options
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.process.known_puts import KnownPuts
from hoplite_ray.plugin.process.reaper import Reaper
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward.bare_sources import BareSources
from hoplite_ray.plugin.steward.collecting import run_gather
from hoplite_ray.plugin.steward.departure import Departure
from hoplite_ray.plugin.steward.journals import Journals
from hoplite_ray.plugin.steward.keeping import keep_copies
from hoplite_ray.plugin.steward.publishing import publish_always
from hoplite_ray.plugin.steward.reducing import ReduceRun
from hoplite_ray.plugin.steward_client.client import Copy, parse_guest
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation
from hoplite_ray.store import new_id

T = TypeVar("T")

_logger = logging.getLogger("hoplite_ray.steward")

_TRIES = 3  # of a reduce whose node dies
_REAP_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call whose answer a process waits for."""

    task: asyncio.Task[Any]
    caller: str
    loop: asyncio.AbstractEventLoop


class Steward:
    """The steward's duties; see the module. Its public methods are coroutines of one thread."""

    def __init__(self) -> None:
        job_options.follow_cluster()  # the process that needs this steward has fixed the cluster's
        self._here = attachment()
        self._here.known_puts = KnownPuts(bytes_max=0)  # no process gets values here
        self._life = StewardIncarnation(self._here.place)
        self._is_restarted = seams.restarts() > 0
        self._anchors: set[bytes] = set()  # of this incarnation, while a process has them
        here = self._here
        self._journals = Journals(here.journal, here.place.journals, self._anchors.__contains__)
        self._reaper = Reaper(self._delete_anchored)
        self._pending: dict[bytes, _Pending] = {}
        self._copies_under_way = 0  # calls of `keep_copies`
        self._bare = BareSources()
        self._departure = Departure(here.place, self._life, self._has_duties)
        self._needs_gc = False  # True if errors have left cycles behind, which may keep refs
        for name, run in (("steward", self._reap), ("metrics", self._publish)):
            threading.Thread(target=run, name=f"hoplite-{name}", daemon=True).start()

    async def anchors(self, count: int) -> tuple[int, list[Ref]]:
        """Return this incarnation, and `count` new anchors for arrays that the caller will make.

        The steward marks itself as used, because a caller on another Ray node can't.
        """
        await asyncio.to_thread(StewardIncarnation.use, self._here.place)
        return self._life.number, [self._make_anchor() for _ in range(count)]

    async def hold(self, anchors: list[bytes]) -> list[Ref]:
        """Return those of `anchors` that this steward made, so that Ray learns of the caller."""
        refs = [seams.ref_of(each) for each in anchors if each in self._anchors]
        return [ref for ref in refs if seams.is_owned(ref)]

    async def reduce(self, refs: list[Ref], how: Combination, caller: str) -> Array | None:
        """Run a reduce, and return the handle of its result when it has committed.

        The result has the answer's id. A steward that Ray has restarted takes a new id, because the
        death of the last one has cancelled the reduce that it had begun. `caller` is the name of
        the process that has the answer, by its journal or as a guest. The reduce ends with it.
        """

        async def run_reduce(answer: bytes) -> Array:
            target = new_id() if self._is_restarted else answer
            take_bare = partial(self._bare.request_read, caller, answer)
            for tries_left in reversed(range(_TRIES)):
                name_result = partial(self._name_result, target)
                try:
                    return await ReduceRun.of(refs, target, how, take_bare, name_result).run()
                except NodeLostError:
                    if not tries_left:
                        raise
                    target = new_id()  # in the next incarnation of the node
            raise AssertionError("unreachable")

        return await self._run_call(refs, caller, run_reduce)

    async def gather(self, refs: list[Ref], caller: str) -> Gathered | None:
        """Return the handles of all sources when they are there; `caller` as in `reduce`."""

        async def run_handles(answer: bytes) -> Gathered:
            return await run_gather(refs, partial(self._bare.request_read, caller, answer))

        return await self._run_call(refs, caller, run_handles)

    async def bare_sources(self, caller: str) -> list[Bare]:
        """Wait for bare sources that `caller` shall read, and return them; see bare_sources.py."""
        return await self._bare.next_for(caller)

    async def take_bare(self, key: bytes, taken: BareResult) -> None:
        """Take the caller's result for a bare source."""
        self._bare.deliver(key, taken)

    async def _run_call(
        self, refs: list[Ref], caller: str, run: Callable[[bytes], Awaitable[T]]
    ) -> T | None:
        """Run a call with its answer's id, and return its result; None if no reference is left."""
        task = seams.task_id()
        current = asyncio.current_task()
        assert task is not None and current is not None
        answer = seams.return_id(task)
        self._pending[answer] = _Pending(current, caller, asyncio.get_running_loop())
        checked = asyncio.create_task(self._abandon_if_dead(caller, answer))
        try:
            return await run(answer)
        except Exception:
            self._needs_gc = True
            raise
        except asyncio.CancelledError:
            self._needs_gc = True
            if answer in self._pending:
                raise  # ray.cancel
            # Abandoned: no process reads the answer, and Ray would log an error as unhandled.
        finally:
            checked.cancel()
            self._pending.pop(answer, None)
            self._bare.end_call(caller, answer)
            refs.clear()  # an error's traceback may still refer to this call
        return None

    async def _abandon_if_dead(self, caller: str, answer: bytes) -> None:
        """End a call that has come after its caller's death: `_reap` has looked already."""
        try:
            if await asyncio.to_thread(self._is_dead, caller):
                await self.abandon(answer)
        except Exception as error:
            _logger.warning("unknown whether the caller %s lives: %s", caller, error)

    async def abandon(self, answer: bytes) -> None:
        """Cancel a pending call, because no reference to its answer is left."""
        if (pending := self._pending.pop(answer, None)) is not None:
            pending.task.cancel()

    async def keep_copies(self, copies: list[Copy]) -> int:
        """Keep copies of a table's values here, and return this node's id; see keeping.py.

        The steward stays while copies are under way, so it marks itself as used beside them.
        """
        self._copies_under_way += 1
        try:
            await asyncio.gather(
                asyncio.to_thread(StewardIncarnation.use, self._here.place), keep_copies(copies)
            )
        except Exception:
            self._needs_gc = True  # the error's traceback has the values
            raise
        finally:
            self._copies_under_way -= 1
        return node_number(self._here.place.ray_node_id)

    def _make_anchor(self) -> Ref:
        anchor = ray.put(b"")
        self._anchors.add(anchor.binary())
        self._reaper.watch(anchor)
        return anchor

    async def _name_result(self, target: bytes) -> tuple[StoreClient, Ref]:
        """Return the node's store, and an anchor for a result that nodes will make."""
        anchor = self._make_anchor()
        self._here.journal.record_anchored(target, anchor.binary(), 0)
        return await asyncio.to_thread(lambda: self._here.store), anchor

    def _delete_anchored(self, anchor: bytes) -> None:
        bound = self._journals.unbind(anchor)
        self._anchors.discard(anchor)
        if bound is not None:
            object_id, incarnation = bound
            self._here.delete(object_id, upto=incarnation)

    def _reap(self) -> None:
        """Find dead processes, and end their calls and objects; runs on a thread of its own."""
        while True:
            try:
                left = self._journals.find_dead()
                self._end_calls_of(left.processes | self._dead_guests())
                _ = self._here.store  # restarts a node that has died alone
                for object_id, incarnation in (left.orphans | left.unwatched).items():
                    self._here.orphan(object_id, upto=incarnation)
                self._journals.release(left)
                self._departure.poll()
            except Exception as error:  # `find_dead` returns the same again, for the next try
                _logger.warning("orphans are left for later: %s", error)
            if self._needs_gc:
                self._needs_gc = False
                gc.collect()
            time.sleep(_REAP_EVERY_S)

    def _has_duties(self, *, is_drained: bool) -> bool:
        """Return True if calls are pending, or objects here have an owner or an anchor.

        On a drained node only calls count, because other nodes have the objects and their ends.
        """
        is_called = bool(self._pending or self._copies_under_way)
        return is_called or (not is_drained and self._journals.has_objects())

    def _publish(self) -> None:
        publish_always(self._here.place)

    def _is_dead(self, caller: str) -> bool:
        if (found := parse_guest(caller)) is None:
            return self._journals.is_dead(caller)
        return not seams.is_worker_alive(*found)

    def _dead_guests(self) -> set[str]:
        callers = {each.caller for each in list(self._pending.values())}
        return {each for each in callers if parse_guest(each) is not None and self._is_dead(each)}

    def _end_calls_of(self, processes: set[str]) -> None:
        for answer, each in list(self._pending.items()):
            if each.caller in processes:
                asyncio.run_coroutine_threadsafe(self.abandon(answer), each.loop)
