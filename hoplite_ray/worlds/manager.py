"""The manager of a process's worlds: it joins them, ends them, and reports their events."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import threading
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic_ns
from typing import Self
from weakref import WeakKeyDictionary

from hoplite_ray.errors import InvalidArgumentError, UnusableAfterForkError, WorldError
from hoplite_ray.values.deadlines import checked_timeout
from hoplite_ray.worlds.core.checks import check_whole
from hoplite_ray.worlds.core.waiting import run_async, running_loop
from hoplite_ray.worlds.events import Cause, EventKind, EventStream, State, WorldEvent
from hoplite_ray.worlds.gpu.nccl import find_ability
from hoplite_ray.worlds.meeting.arguments import check_name, check_rendezvous, chosen_transport
from hoplite_ray.worlds.meeting.doors import split_listen
from hoplite_ray.worlds.meeting.joining import Plan
from hoplite_ray.worlds.meeting.meet import Meet
from hoplite_ray.worlds.meeting.rendezvous import Elsewhere, Rendezvous
from hoplite_ray.worlds.ops.membership import Membership
from hoplite_ray.worlds.world import LEAVE_S, World

_JOIN_S = 30.0
_LOOK_S = 0.002  # between looks whether slow readers have got the end of their worlds
_EPOCHS_MAX = 10_000  # names whose last epoch is remembered
_BROKEN_MAX = (
    1_000  # broken worlds that were not left or joined again, and that their names still find
)
_LAST_WORDS_S = 1.0  # how long a broken world's edges stay open, so that slow readers get its cause


@dataclass(eq=False, slots=True)
class _Joining:
    plan: Plan
    world: World | None = None
    is_abandoned: bool = False


class WorldManager:
    """The worlds of this process. A context manager for `with` and `async with`: its end ends them.

    listen:           the ADDRESS:PORT at which other members reach this process. None: any port of
                      the address by which this machine reaches the rendezvous, or of Ray's address
                      of the node in a process that is connected to Ray. "0.0.0.0:0" is all
                      addresses of IPv4.
    suspect_after_s:  a peer that is silent for so long is suspected, which is an event only.
    dead_after_s:     a peer that is silent for so long is taken for dead; None: never, as long as
                      its kernel answers.
    cut_after_s:      a peer whose machine does not answer for so long is taken for cut off.

    A verb waits in the calling thread, and Ctrl-C takes it back; its `_async` twin is awaited. Any
    thread and any event loop may use it.

    Example:

        with WorldManager(dead_after_s=10.0) as others:
            other = others.join("sample", rank=rank, size=2, rendezvous=address)
            other.barrier()
            other.leave()
    """

    def __init__(
        self,
        *,
        listen: str | None = None,
        suspect_after_s: float = 0.5,
        dead_after_s: float | None = 3.0,
        cut_after_s: float = 0.5,
    ) -> None:
        dead_s = math.inf if dead_after_s is None else dead_after_s
        if not 0 < suspect_after_s <= dead_s or not cut_after_s > 0:
            raise InvalidArgumentError(
                "limits are positive, and suspect_after_s is at most dead_after_s"
            )
        if listen is not None:
            split_listen(listen)
        self._listen = listen
        self._limits = {"suspect_s": suspect_after_s, "dead_s": dead_s, "cut_s": cut_after_s}
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards all attributes below
        self._meet: Meet | None = None
        self._is_closed = False
        self._worlds: dict[str, World] = {}
        # The worlds that have something to release, by their native number.
        self._numbers: dict[int, World] = {}
        self._epochs: dict[str, int] = {}  # the last epoch of each name, the latest last
        # The names of broken worlds that are over, the latest last.
        self._broken: dict[str, None] = {}
        self._joining: dict[str, _Joining] = {}
        self._leaving: set[Future[None]] = set()
        self._streams: WeakKeyDictionary[EventStream, World | None] = WeakKeyDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *how: object) -> None:
        await self.close_async()

    def join(
        self,
        name: str,
        *,
        rank: int,
        size: int,
        rendezvous: Rendezvous | str | None = None,
        transport: str = "auto",
        timeout_s: float = _JOIN_S,
    ) -> World:
        """Meet the other members of a world.

        A world that has broken, or was left, is joined again by its name: that is its next epoch.

        Args:    name: the world's name, the same at all members.
                 rank: this member's number, from 0 to size - 1.
                 size: the number of members.
                 rendezvous: "tcp://ADDRESS:PORT", where rank 0 listens; an object with async set
                 and get, which another thread's event loop awaits; None for Ray's key-value store,
                 in a process that is connected to Ray, for members in the same Ray namespace.
                 transport: "auto", "tcp", "shared_memory" or "nccl". Arrays on GPUs go by NCCL:
                 "auto" has it if all members use a GPU when they join, "nccl" has it or raises.
                 Arrays of the CPU then go as with "auto". The GPU is the calling thread's current
                 one.
                 timeout_s: seconds to wait for the other members; 0 raises.
        Returns: the world, when all members are there.
        Raises:  WorldTimeoutError that says which ranks have not come; WorldError for a join that
                 can't succeed, for example at a rank that another process has; StaleEpochError if
                 another rank 0 has begun a later epoch; InvalidArgumentError; WrongTypeError.
        Source:  MultiWorld.
        Example:

            edge = manager.join("sample", rank=rank, size=2, rendezvous=address)
            assert edge.size == 2
            edge.leave()
        """
        self._check_can_wait("join")
        check_rendezvous(rendezvous)
        joining = self._begin_join(name, rank, size, transport, timeout_s)
        future = self._submit_join(joining, rendezvous, timeout_s)
        try:
            return future.result()
        except BaseException:  # Ctrl-C, or what another handler raises
            future.cancel()
            self._abandon(joining)
            raise

    async def join_async(
        self,
        name: str,
        *,
        rank: int,
        size: int,
        rendezvous: Rendezvous | str | None = None,
        transport: str = "auto",
        timeout_s: float = _JOIN_S,
    ) -> World:
        """Like `join`, but awaitable; cancelling it takes the join back.

        The running event loop awaits `set` and `get` of a rendezvous object.
        """
        check_rendezvous(rendezvous)
        if rendezvous is not None and not isinstance(rendezvous, str):
            rendezvous = Elsewhere(rendezvous, asyncio.get_running_loop())
        joining = self._begin_join(name, rank, size, transport, timeout_s)
        future = self._submit_join(joining, rendezvous, timeout_s)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._abandon(joining)
            raise

    def leave(self, world: World | str, *, timeout_s: float | None = LEAVE_S) -> None:
        """Leave a world, as `World.leave` does.

        Args:    world: the world, or its name.
                 timeout_s: as for `World.leave`.
        Returns: None, when this process is out of the world.
        Raises:  as `World.leave`; InvalidArgumentError if this process is in no such world.
        Example:

            manager.join("sample", rank=rank, size=2, rendezvous=address)
            manager.leave("sample")
        """
        self.world(world).leave(timeout_s=timeout_s)

    async def leave_async(self, world: World | str, *, timeout_s: float | None = LEAVE_S) -> None:
        """Like `leave`, but awaitable; cancelling it leaves at once."""
        await self.world(world).leave_async(timeout_s=timeout_s)

    def abort(self, world: World | str, why: str) -> None:
        """End a world for all members at once, as `World.abort` does. Idempotent.

        Args:    world: the world, or its name.
                 why: the reason, which all members get in their errors.
        Returns: None, without waiting.
        Raises:  InvalidArgumentError if this process is in no such world.
        Example:

            edge = manager.join("sample", rank=rank, size=2, rendezvous=address)
            if rank == 0:
                edge.recv(src=1)
                manager.abort("sample", "the input has ended")
            else:
                edge.send(np.ones(3), dst=0)
        """
        self.world(world).abort(why)

    def events(self, world: World | None = None) -> EventStream:
        """Return a stream of the events from now on, for `for` and `async for`.

        Args:    world: the world whose events it has; None takes those of all worlds.
        Returns: the stream. It ends with the world, or with the manager.
        Raises:  InvalidArgumentError for a world of another manager; WorldError if this one was
                 closed; UnusableAfterForkError.
        Example:

            events = manager.events()
            manager.close()
            assert list(events) == []
        """
        self._check_usable()
        if world is not None and not world.is_of(self):
            raise InvalidArgumentError(f"{world} is of another manager; ask that one, or the world")
        stream = EventStream()
        with self._lock:
            if world is None:
                self._streams[stream] = None
                return stream
            membership = world.membership
            for event in (*membership.gone.values(), membership.broken):
                if event is not None:
                    stream.tell(event)
            if membership.broken is None and membership.edges.number in self._numbers:
                self._streams[stream] = world
            else:
                stream.tell(None)
        return stream

    def world(self, world: World | str) -> World:
        """Return the world of this name.

        Args:    world: the name; a world is returned as it is.
        Returns: the world, also if it has broken.
        Raises:  InvalidArgumentError if this process has not joined it, or has left it.
        Example:

            edge = manager.join("sample", rank=rank, size=2, rendezvous=address)
            assert manager.world("sample") is edge
            edge.leave()
        """
        found = world if isinstance(world, World) else self._worlds.get(world)
        if found is None:
            raise InvalidArgumentError(f"this process is in no world {world!r}; join it first")
        return found

    @property
    def is_over(self) -> bool:
        """True if it was closed, or if this process is a fork of the one that has made it."""
        return self._is_closed or os.getpid() != self._pid

    def close(self) -> None:
        """Abort all worlds that were not left, and end the threads. Idempotent.

        Returns: None, when all threads have ended, which takes a second or two at most.
        Raises:  WorldError in `set` or `get` of a rendezvous object, if `join` awaits them; there
                 await `close_async`. In a forked child it does nothing.
        Example:

            manager.close()
            assert manager.is_over
        """
        self._check_can_wait("close")
        meet = self._begin_close()
        if meet is not None:
            meet.wait_for_end()
            self._meet = None  # the two hold each other

    async def close_async(self) -> None:
        """Like `close`, but awaitable; cancelling it does not stop the close."""
        meet = self._begin_close()
        if meet is not None:
            await asyncio.shield(asyncio.wrap_future(meet.ended))
            meet.wait_for_end()
            self._meet = None  # the two hold each other

    @property
    def blocking(self) -> Self:
        """This manager, because its verbs block. Deprecated: call `manager.join`.

        The next release has no such attribute.
        """
        warnings.warn(
            "WorldManager.blocking will go with the next release; call the manager's verbs, which "
            "block",
            DeprecationWarning,
            stacklevel=2,
        )
        return self

    # ---- for this package

    def leave_unwaited(self, world: World) -> None:
        """Leave a world in the thread of meetings; its name may be used again at once."""
        self._check_usable()
        with self._lock:
            self._worlds.pop(world.name, None)
            leaving = self._start().submit(run_async(world.begin_leave(LEAVE_S)))
            self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def end(self, world: World, *, is_left: bool = False) -> None:
        """Release what a world has, and forget a world that was left. From any thread; idempotent.

        Iterators over its events still get the event that says why it has broken.
        """
        edges = world.membership.edges
        end = edges.end() if world.state is State.BROKEN else None
        if end is not None:
            cause, rank, text = end
            self._note(edges.number, EventKind.BROKEN, rank, cause, text, monotonic_ns())
        with self._lock:
            if self._worlds.get(world.name) is world and (is_left or end is None):
                del self._worlds[world.name]
            if self._numbers.pop(edges.number, None) is None:
                return
            if self._worlds.get(world.name) is world:
                self._remember_broken(world.name)
            ended = [stream for stream, of in self._streams.items() if of is world]
            for stream in ended:
                del self._streams[stream]
            meet = self._meet
        edges.close()
        for stream in ended:
            stream.tell(None)
        assert meet is not None  # it has made the world
        meet.release(edges.number)

    def _remember_broken(self, name: str) -> None:
        """Remember a broken world, and forget the oldest one. REQUIRES: the lock is held."""
        self._broken.pop(name, None)
        self._broken[name] = None
        if len(self._broken) > _BROKEN_MAX:
            oldest = next(iter(self._broken))
            del self._broken[oldest]
            world = self._worlds.get(oldest)
            if world is not None and world.membership.edges.number not in self._numbers:
                del self._worlds[oldest]

    # ---- joining

    def _begin_join(
        self, name: str, rank: int, size: int, transport: str, timeout_s: float
    ) -> _Joining:
        self._check_usable()
        check_name(name)
        checked_timeout(timeout_s)
        rank, size = check_whole("rank", rank), check_whole("size", size)
        if not 0 <= rank < size:
            raise InvalidArgumentError(f"rank={rank} is not one of size={size}: 0 to {size - 1}")
        transport = chosen_transport(transport)
        able, device = find_ability(transport)  # the GPU of the caller's thread
        transport = (
            "auto" if transport == "nccl" else transport
        )  # the transport of the CPU's arrays
        with self._lock:
            before = self._worlds.get(name)
            is_here = before is not None and before.state is not State.BROKEN
            if is_here or name in self._joining:
                raise InvalidArgumentError(
                    f"this process is in world {name!r}, or joins it; leave it first, or use "
                    "another WorldManager for another member"
                )
            plan = Plan(name, rank, size, transport, able, device, self._epochs.get(name, 0))
            joining = self._joining[name] = _Joining(plan)
        if before is not None:
            self.end(before)
        return joining

    def _submit_join(
        self, joining: _Joining, rendezvous: Rendezvous | str | None, timeout_s: float
    ) -> Future[World]:
        try:
            with self._lock:
                return self._start().submit(self._join(joining, rendezvous, timeout_s))
        except BaseException:
            self._forget_join(joining)
            raise

    async def _join(
        self, joining: _Joining, rendezvous: Rendezvous | str | None, timeout_s: float
    ) -> World:
        """Join in the thread of meetings."""
        plan, meet = joining.plan, self._meet
        assert meet is not None
        try:
            incarnation, gpu = await meet.join(plan, rendezvous, timeout_s)
            edges = incarnation.edges
            loans = meet.place.loans(incarnation)
            membership = Membership(
                plan.name, incarnation.epoch, plan.rank, plan.size, edges, gpu, loans
            )
            world = World(membership, self)
            with self._lock:
                self._epochs.pop(plan.name, None)
                self._epochs[plan.name] = incarnation.epoch
                if len(self._epochs) > _EPOCHS_MAX:
                    del self._epochs[next(iter(self._epochs))]
                self._numbers[edges.number] = self._worlds[plan.name] = joining.world = world
            # Report now what the port reported before this world was known.
            for rank in edges.has_left:
                self._tell(
                    edges.number, EventKind.PEER_LEFT, rank, 0, "it has left", monotonic_ns()
                )
            end = edges.end()
            if end is not None:
                self._tell(edges.number, EventKind.BROKEN, end[1], end[0], end[2], monotonic_ns())
            if joining.is_abandoned:
                self._abandon(joining)
            return world
        except BaseException as error:
            if joining.is_abandoned:  # no caller waits for its end
                raise asyncio.CancelledError from None
            if isinstance(error, asyncio.CancelledError) and self._is_closed:
                raise WorldError(f"the manager was closed while {plan.name!r} was joined") from None
            raise
        finally:
            self._forget_join(joining)

    def _forget_join(self, joining: _Joining) -> None:
        with self._lock:
            if self._joining.get(joining.plan.name) is joining:
                del self._joining[joining.plan.name]

    def _abandon(self, joining: _Joining) -> None:
        joining.is_abandoned = True
        self._forget_join(joining)
        world = joining.world
        if world is not None:
            self._worlds.pop(world.name, None)
            self.end(world)

    # ---- the thread

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise UnusableAfterForkError(
                "this manager of worlds is of this process's parent; make one after the fork"
            )
        if self._is_closed:
            raise WorldError("this manager of worlds was closed; make another one")

    def _check_can_wait(self, verb: str) -> None:
        """Raise WorldError in the thread of meetings, which must go on to end the wait."""
        meet = self._meet
        if meet is not None and running_loop() is meet.loop:
            raise WorldError(
                f"{verb} would wait for the thread that calls it, in which the manager awaits set "
                f"and get of rendezvous objects; await {verb}_async"
            )

    def _start(self) -> Meet:
        """Return the thread of meetings, started. REQUIRES: the lock is held."""
        self._check_usable()
        if self._meet is None:
            self._meet = Meet(self._limits, self._listen, self._tell)
            atexit.register(self.close)
        return self._meet

    def _begin_close(self) -> Meet | None:
        if os.getpid() != self._pid:
            return None
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            meet = None if was_closed else self._meet
        if meet is not None:
            atexit.unregister(self.close)
            meet.stop(self._end_all(meet))
        elif not was_closed:  # it has no thread of meetings, because it has joined no world
            self._end_streams()
        return meet

    async def _end_all(self, meet: Meet) -> None:
        joins = meet.cancel_joins()
        await asyncio.gather(*joins, return_exceptions=True)
        leaving = [asyncio.wrap_future(each) for each in self._leaving]
        await asyncio.gather(*leaving, return_exceptions=True)
        ending = list(self._numbers.values())
        for world in ending:
            world.membership.edges.abort(Cause.ABORTED, "its manager was closed")
        for _ in range(int(_LAST_WORDS_S / _LOOK_S)):
            if all(world.membership.edges.is_seen_off for world in ending):
                break
            await asyncio.sleep(_LOOK_S)
        for world in ending:
            self.end(world)
        self._end_streams()

    def _end_streams(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.tell(None)

    def _tell(self, number: int, kind: int, rank: int, cause: int, text: str, at_ns: int) -> None:
        """Handle an event of the port, in the thread of meetings."""
        world = self._note(number, kind, rank, cause, text, at_ns)
        if world is not None and world.membership.broken is not None:
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.end, world)

    def _note(
        self, number: int, kind: int, rank: int, cause: int, text: str, at_ns: int
    ) -> World | None:
        """Note an event, and add it to all streams; returns the world if the event is new."""
        with self._lock:
            world = self._numbers.get(number)
            if world is None or world.membership.broken is not None:
                return None  # nothing happens to a world after its end
            membership = world.membership
            words = Cause(cause).name if cause else ""
            event = WorldEvent(EventKind(kind), world.name, world.epoch, rank, words, text, at_ns)
            if event.kind is EventKind.BROKEN:
                membership.broken = event
            elif event.kind is EventKind.PEER_LEFT:
                if membership.gone.setdefault(rank, event) != event:
                    return None  # it was told when the world was joined
            streams = {stream: of for stream, of in self._streams.items() if of in (None, world)}
        for stream in streams:
            stream.tell(event)
        if event.kind is EventKind.BROKEN:
            for stream, of in streams.items():
                if of is world:
                    stream.tell(None)
        return world
