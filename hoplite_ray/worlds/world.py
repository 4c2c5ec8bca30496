"""World and BlockingWorld: the operations of a world, awaitable and blocking.

Both are facades; the operations are in `ops`. An operation returns only if the native core reports
success for each of its parts. Every other end is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hoplite_ray.errors import HopliteError, WorldTimeoutError
from hoplite_ray.worlds.core.checks import check_timeout
from hoplite_ray.worlds.core.waiting import PENDING, Waits, run_async, run_blocking
from hoplite_ray.worlds.events import EventStream, State
from hoplite_ray.worlds.ops import collectives
from hoplite_ray.worlds.ops.membership import Membership
from hoplite_ray.worlds.ops.messages import Messages

if TYPE_CHECKING:
    from hoplite_ray.worlds.manager import WorldManager

Array = np.ndarray[Any, Any]

LEAVE_S = 10.0  # far more than a slow receiver needs for what is in flight, 4 MiB for each edge


class World:
    """One epoch of a named world, at its member `rank` of `size`. `WorldManager.join` makes it.

    The awaitable operations are methods; `blocking` has the same names without await. All take
    `timeout_s` in seconds; None waits as long as all members live. They raise WorldBrokenError once
    the world has ended, WorldTimeoutError at the limit, and InvalidArgumentError or WrongTypeError
    for arguments. Messages between two ranks arrive in order. All members must call the collectives
    of a world in the same order. After an operation has failed the content of its arrays is
    undefined.

    A world is a context manager, for `with` and `async with`: the end of the block leaves it, also
    when the body raises. Sends that have begun still reach the other members. A receive or a
    collective that another task or thread waits in raises WorldBrokenError. Leaving takes LEAVE_S
    at most, and nothing if the body has left already.

    Raises:  at the end of a body that does not raise, what `leave` raises: WorldTimeoutError if a
             receiver is too slow, WorldBrokenError if the world has ended before. The error of a
             body that raises comes first: one of leaving is dropped.

    Example:
        async with await manager.join("edge", rank=0, size=2, rendezvous=address) as world:
            await world.send(array, dst=1)

        with manager.blocking.join("edge", rank=0, size=2, rendezvous=address) as world:
            world.blocking.send(array, dst=1)

    Source: MultiWorld.
    """

    def __init__(self, membership: Membership, owner: WorldManager) -> None:
        """For WorldManager."""
        self.name = membership.name
        self.epoch = membership.epoch
        self.rank = membership.rank
        self.size = membership.size
        self.transports = membership.transports
        self.blocking = BlockingWorld(self)
        self.membership = membership
        self.messages = Messages(membership)
        self._state = State.READY
        self._owner = owner

    def __repr__(self) -> str:
        return f"World({self.name!r}, epoch={self.epoch}, rank={self.rank}, size={self.size})"

    def __str__(self) -> str:
        return str(self.membership)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.blocking.leave()
        except HopliteError:
            if kind is None:
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            await self.leave()
        except HopliteError:
            if kind is None:
                raise

    @property
    def state(self) -> State:
        """READY, LEAVING, CLOSED or BROKEN. Raises UnusableAfterForkError in a forked child."""
        self.membership.check_usable()  # at the fork another thread may have held the native lock
        if self._state is not State.CLOSED and self.membership.edges.end() is not None:
            return State.BROKEN
        return self._state

    @property
    def device(self) -> int | None:
        """The GPU whose arrays this world carries, by NCCL; None if it has no NCCL."""
        gpu = self.membership.gpu
        return None if gpu.lacks else gpu.device

    def events(self) -> EventStream:
        """Iterate over the events of this world from now on: `async for event in world.events()`.

        The stream begins with the members that have left already, and with the world's end if it
        has broken. That is always a world's last event.
        """
        return self._owner.events(self)

    def alloc(self, shape: Sequence[int] | int, dtype: Any = np.float32) -> Array:
        """Return an array whose elements are undefined; sending it gives it away.

        Over shared memory the send copies nothing: the receiver's array lies on the same memory.
        Both arrays are read-only from then on. The memory serves the next array when neither member
        has an array on it. An array below 64 KiB, and every array over TCP, is sent as any other
        array. Collectives take it as any other array, too.

        Raises:  WrongTypeError for a dtype of objects; WorldError if there is no memory.
        Cost:    a page fault for each new page; none for memory that is used again.
        """
        return self.membership.usable().loans.alloc(shape, dtype)

    def abort(self, why: str) -> None:
        """End the world for all members, at once. From any thread; idempotent."""
        self.membership.abort(str(why))

    async def leave(self, *, timeout_s: float | None = LEAVE_S) -> None:
        """Leave when all that was sent has arrived. The other members get the event PEER_LEFT.

        Raises:  WorldTimeoutError, WorldBrokenError; the world is over for this member all the
                 same.
        """
        await run_async(self.begin_leave(timeout_s))

    async def send(self, array: Any, *, dst: int, timeout_s: float | None = None) -> None:
        """Send an array to a rank; returns when it may be written to again.

        An array of `alloc` is read-only from then on. The send of an array on a GPU waits for its
        receiver, and can't be taken back: a timeout ends the world.
        """
        messages = self.messages
        if not messages.is_plain_send(array):
            return await run_async(messages.send(array, dst, timeout_s))
        operation = messages.begin_send(array, dst, timeout_s)
        if operation is not None:
            what = f"send to rank {dst}"
            await run_async(self.membership.finish(operation, timeout_s, what))

    async def recv(self, into: Any = None, *, src: int, timeout_s: float | None = None) -> Any:
        """Receive the next message of a rank, into an array of its dtype and size, or a new one.

        A message from a GPU needs an array on a GPU, which is ready for any stream afterwards.

        Returns: `into`, or a new numpy array. It is read-only if it came without a copy (`alloc`).
        """
        messages = self.messages
        if not messages.is_plain_receive(into, src):
            return await run_async(messages.receive(into, src, timeout_s))
        operation = messages.begin_receive(into, src, timeout_s)
        if operation is not None:
            await run_async(messages.finish_receive(operation, into, src, timeout_s))
        return into

    async def broadcast(self, array: Any, *, src: int, timeout_s: float | None = None) -> Any:
        """Fill every member's `array`, of one dtype and size, from that of `src`; returns it."""
        return await run_async(
            collectives.broadcast(self.membership.usable(), array, src, timeout_s)
        )

    async def all_reduce(
        self, array: Any, *, op: str = "sum", timeout_s: float | None = None
    ) -> Any:
        """Fold all members' arrays, in place: "sum", "prod", "min" or "max". All get the same bits.

        Cost: above 64 KiB a ring, 2 (n - 1) / n of the array out of and into each member.
        """
        return await run_async(
            collectives.all_reduce(self.membership.usable(), array, op, timeout_s)
        )

    async def reduce(
        self, array: Any, *, dst: int, op: str = "sum", timeout_s: float | None = None
    ) -> Any:
        """Fold all members' arrays into the one of `dst`, in place; the other arrays stay."""
        return await run_async(
            collectives.reduce(self.membership.usable(), array, dst, op, timeout_s)
        )

    async def all_gather(
        self, array: Any, *, out: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """Return the list of all members' arrays, by rank. All must have one dtype and shape.

        The list has new numpy arrays, or the arrays of `out`, filled.
        """
        return await run_async(
            collectives.all_gather(self.membership.usable(), array, out, timeout_s)
        )

    async def gather(
        self,
        array: Any,
        *,
        dst: int,
        out: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any] | None:
        """Like `all_gather`, but only `dst` gets the list; other members get None."""
        return await run_async(
            collectives.gather(self.membership.usable(), array, dst, out, timeout_s)
        )

    async def scatter(
        self,
        arrays: Sequence[Any] | None = None,
        *,
        src: int,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Give each member one of the `arrays` of `src`: into `into`, which all but `src` need."""
        return await run_async(
            collectives.scatter(self.membership.usable(), arrays, src, into, timeout_s)
        )

    async def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when all members have called it."""
        await run_async(collectives.barrier(self.membership.usable(), timeout_s))

    # ---- for this package

    def is_of(self, owner: WorldManager) -> bool:
        """True if that manager has made it."""
        return self._owner is owner

    def begin_leave(self, timeout_s: float | None) -> Waits[None]:
        """Leave, and release all that the world has, also if leaving fails."""
        self.membership.check_usable()
        check_timeout(timeout_s)
        if self._state is State.CLOSED:
            return
        self._state = State.LEAVING
        try:
            operation = self.membership.edges.leave()
            if operation.state == PENDING and not (yield operation, timeout_s):
                raise WorldTimeoutError(
                    f"{self} was left, but not all that was sent was taken within {timeout_s} s; "
                    "to the others it has ended before that"
                )
            self.membership.check(operation)
            self._state = State.CLOSED
        finally:
            self._owner.end(self, is_left=True)


class BlockingWorld:
    """The blocking twins of a world's operations. Ctrl-C takes an operation back."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, array: Any, *, dst: int, timeout_s: float | None = None) -> None:
        """Like `World.send`, but waits in this thread."""
        messages = self._world.messages
        if not messages.is_plain_send(array):
            return run_blocking(messages.send(array, dst, timeout_s))
        operation = messages.begin_send(array, dst, timeout_s)
        if operation is not None:
            what = f"send to rank {dst}"
            run_blocking(self._world.membership.finish(operation, timeout_s, what))

    def recv(self, into: Any = None, *, src: int, timeout_s: float | None = None) -> Any:
        """Like `World.recv`, but waits in this thread."""
        messages = self._world.messages
        if not messages.is_plain_receive(into, src):
            return run_blocking(messages.receive(into, src, timeout_s))
        operation = messages.begin_receive(into, src, timeout_s)
        if operation is not None:
            run_blocking(messages.finish_receive(operation, into, src, timeout_s))
        return into

    def broadcast(self, array: Any, *, src: int, timeout_s: float | None = None) -> Any:
        """Like `World.broadcast`, but waits in this thread."""
        return run_blocking(
            collectives.broadcast(self._world.membership.usable(), array, src, timeout_s)
        )

    def all_reduce(self, array: Any, *, op: str = "sum", timeout_s: float | None = None) -> Any:
        """Like `World.all_reduce`, but waits in this thread."""
        return run_blocking(
            collectives.all_reduce(self._world.membership.usable(), array, op, timeout_s)
        )

    def reduce(
        self, array: Any, *, dst: int, op: str = "sum", timeout_s: float | None = None
    ) -> Any:
        """Like `World.reduce`, but waits in this thread."""
        return run_blocking(
            collectives.reduce(self._world.membership.usable(), array, dst, op, timeout_s)
        )

    def all_gather(
        self, array: Any, *, out: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """Like `World.all_gather`, but waits in this thread."""
        return run_blocking(
            collectives.all_gather(self._world.membership.usable(), array, out, timeout_s)
        )

    def gather(
        self,
        array: Any,
        *,
        dst: int,
        out: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any] | None:
        """Like `World.gather`, but waits in this thread."""
        return run_blocking(
            collectives.gather(self._world.membership.usable(), array, dst, out, timeout_s)
        )

    def scatter(
        self,
        arrays: Sequence[Any] | None = None,
        *,
        src: int,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Like `World.scatter`, but waits in this thread."""
        return run_blocking(
            collectives.scatter(self._world.membership.usable(), arrays, src, into, timeout_s)
        )

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Like `World.barrier`, but waits in this thread."""
        run_blocking(collectives.barrier(self._world.membership.usable(), timeout_s))

    def leave(self, *, timeout_s: float | None = LEAVE_S) -> None:
        """Like `World.leave`, but waits in this thread."""
        run_blocking(self._world.begin_leave(timeout_s))
