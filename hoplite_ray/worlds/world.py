"""World: the operations of a world. Each verb blocks, and its `_async` twin is awaited.

The class is a facade; the operations are in `ops`. An operation returns only if the native core
reports success for each of its parts. Every other end is raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import numpy as np

from hoplite_ray.errors import HopliteError, WorldTimeoutError
from hoplite_ray.values.deadlines import checked_timeout
from hoplite_ray.worlds.collectives import Collectives
from hoplite_ray.worlds.core.waiting import PENDING, Waits, run_async, run_blocking
from hoplite_ray.worlds.events import EventStream, State
from hoplite_ray.worlds.ops.membership import Membership
from hoplite_ray.worlds.ops.messages import Messages

if TYPE_CHECKING:
    from hoplite_ray.worlds.manager import WorldManager

Array = np.ndarray[Any, Any]
T = TypeVar("T")

LEAVE_S = 10.0  # far more than a slow receiver needs for what is in flight, 4 MiB for each edge


class World(Collectives):
    """One epoch of a named world, at its member `rank` of `size`. `WorldManager.join` makes it.

    A verb waits in the calling thread, and Ctrl-C takes it back; its `_async` twin is awaited. All
    take `timeout_s` in seconds; None waits as long as all members live. They raise WorldBrokenError
    once the world has ended, WorldTimeoutError at the limit, and InvalidArgumentError or
    WrongTypeError for arguments. Messages between two ranks arrive in order. All members must call
    the collectives of a world in the same order. After an operation has failed the content of its
    arrays is undefined. Any thread and any event loop may use it.

    A verb that is called in an event loop stops the loop until it returns. It raises WorldError if
    it would wait for a call of a task of that loop, which can't go on meanwhile.

    A world is a context manager, for `with` and `async with`: the end of the block leaves it, also
    when the body raises. Sends that have begun still reach the other members. A receive or a
    collective that another task or thread waits in raises WorldBrokenError. Leaving takes LEAVE_S
    at most, and nothing if the body has left already.

    Raises:  at the end of a body that does not raise, what `leave` raises: WorldTimeoutError if a
             receiver is too slow, WorldBrokenError if the world has ended before. The error of a
             body that raises comes first: one of leaving is dropped.
    Source:  MultiWorld.
    Example:

        with manager.join("sample", rank=rank, size=2, rendezvous=address) as edge:
            if rank == 0:
                edge.send(np.arange(3), dst=1)
            else:
                assert edge.recv(src=0).tolist() == [0, 1, 2]
    """

    def __init__(self, membership: Membership, owner: WorldManager) -> None:
        """For WorldManager."""
        self.name = membership.name
        self.epoch = membership.epoch
        self.rank = membership.rank
        self.size = membership.size
        self.transports = membership.transports
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
            self.leave()
        except HopliteError:
            if kind is None:
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            await self.leave_async()
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

    @property
    def blocking(self) -> Self:
        """This world, because its verbs block. Deprecated: `world.send` is `world.blocking.send`.

        The next release has no such attribute.
        """
        warnings.warn(
            "World.blocking will go with the next release; call the world's verbs, which block",
            DeprecationWarning,
            stacklevel=2,
        )
        return self

    def events(self) -> EventStream:
        """Return a stream of the events of this world from now on, for `for` and `async for`.

        The stream begins with the members that have left already, and with the world's end if it
        has broken. That is always a world's last event.

        Returns: the stream, which ends with the world.
        Raises:  UnusableAfterForkError; WorldError if the manager was closed.
        Example:

            events = world.events()
            world.leave()
            assert all(event.kind.name == "PEER_LEFT" for event in events)
        """
        return self._owner.events(self)

    def alloc(self, shape: Sequence[int] | int, dtype: Any = np.float32) -> Array:
        """Return an array whose elements are undefined; sending it gives it away.

        Over shared memory the send copies nothing: the receiver's array lies on the same memory.
        Both arrays are read-only from then on. The memory serves the next array when neither member
        has an array on it. An array below 64 KiB, and every array over TCP, is sent as any other
        array. Collectives take it as any other array, too.

        Args:    shape: the extents, or one extent.
                 dtype: anything that numpy takes as a dtype, except one of objects.
        Returns: the array.
        Raises:  WrongTypeError for a dtype of objects; WorldError if there is no memory.
        Cost:    a page fault for each new page; none for memory that is used again.
        Example:

            if world.rank == 0:
                frame = world.alloc((512, 512))
                frame[:] = 1
                world.send(frame, dst=1)
            else:
                assert world.recv(src=0).sum() == 512 * 512
        """
        return self.membership.usable().loans.alloc(shape, dtype)

    def abort(self, why: str) -> None:
        """End the world for all members, at once. From any thread; idempotent.

        Args:    why: the reason, which all members get in their errors.
        Returns: None, without waiting.
        Raises:  UnusableAfterForkError in a forked child.
        Example:

            world.abort("the input has ended")
            assert world.state.name == "BROKEN"
        """
        self.membership.abort(str(why))

    def leave(self, *, timeout_s: float | None = LEAVE_S) -> None:
        """Leave when all that was sent has arrived. The other members get the event PEER_LEFT.

        Args:    timeout_s: seconds to wait for receivers; None waits as long as they live.
        Returns: None, when this member is out of the world. A world that was left stays so.
        Raises:  WorldTimeoutError if a receiver is too slow; WorldBrokenError. The world is over
                 for this member all the same.
        Example:

            world.leave(timeout_s=30)
            assert world.state.name == "CLOSED"
        """
        run_blocking(self.begin_leave(timeout_s), "leave")

    async def leave_async(self, *, timeout_s: float | None = LEAVE_S) -> None:
        """Like `leave`, but awaitable; cancelling it leaves at once."""
        await run_async(self.begin_leave(timeout_s))

    def send(self, array: Any, *, dst: int, timeout_s: float | None = None) -> None:
        """Send an array to a rank.

        Args:    array: a numpy array, a torch tensor, or what has the buffer protocol, DLPack or
                 `__cuda_array_interface__`. One that is not contiguous is copied. An array of
                 `alloc` is read-only from then on.
                 dst: the receiver's rank.
                 timeout_s: seconds to wait for room; None waits as long as the receiver lives.
        Returns: None, when the array may be written to again. The send of an array on a GPU waits
                 for its receiver.
        Raises:  WorldBrokenError; WorldTimeoutError, which takes the send back, except that of an
                 array on a GPU: there it ends the world; InvalidArgumentError; WrongTypeError.
        Cost:    one copy; none for an array of `alloc` over shared memory.
        Example:

            if world.rank == 0:
                world.send(np.arange(3), dst=1)
            else:
                assert world.recv(src=0).tolist() == [0, 1, 2]
        """
        messages = self.messages
        if not messages.is_plain_send(array):
            return run_blocking(messages.send(array, dst, timeout_s), "send")
        operation = messages.begin_send(array, dst, timeout_s)
        if operation is not None:
            what = f"send to rank {dst}"
            run_blocking(self.membership.finish(operation, timeout_s, what), "send")

    async def send_async(self, array: Any, *, dst: int, timeout_s: float | None = None) -> None:
        """Like `send`, but awaitable; cancelling it takes the send back.

        A part that has begun to travel still arrives. Cancelling the send of an array on a GPU ends
        the world.
        """
        messages = self.messages
        if not messages.is_plain_send(array):
            return await run_async(messages.send(array, dst, timeout_s))
        operation = messages.begin_send(array, dst, timeout_s)
        if operation is not None:
            what = f"send to rank {dst}"
            await run_async(self.membership.finish(operation, timeout_s, what))

    @overload
    def recv(self, into: None = None, *, src: int, timeout_s: float | None = None) -> Array: ...

    @overload
    def recv(self, into: T, *, src: int, timeout_s: float | None = None) -> T: ...

    def recv(self, into: Any = None, *, src: int, timeout_s: float | None = None) -> Any:
        """Receive the next message of a rank.

        Args:    into: the array to fill, of the message's dtype and size; None makes a new one. A
                 message from a GPU needs an array on a GPU, which is ready for any stream
                 afterwards.
                 src: the sender's rank.
                 timeout_s: seconds to wait; None waits as long as the sender lives.
        Returns: `into`, or a new numpy array of the message's dtype and shape. It is read-only if
                 it came without a copy (`alloc`).
        Raises:  WorldBrokenError, also if the message does not fit `into`; WorldTimeoutError, which
                 takes the receive back; InvalidArgumentError; WrongTypeError.
        Cost:    one copy; none for an array of `alloc` over shared memory.
        Example:

            if world.rank == 0:
                world.send(np.ones(3), dst=1)
            else:
                into = np.empty(3)
                assert world.recv(into, src=0, timeout_s=30) is into
        """
        messages = self.messages
        if not messages.is_plain_receive(into, src):
            return run_blocking(messages.receive(into, src, timeout_s), "recv")
        operation = messages.begin_receive(into, src, timeout_s)
        if operation is not None:
            run_blocking(messages.finish_receive(operation, into, src, timeout_s), "recv")
        return into

    @overload
    async def recv_async(
        self, into: None = None, *, src: int, timeout_s: float | None = None
    ) -> Array: ...

    @overload
    async def recv_async(self, into: T, *, src: int, timeout_s: float | None = None) -> T: ...

    async def recv_async(
        self, into: Any = None, *, src: int, timeout_s: float | None = None
    ) -> Any:
        """Like `recv`, but awaitable; cancelling it takes the receive back.

        A message that comes at that moment is the next receive's.
        """
        messages = self.messages
        if not messages.is_plain_receive(into, src):
            return await run_async(messages.receive(into, src, timeout_s))
        operation = messages.begin_receive(into, src, timeout_s)
        if operation is not None:
            await run_async(messages.finish_receive(operation, into, src, timeout_s))
        return into

    # ---- for this package

    def is_of(self, owner: WorldManager) -> bool:
        """True if that manager has made it."""
        return self._owner is owner

    def begin_leave(self, timeout_s: float | None) -> Waits[None]:
        """Leave, and release all that the world has, also if leaving fails."""
        self.membership.check_usable()
        checked_timeout(timeout_s)
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
