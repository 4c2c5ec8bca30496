"""`send` and `recv` between two members: arrays of the CPU, gifts, and arrays on GPUs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hoplite_ray._native import WorldOperation
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.deadlines import checked_timeout
from hoplite_ray.worlds.core.arrays import to_fill, to_send, view_message
from hoplite_ray.worlds.core.waiting import Deadline, Waits, loop_waiter
from hoplite_ray.worlds.gpu.arrays import is_on_gpu
from hoplite_ray.worlds.lending.notice import Notice
from hoplite_ray.worlds.ops import giving, transfers
from hoplite_ray.worlds.ops.call import SEND
from hoplite_ray.worlds.ops.membership import Membership
from hoplite_ray.worlds.ops.transfers import Offer, is_offer

Array = np.ndarray[Any, Any]
Message = Array | Offer | Notice


class Messages:
    """The messages of one member. It owns those that have come for a receive that was taken back.

    Any thread may use it. An array of the CPU is sent and received without a generator where the
    native core is done at once: `begin_send` and `begin_receive` are for that.
    """

    def __init__(self, world: Membership) -> None:
        self._world = world
        self._kept: defaultdict[int, deque[Callable[[], Message]]] = defaultdict(deque)

    # ---- sends

    def is_plain_send(self, array: Any) -> bool:
        """True if a send of this array begins at once, by `begin_send`."""
        world = self._world
        return not (is_on_gpu(array) or world.loans.is_ours(array) or world.sending)

    def begin_send(self, array: Any, dst: int, timeout_s: float | None) -> WorldOperation | None:
        """Begin to send an array of the CPU; None: it is done. REQUIRES: `is_plain_send`."""
        self._world.check_usable()
        checked_timeout(timeout_s)
        lent = to_send(array)
        dst = self._world.check_other("dst", dst)
        return self._world.edges.send(dst, 0, SEND, lent.dtype, lent.shape, lent.buffer)

    def send(self, array: Any, dst: int, timeout_s: float | None) -> Waits[None]:
        """Send any array; ends when it may be written to again."""
        if is_on_gpu(array):
            yield from self._send_from_gpu(array, dst, timeout_s)
        elif self._world.loans.is_ours(array):
            yield from giving.give_away(self._world, array, dst, timeout_s)
        elif self._world.sending:
            yield from self._send_behind(array, dst, timeout_s)
        else:
            operation = self.begin_send(array, dst, timeout_s)
            if operation is not None:
                yield from self._world.finish(operation, timeout_s, f"send to rank {dst}")

    def _send_behind(self, array: Any, dst: int, timeout_s: float | None) -> Waits[None]:
        """Send after the earlier sends that wait for a gift."""
        world = self._world
        world.check_usable()
        checked_timeout(timeout_s)
        dst, deadline = world.check_other("dst", dst), Deadline(timeout_s)
        with world.sending.queued(dst) as turn:
            if not (yield from turn.wait_for_others(deadline)):
                raise world.unbegun_error(dst, timeout_s)
            sent = self.begin_send(array, dst, timeout_s)
        if sent is not None:
            yield from world.finish(sent, deadline.left_s(), f"send to rank {dst}")

    def _send_from_gpu(self, array: Any, dst: int, timeout_s: float | None) -> Waits[None]:
        world = self._world
        world.check_usable()
        checked_timeout(timeout_s)
        dst = world.check_other("dst", dst)
        if dst not in world.sending:
            return (yield from transfers.send(world, array, dst, timeout_s))
        deadline = Deadline(timeout_s)
        with world.sending.queued(dst) as turn:
            if not (yield from turn.wait_for_others(deadline)):
                raise world.unbegun_error(dst, timeout_s)
            return (yield from transfers.send(world, array, dst, deadline.left_s()))

    # ---- receives

    def is_plain_receive(self, into: Any, src: int) -> bool:
        """True if a receive into this buffer begins at once, by `begin_receive`."""
        return not (into is None or self.has_kept(src) or is_on_gpu(into))

    def begin_receive(self, into: Any, src: int, timeout_s: float | None) -> WorldOperation | None:
        """Begin to receive into an array of the CPU; None: it is done."""
        self._world.check_usable()
        checked_timeout(timeout_s)
        lent = to_fill(into)
        src = self._world.check_other("src", src)
        return self._world.edges.receive(src, 0, SEND, lent.dtype, lent.buffer)

    def finish_receive(
        self, operation: WorldOperation, into: Any, src: int, timeout_s: float | None
    ) -> Waits[None]:
        """Wait for a receive into an array of the CPU."""

        def keep() -> None:
            if operation.received() is not None:
                self._kept[src].append(lambda: self._received(operation, src))
                return
            lent = to_fill(into)
            array = lent.flat.copy().reshape(lent.shape)
            self._kept[src].append(lambda: array)

        deadline = Deadline(timeout_s)
        yield from self._world.finish(operation, timeout_s, f"receive from rank {src}", keep)
        if operation.received() is not None:  # a notice, beside the buffer
            message = self._received(operation, src)
            yield from self._deliver(message, into, src, deadline.left_s())

    def receive(self, into: Any, src: int, timeout_s: float | None) -> Waits[Any]:
        """Receive into any array, or as a new numpy array on the message's own memory.

        A message that was kept comes first.
        """
        self._world.check_usable()
        src = self._world.check_other("src", src)
        if is_on_gpu(into):
            self._world.gpu.lend(into, is_filled=True)  # raises before anything is received
        if self._kept[src] and self._world.edges.end() is None:
            return (yield from self._deliver(self._kept[src].popleft()(), into, src, timeout_s))
        checked_timeout(timeout_s)
        deadline = Deadline(timeout_s)
        operation = self._world.edges.receive_new(src, 0, SEND)

        def keep() -> None:
            self._kept[src].append(lambda: self._received(operation, src))

        yield from self._world.finish(operation, timeout_s, f"receive from rank {src}", keep)
        message = self._received(operation, src)
        return (yield from self._deliver(message, into, src, deadline.left_s()))

    def receive_by_callback(self, src: int, came: Callable[[], None]) -> Callable[[], Any]:
        """Receive as `receive` does, by calls instead of a coroutine, which take less of the CPU.

        came:  called in the running event loop, once.

        Returns: what to call then, for the array or to raise. Dropped before, the receive is taken
                 back.
        """
        self._world.check_usable()
        operation = self._world.edges.receive_new(src, 0, SEND)
        loop_waiter().call(operation, came)

        def take() -> Any:
            self._world.check(operation)
            return self._open(self._received(operation, src), src)

        return take

    def has_kept(self, src: int) -> bool:
        """True if a message of that rank came for a receive that was taken back at that moment."""
        return bool(self._kept) and bool(self._kept.get(self._world.check_other("src", src)))

    def _received(self, operation: WorldOperation, src: int) -> Message:
        received = operation.received()
        assert received is not None  # the operation is done
        if received.is_notice:
            return self._world.loans.notice(received, src)
        if is_offer(received.dtype):
            return Offer(received.dtype, received.shape, received)
        return view_message(received, received.dtype, received.shape)

    def _open(self, message: Message, src: int) -> Array | Offer:
        """Return the array that a notice is of; other messages stay as they are."""
        if not isinstance(message, Notice):
            return message
        try:
            return self._world.loans.array(message)
        except InvalidArgumentError as error:
            raise self._world.report_mismatch(f"rank {src} sent a notice of {error}") from None

    def _deliver(
        self, message: Message, into: Any, src: int, timeout_s: float | None
    ) -> Waits[Any]:
        """Return the message as a new array, or fill `into` with it."""
        message = self._open(message, src)
        world = self._world
        if isinstance(message, Offer):
            if into is None:
                self._kept[src].appendleft(lambda: message)
                raise InvalidArgumentError(
                    f"rank {src} sent {message}; receive it into such an array on a GPU"
                )
            if is_on_gpu(into):
                yield from transfers.receive(world, message, into, src, timeout_s)
                return into
            raise world.report_mismatch(
                f"rank {src} sent {message}, and memory of the CPU was given"
            )
        if into is None:
            return message
        sent = f"rank {src} sent {message.dtype}{list(message.shape)}"
        if is_on_gpu(into):
            raise world.report_mismatch(
                f"{sent} of the CPU, and an array on a GPU was to be received"
            )
        lent = to_fill(into)
        if (lent.flat.dtype, lent.flat.size) != (message.dtype, message.size):
            raise world.report_mismatch(f"{sent}, which does not fit its buffer")
        lent.flat[...] = message.reshape(-1)
        return into
