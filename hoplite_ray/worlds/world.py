"""One world as one member sees it: send, receive and collectives, awaitable and blocking.

An operation has succeeded only if the native core says so of each of its parts; whatever else ends
it is raised.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hoplite_ray._native import WorldEdges, WorldOperation
from hoplite_ray.errors import (
    InvalidArgumentError,
    UnusableAfterForkError,
    WorldBrokenError,
    WorldTimeoutError,
)
from hoplite_ray.worlds.core.arrays import fresh, to_fill, to_send
from hoplite_ray.worlds.core.checks import check_timeout, whole
from hoplite_ray.worlds.core.sending import Sendings
from hoplite_ray.worlds.core.waiting import (
    BROKEN,
    DONE,
    PENDING,
    Deadline,
    Turn,
    Waits,
    loop_waiter,
    run_async,
    run_blocking,
)
from hoplite_ray.worlds.events import Cause, EventStream, State, WorldEvent
from hoplite_ray.worlds.gpu.arrays import is_on_gpu
from hoplite_ray.worlds.gpu.nccl import Gpu
from hoplite_ray.worlds.lending.loans import Loans
from hoplite_ray.worlds.lending.notice import Notice
from hoplite_ray.worlds.ops import collectives, giving, transfers
from hoplite_ray.worlds.ops.transfers import Offer, is_offer

Array = np.ndarray[Any, Any]
Message = Array | Offer | Notice

LEAVE_S = 10.0  # what may be under way, 4 MiB for each edge, takes a slow receiver far less


class Owner(Protocol):
    """Who has made a world, and gives back what it has."""

    def events(self, world: World | None = None) -> EventStream:
        """Begin to iterate over what happens to a world."""

    def end(self, world: World, *, is_left: bool = False) -> None:
        """A world is over, perhaps because it was left. From any thread; idempotent."""


class World:
    """One epoch of a named world, as its member `rank` of `size`. Made by `WorldManager.join`.

    Awaitable operations are methods; `blocking` has the same names without await. All take
    `timeout_s`, seconds; None waits as long as all members live. They raise WorldBrokenError once
    the world has ended, WorldTimeoutError at the limit, and InvalidArgumentError or WrongTypeError
    for arguments. Messages between two ranks arrive in order; every member calls the collectives of
    a world in the same order. What an array holds after an operation has failed is undefined.

    Source: MultiWorld.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        rank: int,
        size: int,
        edges: WorldEdges,
        owner: Owner,
        carried: Gpu,
        loans: Loans,
    ) -> None:
        """For WorldManager."""
        self.name = name
        self.epoch = epoch
        self.rank = rank
        self.size = size
        self.edges = edges
        self.gpu = carried
        self.loans = loans
        self.rounds = 0
        self.turns: list[Turn] = []
        self.broken: WorldEvent | None = None
        self.gone: dict[int, WorldEvent] = {}  # who has left
        self.blocking = BlockingWorld(self)
        others = [other for other in range(size) if other != rank]
        self.transports = {other: edges.transport(other) for other in others}
        self.sending = Sendings()
        self._kept: defaultdict[int, deque[Callable[[], Message]]] = defaultdict(deque)
        self._state = State.READY
        self._owner = owner
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"World({self.name!r}, epoch={self.epoch}, rank={self.rank}, size={self.size})"

    def __str__(self) -> str:
        return f"world {self.name!r} (epoch {self.epoch})"

    @property
    def state(self) -> State:
        """READY, LEAVING, CLOSED or BROKEN. Raises UnusableAfterForkError in a forked child."""
        self.check_usable()  # another thread may have held what is asked, at the fork
        if self._state is not State.CLOSED and self.edges.end() is not None:
            return State.BROKEN
        return self._state

    @property
    def device(self) -> int | None:
        """The GPU whose arrays this world carries, by NCCL; None: it carries the CPU's only."""
        return None if self.gpu.lacks else self.gpu.device

    def events(self) -> EventStream:
        """Iterate over what happens to this world from now on: `async for event in w.events()`.

        Who has left before comes first, and then that it has broken, which is the last thing that
        happens to a world.
        """
        return self._owner.events(self)

    def alloc(self, shape: Sequence[int] | int, dtype: Any = np.float32) -> Array:
        """Return an array whose elements are undefined, and which is given away by sending it.

        Over shared memory it is not copied then: the receiver's array is on the same memory, and
        read-only, as the sender's is from then on. Its memory serves the next array once neither
        has one on it. Of less than 64 KiB, and over TCP, it is sent as any other; collectives take
        it as any other.

        Raises:  WrongTypeError for a dtype of objects; WorldError if there is no memory.
        Cost:    the first use of each page of new memory; none of memory that is used again.
        """
        self.check_usable()
        return self.loans.alloc(shape, dtype)

    def abort(self, why: str) -> None:
        """End the world for all members, at once. From any thread; idempotent."""
        self.check_usable()
        self.edges.abort(Cause.ABORTED, str(why))

    async def leave(self, *, timeout_s: float | None = LEAVE_S) -> None:
        """Leave when all that was sent has reached the others; they are told that it is no death.

        Raises:  WorldTimeoutError, WorldBrokenError; the world is over for us all the same.
        """
        await run_async(self.begin_leave(timeout_s))

    async def send(self, array: Any, *, dst: int, timeout_s: float | None = None) -> None:
        """Send an array to a rank; returns when it may be written to again.

        One of `alloc` is read-only from then on.
        One on a GPU waits for its receiver, and can't be taken back: a timeout ends the world.
        """
        if is_on_gpu(array):
            return await run_async(self.send_from_gpu(array, dst, timeout_s))
        if self.loans.is_ours(array):
            return await run_async(self.give_away(array, dst, timeout_s))
        if self.sending:
            return await run_async(self.send_behind(array, dst, timeout_s))
        operation = self.begin_send(array, dst, timeout_s)
        if operation is not None:
            await run_async(self.finish(operation, timeout_s, f"send to rank {dst}"))

    async def recv(self, into: Any = None, *, src: int, timeout_s: float | None = None) -> Any:
        """Receive the next message of a rank: into an array of its dtype and size, or a new one.

        What was sent from a GPU is received into an array on one, which is ready for any stream.

        Returns: `into`, or a numpy array: a read-only one if it came without a copy (`alloc`).
        """
        if into is None or self.has_kept(src) or is_on_gpu(into):
            return await run_async(self.receive_new(into, src, timeout_s))
        operation = self.begin_receive(into, src, timeout_s)
        if operation is not None:
            await run_async(self.finish_receive(operation, into, src, timeout_s))
        return into

    async def broadcast(self, array: Any, *, src: int, timeout_s: float | None = None) -> Any:
        """Fill every member's `array`, of one dtype and size, from that of `src`; returns it."""
        return await run_async(collectives.broadcast(self.usable(), array, src, timeout_s))

    async def all_reduce(
        self, array: Any, *, op: str = "sum", timeout_s: float | None = None
    ) -> Any:
        """Fold all members' arrays, in place: "sum", "prod", "min" or "max". All get the same bits.

        Cost: above 64 KiB a ring, 2 (n - 1) / n of the array out of and into each member.
        """
        return await run_async(collectives.all_reduce(self.usable(), array, op, timeout_s))

    async def reduce(
        self, array: Any, *, dst: int, op: str = "sum", timeout_s: float | None = None
    ) -> Any:
        """Fold all members' arrays into the one of `dst`, in place; the others' stay."""
        return await run_async(collectives.reduce(self.usable(), array, dst, op, timeout_s))

    async def all_gather(
        self, array: Any, *, out: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """Return a list of all members' arrays, by rank; all are of one dtype and shape.

        They are new numpy arrays, or those of `out`, filled.
        """
        return await run_async(collectives.all_gather(self.usable(), array, out, timeout_s))

    async def gather(
        self,
        array: Any,
        *,
        dst: int,
        out: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any] | None:
        """Return that list at `dst`, and None elsewhere."""
        return await run_async(collectives.gather(self.usable(), array, dst, out, timeout_s))

    async def scatter(
        self,
        arrays: Sequence[Any] | None = None,
        *,
        src: int,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Give each member one of the `arrays` of `src`: into `into`, which all but `src` need."""
        return await run_async(collectives.scatter(self.usable(), arrays, src, into, timeout_s))

    async def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when all members have called it."""
        await run_async(collectives.barrier(self.usable(), timeout_s))

    # ---- for this package: what both twins do

    def is_of(self, owner: Owner) -> bool:
        """Whether it was made by that manager."""
        return self._owner is owner

    def usable(self) -> World:
        """Return itself, in the process that has joined."""
        self.check_usable()
        return self

    def check_usable(self) -> None:
        """Raise UnusableAfterForkError in a forked child, which would write between our bytes."""
        if os.getpid() != self._pid:
            raise UnusableAfterForkError(
                f"{self} was joined by this process's parent; join worlds after the fork, with a "
                "manager of this process"
            )

    def begin_send(self, array: Any, dst: int, timeout_s: float | None) -> WorldOperation | None:
        """Begin; None: it is done."""
        self.check_usable()
        check_timeout(timeout_s)
        lent = to_send(array)
        dst = self.other("dst", dst)
        return self.edges.send(dst, 0, collectives.SEND, lent.dtype, lent.shape, lent.buffer)

    def send_behind(self, array: Any, dst: int, timeout_s: float | None) -> Waits[None]:
        """As `begin_send` and `finish`, after those before it that wait for a gift."""
        self.check_usable()
        check_timeout(timeout_s)
        dst, deadline = self.other("dst", dst), Deadline(timeout_s)
        with self.sending.queued(dst) as turn:
            if not (yield from turn.wait_for_others(deadline)):
                raise self.not_begun(dst, timeout_s)
            sent = self.begin_send(array, dst, timeout_s)
        if sent is not None:
            yield from self.finish(sent, deadline.left_s(), f"send to rank {dst}")

    def give_away(self, array: Array, dst: int, timeout_s: float | None) -> Waits[None]:
        """Send an array of `alloc`: where it lies, if the receiver can map it."""
        return giving.give_away(self, array, dst, timeout_s)

    def send_from_gpu(self, array: Any, dst: int, timeout_s: float | None) -> Waits[None]:
        """Send an array on a GPU."""
        self.check_usable()
        check_timeout(timeout_s)
        dst = self.other("dst", dst)
        if dst not in self.sending:
            return (yield from transfers.send(self, array, dst, timeout_s))
        deadline = Deadline(timeout_s)
        with self.sending.queued(dst) as turn:
            if not (yield from turn.wait_for_others(deadline)):
                raise self.not_begun(dst, timeout_s)
            return (yield from transfers.send(self, array, dst, deadline.left_s()))

    def not_begun(self, dst: int, timeout_s: float | None) -> WorldTimeoutError:
        """Return what to raise for a send whose time ran out before it."""
        return WorldTimeoutError(
            f"send to rank {dst} in {self} did not begin within {timeout_s} s; the array is still "
            "yours"
        )

    def begin_receive(self, into: Any, src: int, timeout_s: float | None) -> WorldOperation | None:
        """Begin; None: it is done."""
        self.check_usable()
        check_timeout(timeout_s)
        lent = to_fill(into)
        src = self.other("src", src)
        return self.edges.receive(src, 0, collectives.SEND, lent.dtype, lent.buffer)

    def hear(self, src: int, came: Callable[[], None]) -> Callable[[], Any]:
        """Receive as `recv` does, with calls instead of a coroutine, which take less of the CPU.

        `came` is called in the running event loop, once. What is returned is then to be called: for
        the array, or to raise. Dropped before, the receive is taken back.
        """
        self.check_usable()
        operation = self.edges.receive_new(src, 0, collectives.SEND)
        loop_waiter().call(operation, came)

        def taken() -> Any:
            self.check(operation)
            return self._opened(self._received(operation, src), src)

        return taken

    def has_kept(self, src: int) -> bool:
        """Whether a message of that rank came for a receive that was taken back at that moment."""
        return bool(self._kept) and bool(self._kept.get(self.other("src", src)))

    def receive_new(self, into: Any, src: int, timeout_s: float | None) -> Waits[Any]:
        """Receive what comes, as a numpy array on its own memory, or what had been kept."""
        self.check_usable()
        src = self.other("src", src)
        if is_on_gpu(into):
            self.gpu.lend(into, is_filled=True)  # a mistake is told before anything is received
        if self._kept[src] and self.edges.end() is None:
            return (yield from self._given(self._kept[src].popleft()(), into, src, timeout_s))
        check_timeout(timeout_s)
        deadline = Deadline(timeout_s)
        operation = self.edges.receive_new(src, 0, collectives.SEND)

        def keep() -> None:
            self._kept[src].append(lambda: self._received(operation, src))

        yield from self.finish(operation, timeout_s, f"receive from rank {src}", keep)
        message = self._received(operation, src)
        return (yield from self._given(message, into, src, deadline.left_s()))

    def finish_receive(
        self, operation: WorldOperation, into: Any, src: int, timeout_s: float | None
    ) -> Waits[None]:
        """Wait for a receive into an array."""

        def keep() -> None:
            if operation.received() is not None:
                self._kept[src].append(lambda: self._received(operation, src))
                return
            lent = to_fill(into)
            array = lent.flat.copy().reshape(lent.shape)
            self._kept[src].append(lambda: array)

        deadline = Deadline(timeout_s)
        yield from self.finish(operation, timeout_s, f"receive from rank {src}", keep)
        if operation.received() is not None:  # a notice, beside the buffer
            message = self._received(operation, src)
            yield from self._given(message, into, src, deadline.left_s())

    def _received(self, operation: WorldOperation, src: int) -> Message:
        received = operation.received()
        assert received is not None  # it is done
        if received.is_notice:
            return self.loans.notice(received, src)
        if is_offer(received.dtype):
            return Offer(received.dtype, received.shape, received)
        return fresh(received, received.dtype, received.shape)

    def _opened(self, message: Message, src: int) -> Array | Offer:
        if not isinstance(message, Notice):
            return message
        try:
            return self.loans.array(message)
        except InvalidArgumentError as error:
            raise self.mismatched(f"rank {src} sent a notice of {error}") from None

    def _given(self, message: Message, into: Any, src: int, timeout_s: float | None) -> Waits[Any]:
        message = self._opened(message, src)
        if isinstance(message, Offer):
            if into is None:
                self._kept[src].appendleft(lambda: message)
                raise InvalidArgumentError(
                    f"rank {src} sent {message}; receive it into such an array on a GPU"
                )
            if is_on_gpu(into):
                yield from transfers.take(self, message, into, src, timeout_s)
                return into
            raise self.mismatched(f"rank {src} sent {message}, and memory of the CPU was given")
        if into is None:
            return message
        sent = f"rank {src} sent {message.dtype}{list(message.shape)}"
        if is_on_gpu(into):
            raise self.mismatched(f"{sent} of the CPU, and an array on a GPU was to be received")
        lent = to_fill(into)
        if (lent.flat.dtype, lent.flat.size) != (message.dtype, message.size):
            raise self.mismatched(f"{sent}, which does not fit its buffer")
        lent.flat[...] = message.reshape(-1)
        return into

    def mismatched(self, why: str) -> WorldBrokenError:
        """End the world for all because members do different things; the error to raise."""
        self.edges.abort(Cause.PROTOCOL, why)
        return self._broken_error()

    def other(self, what: str, rank: Any) -> int:
        """Return another member's rank, as Python's own number.

        Raises:  WrongTypeError or InvalidArgumentError for what is none.
        """
        number: int = rank if type(rank) is int else whole(what, rank)
        if number not in self.transports:
            raise InvalidArgumentError(
                f"{what}={number} is no other rank of {self}, which has 0 to {self.size - 1}; this "
                f"is rank {self.rank}"
            )
        return number

    def begin_leave(self, timeout_s: float | None) -> Waits[None]:
        """Leave, and give everything back, however that ends."""
        self.check_usable()
        check_timeout(timeout_s)
        if self._state is State.CLOSED:
            return
        self._state = State.LEAVING
        try:
            operation = self.edges.leave()
            if operation.state == PENDING and not (yield operation, timeout_s):
                raise WorldTimeoutError(
                    f"{self} was left, but not all that was sent was taken within {timeout_s} s; "
                    "to the others it has ended before that"
                )
            self.check(operation)
            self._state = State.CLOSED
        finally:
            self._owner.end(self, is_left=True)

    def finish(
        self,
        operation: WorldOperation,
        timeout_s: float | None,
        what: str,
        keep: Callable[[], None] | None = None,
    ) -> Waits[None]:
        """Wait for one operation. Taken back, it loses nothing: the world stays usable.

        `keep` is called if a receive is taken back when its message has just come.
        """
        try:
            has_ended = operation.state != PENDING or (yield operation, timeout_s)
        except BaseException:
            if not operation.cancel() and operation.state == DONE and keep is not None:
                keep()
            raise
        if not has_ended and operation.cancel():
            raise WorldTimeoutError(
                f"{what} in {self} did not finish within {timeout_s} s; it was taken back (what "
                "had begun to go still arrives), and the world stays usable"
            )
        self.check(operation)

    def check(self, operation: WorldOperation) -> None:
        """Raise unless it has succeeded."""
        if operation.state == DONE:
            return
        if operation.state == BROKEN:
            raise self._broken_error()
        raise WorldTimeoutError(f"an operation in {self} was taken back")

    def _broken_error(self) -> WorldBrokenError:
        now_ns = time.monotonic_ns()
        end = self.edges.end()
        if end is None:  # it was closed, and what was pending with it
            cause = Cause.LOCAL.name
            text = f"{self} was left; join it anew"
            return WorldBrokenError(text, self.name, self.epoch, self.rank, cause, now_ns)
        number, rank, why = end
        cause = Cause(number).name
        return WorldBrokenError(
            f"{self} has ended: {cause}, rank {rank}: {why}; join it again, with all members, for "
            "its next epoch",
            self.name,
            self.epoch,
            rank,
            cause,
            now_ns if self.broken is None else self.broken.at_ns,
        )


class BlockingWorld:
    """The operations of a world for a thread that waits in them. Ctrl-C takes one back."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, array: Any, *, dst: int, timeout_s: float | None = None) -> None:
        """As `World.send`."""
        if is_on_gpu(array):
            return run_blocking(self._world.send_from_gpu(array, dst, timeout_s))
        if self._world.loans.is_ours(array):
            return run_blocking(self._world.give_away(array, dst, timeout_s))
        if self._world.sending:
            return run_blocking(self._world.send_behind(array, dst, timeout_s))
        operation = self._world.begin_send(array, dst, timeout_s)
        if operation is not None:
            run_blocking(self._world.finish(operation, timeout_s, f"send to rank {dst}"))

    def recv(self, into: Any = None, *, src: int, timeout_s: float | None = None) -> Any:
        """As `World.recv`."""
        if into is None or self._world.has_kept(src) or is_on_gpu(into):
            return run_blocking(self._world.receive_new(into, src, timeout_s))
        operation = self._world.begin_receive(into, src, timeout_s)
        if operation is not None:
            run_blocking(self._world.finish_receive(operation, into, src, timeout_s))
        return into

    def broadcast(self, array: Any, *, src: int, timeout_s: float | None = None) -> Any:
        """As `World.broadcast`."""
        return run_blocking(collectives.broadcast(self._world.usable(), array, src, timeout_s))

    def all_reduce(self, array: Any, *, op: str = "sum", timeout_s: float | None = None) -> Any:
        """As `World.all_reduce`."""
        return run_blocking(collectives.all_reduce(self._world.usable(), array, op, timeout_s))

    def reduce(
        self, array: Any, *, dst: int, op: str = "sum", timeout_s: float | None = None
    ) -> Any:
        """As `World.reduce`."""
        return run_blocking(collectives.reduce(self._world.usable(), array, dst, op, timeout_s))

    def all_gather(
        self, array: Any, *, out: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """As `World.all_gather`."""
        return run_blocking(collectives.all_gather(self._world.usable(), array, out, timeout_s))

    def gather(
        self,
        array: Any,
        *,
        dst: int,
        out: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> list[Any] | None:
        """As `World.gather`."""
        return run_blocking(collectives.gather(self._world.usable(), array, dst, out, timeout_s))

    def scatter(
        self,
        arrays: Sequence[Any] | None = None,
        *,
        src: int,
        into: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """As `World.scatter`."""
        return run_blocking(collectives.scatter(self._world.usable(), arrays, src, into, timeout_s))

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """As `World.barrier`."""
        run_blocking(collectives.barrier(self._world.usable(), timeout_s))

    def leave(self, *, timeout_s: float | None = LEAVE_S) -> None:
        """As `World.leave`."""
        run_blocking(self._world.begin_leave(timeout_s))
