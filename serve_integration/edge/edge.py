"""An edge between two replicas: a world of two, over which each calls the other.

A call is a message with a number, and so is its reply (protocol.py); messages go in frames
(outbox.py, frames.py). Arrays on GPUs inside of a request or an answer follow the frame by NCCL
if both replicas use a GPU when their edge is made. When the world breaks, all open calls raise
EdgeBrokenError, and the edge is over. Edges are opened by door.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from hoplite_ray import WorldBrokenError, WorldError
from hoplite_ray.serve.edge import gpu_arrays
from hoplite_ray.serve.edge.failures import describe_error, pack_failure, unsendable_error
from hoplite_ray.serve.edge.frames import Message, unpack_frame
from hoplite_ray.serve.edge.handles import Lender, borrow
from hoplite_ray.serve.edge.outbox import Outbox
from hoplite_ray.serve.edge.protocol import (
    ACTIVE,
    BEGUN,
    CALL,
    CALL_ALONE,
    CANCELLED,
    FAILURE,
    REPLY,
    Action,
    Protocol,
)
from hoplite_ray.serve.errors import EdgeBrokenError
from hoplite_ray.worlds import Cause, World

logger = logging.getLogger("hoplite_ray.serve")

# Notifies the caller that work on its call begins (True) or has ended (False). Returns an event,
# which is set when this end has sent all messages, or the edge has broken.
NotifyRunning = Callable[[bool], asyncio.Event]
# The edge calls it with each request that arrives, and awaits the result in a task.
Handler = Callable[[Any, NotifyRunning], Awaitable[Any]]

_IGNORE, _ANSWER, _ANSWER_ALONE, _SETTLE, _CANCEL, _ACTIVATE = Action  # once, as in protocol.py
_NO_NUMBER = -1  # of a call that waits for room, which the protocol does not know
_OF_NO_CALL = 0  # the number of a message that belongs to no call
_LEAVE_S = 1.0  # for the last messages at a close, and again for the world to end


class Edge:
    """One end of an edge. It belongs to one event loop.

    is_broken:     True if the edge is over.
    has_left:      True if it is over because the peer left; a peer that leaves has not died.
    calls_open:    calls of this end that have no answer yet, with those that wait for room.
    calls_broken:  calls that were open when the edge broke.
    is_parked:     True if the peer has said that it is parked, and not yet that it is active.
    """

    def __init__(
        self,
        world: World,
        handler: Handler,
        what: str = "the value",
        reading_lock: asyncio.Lock | None = None,
        *,
        is_parked: bool = False,
        notify_active: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to receive.

        what:          names the values of this end in errors.
        reading_lock:  is held while a call that may kill this process is read. All edges of a door
                       share it.
        is_parked:     True if the peer said so when the edge was opened.
        notify_active: is called when the peer says that it is active.
        """
        self.world = world
        self.is_parked = is_parked
        self._notify_active = notify_active
        self._reading_lock = reading_lock or asyncio.Lock()
        self._what = what
        self.is_broken = False
        self.has_left = False
        self.calls_open = 0
        self.calls_broken = 0
        self._peer = 1 - world.rank
        self._handler = handler
        self._protocol = Protocol()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._outbox = Outbox(
            world, lambda error: self._handle_failure(error, "what was to go by it can't")
        )
        self._answer_tasks: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self._context = contextvars.copy_context()
        self._read_frame: Callable[[], Any] | None = None  # returns the frame that has arrived
        self._receive_task: asyncio.Task[None] | None = None  # arrays on GPUs of one frame
        self._lender = Lender()
        self._borrow_tasks: set[asyncio.Task[None]] = set()  # handles in replies
        self._expect_frame()

    async def call(self, request: Any, *, alone: bool = False) -> Any:
        """Have the peer's handler answer `request`. Cancelling the call cancels the handler.

        alone:  True if reading the request may kill the peer. The peer then says that its work
                begins before it reads the request.

        Raises:  EdgeBrokenError when the edge is over; or what the handler raised.
        """
        if self.is_broken:
            raise EdgeBrokenError(f"{self.world} has ended", was_sent=False)
        self.calls_open += 1
        number, message = _NO_NUMBER, None
        try:
            if not self._outbox.has_room.is_set():
                await self._outbox.has_room.wait()
                if self.is_broken:
                    raise EdgeBrokenError(f"{self.world} has ended", was_sent=False)
            number = self._protocol.open()
            reply = self._replies[number] = asyncio.get_running_loop().create_future()
            message = self._pack(CALL_ALONE if alone else CALL, number, request)
            self._outbox.post(message)
            return await reply
        except asyncio.CancelledError:
            if self._protocol.cancel(number):
                self._outbox.post(Message.pack(CANCELLED, number, None))
            raise
        finally:
            self.calls_open -= 1
            self._protocol.close(number)
            self._replies.pop(number, None)
            if message is not None:
                self._lender.release(message)

    def announce_active(self) -> None:
        """Tell the peer that this end is not parked any more."""
        if not self.is_broken:
            self._outbox.post(Message.pack(ACTIVE, _OF_NO_CALL, None))

    async def wait_closed(self) -> None:
        """Return when the edge is over, whichever end ended it."""
        await self._ended.wait()

    async def close(self) -> None:
        """Send what waits, then leave the world. Open calls raise EdgeBrokenError."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._outbox.has_sent.wait(), _LEAVE_S)
        self._break("it was closed")
        try:
            await self.world.leave_async(timeout_s=_LEAVE_S)
        except WorldError as error:
            logger.debug("left %s: %s", self.world, error)

    def _pack(self, kind: int, number: int, value: Any) -> Message:
        """Pack a value. Raises TypeError for a value that pickle can't take."""
        try:
            return self._lender.lend(Message.pack(kind, number, value, self.world.device))
        except BaseException as error:  # a SystemExit of the value would end this loop
            raise unsendable_error(self._what, error) from error

    def _handle_failure(self, error: Exception, what: str) -> None:
        if isinstance(error, WorldError):
            self._handle_world_end(error)
        else:  # for example a frame of another version, or no memory on the GPU
            self._abort(f"{what}: {describe_error(error)}")

    def _expect_frame(self) -> None:
        try:
            self._read_frame = self.world.messages.receive_by_callback(
                self._peer, self._handle_arrival
            )
        except Exception as error:
            self._handle_failure(error, "nothing that comes by it can be had")

    def _handle_arrival(self) -> None:
        self._context.run(self._handle_frame)

    def _handle_frame(self) -> None:
        read_frame, self._read_frame = self._read_frame, None
        if read_frame is None:  # the edge has ended
            return
        try:
            messages = unpack_frame(read_frame())
            if any(message.description is not None for message in messages):
                self._receive_task = asyncio.create_task(self._handle_with_arrays(messages))
                return
            for message in messages:
                self._handle_message(message)
        except Exception as error:
            self._handle_failure(error, "what came by it can't be had")
        if not self.is_broken:
            self._expect_frame()

    async def _handle_with_arrays(self, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                self._handle_message(await self._receive_arrays(message))
        except Exception as error:
            self._handle_failure(error, "what came by it can't be had")
        if not self.is_broken:
            self._expect_frame()

    async def _receive_arrays(self, message: Message) -> Message:
        """Receive the arrays on the GPU that follow a message's frame."""
        if message.description is None:
            return message
        if self.world.device is None:
            raise ValueError("arrays of a GPU are announced on an edge without one")
        arrays = gpu_arrays.make_arrays(message.description, self.world.device)
        for array in arrays:
            await self.world.recv_async(array, src=self._peer)
        message.arrays = arrays
        return message

    def _handle_message(self, message: Message) -> None:
        kind, number = message.kind, message.number
        if kind == REPLY or kind == FAILURE:
            self._handle_reply(message)
            return
        has_begun = kind == BEGUN and bool(message.value())
        action = self._protocol.handle(kind, number, has_begun=has_begun)
        if action is _ANSWER:
            if message.lender is None:
                self._answer_now(message)
            else:
                self._begin(number, self._answer_lent(message))
        elif action is _ANSWER_ALONE:
            self._begin(number, self._answer_alone(message))
        elif action is _CANCEL:
            _cancel_after_first_step(self._answer_tasks[number])
        elif action is _ACTIVATE:
            self.is_parked = False
            self._notify_active()

    def _answer_now(self, message: Message) -> None:
        """Answer a call. The edge calls the handler in the order of the calls."""
        try:
            answer = self._handler(message.value(), partial(self._notify_running, message.number))
        except BaseException as error:
            self._protocol.finish(message.number)
            self._post_failure(message.number, error)
            return
        self._begin(message.number, self._answer(message.number, answer))

    def _handle_reply(self, message: Message) -> None:
        if message.lender is None:
            self._settle_call(message)
            return
        task = asyncio.create_task(self._borrow_for_reply(message))
        self._borrow_tasks.add(task)
        task.add_done_callback(self._borrow_tasks.discard)

    def _settle_call(self, message: Message) -> None:
        if self._protocol.handle(message.kind, message.number) is not _SETTLE:
            return
        reply = self._replies[message.number]
        if reply.done():  # the caller is being cancelled
            return
        try:
            value = message.value()
        except BaseException as error:
            reply.set_exception(
                RuntimeError(f"the reply can't be read here: {describe_error(error)}")
            )
            return
        if message.kind == REPLY:
            reply.set_result(value)
        elif isinstance(value, Exception) and not isinstance(value, StopIteration):
            reply.set_exception(value)
        else:
            reply.set_exception(RuntimeError(f"an error that reads here as {value!r:.200}"))

    async def _borrow_for_reply(self, message: Message) -> None:
        """Borrow the handles of a reply, and settle its call.

        Handles are borrowed also if no caller waits, because their sender keeps them until then.
        """
        try:
            message.handles = await borrow(message)
        except Exception as error:  # the call then goes to another replica
            self._abort(f"the refs in a reply can't be had: {describe_error(error)}")
            return
        self._settle_call(message)

    async def _answer_lent(self, message: Message) -> None:
        """Answer a call that has handles."""
        try:
            message.handles = await borrow(message)
            answer = self._handler(message.value(), partial(self._notify_running, message.number))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            self._post_failure(message.number, error)
            return
        await self._answer(message.number, answer)

    def _begin(self, number: int, answering: Coroutine[Any, Any, None]) -> None:
        task = self._answer_tasks[number] = asyncio.create_task(answering)
        task.add_done_callback(lambda _: self._finish_answer(number))

    def _finish_answer(self, number: int) -> None:
        self._answer_tasks.pop(number, None)
        self._protocol.finish(number)

    async def _answer_alone(self, message: Message) -> None:
        """Read a call after its caller knows that work begins.

        Reading the call may kill this process, and that death must count for this call only. So all
        edges of the door together read one such call at a time.
        """
        number, is_running = message.number, False
        if message.lender is not None:
            try:
                message.handles = await borrow(message)
            except Exception as error:
                self._post_failure(number, error)
                return

        def tell(has_begun: bool) -> asyncio.Event:
            nonlocal is_running
            is_running = has_begun
            return self._notify_running(number, has_begun)

        async with self._reading_lock:
            await self._notify_running(number, True).wait()
            if self.is_broken:  # the caller can't know that this end reads its call
                return
            try:
                answer = self._handler(message.value(), tell)
            except BaseException as error:
                self._post_failure(number, error)
                return
            if not is_running:  # a death while the call waits for its batch must not count
                self._notify_running(number, False)
        await self._answer(number, answer)

    def _notify_running(self, number: int, has_begun: bool) -> asyncio.Event:
        if not self.is_broken:
            self._outbox.post(Message.pack(BEGUN, number, has_begun))
        return self._outbox.has_sent

    async def _answer(self, number: int, answer: Awaitable[Any]) -> None:
        try:
            reply = self._pack(REPLY, number, await answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._post_failure(number, error)
            return
        if not self.is_broken:
            self._outbox.post(reply)

    def _post_failure(self, number: int, error: BaseException) -> None:
        if not self.is_broken:
            self._outbox.post(self._lender.lend(pack_failure(FAILURE, number, error)))

    def _handle_world_end(self, error: WorldError) -> None:
        """End this edge with its world. A peer that left has not died of its calls."""
        has_left = isinstance(error, WorldBrokenError) and error.cause == Cause.PEER_LEFT.name
        self._break(str(error), has_left=has_left)

    def _abort(self, why: str) -> None:
        """End the world, which also tells the peer."""
        logger.warning("an edge is given up: %s: %s", self.world, why)
        self.world.abort(why)
        self._break(why)

    def _break(self, why: str, *, has_left: bool = False) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        self.has_left = has_left
        self._outbox.stop()
        broken = self._protocol.end(self._outbox.unsent_calls, has_left=has_left)
        self.calls_broken = len(broken)
        for number, each in broken.items():
            reply = self._replies[number]
            if not reply.done():
                reply.set_exception(
                    EdgeBrokenError(why, was_sent=each.was_sent, has_begun=each.has_begun)
                )
        self._read_frame = None
        self._lender.close()
        for task in (self._receive_task, *self._borrow_tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for task in self._answer_tasks.values():
            if task is not asyncio.current_task():
                _cancel_after_first_step(task)
        self._outbox.end()  # last: it wakes answers, which are cancelled by then
        self._ended.set()


def _cancel_after_first_step(task: asyncio.Task[None]) -> None:
    """Cancel a task after its first step.

    A task that is cancelled before does not run at all, so the awaitable that its handler returned
    would never be awaited.
    """
    asyncio.get_running_loop().call_soon(task.cancel)
