"""An edge between two replicas: a world of two, over which each calls the other.

A call is a message with a number, and so is its reply (protocol.py); messages go in frames
(outgoing.py, frames.py). Arrays on GPUs inside of a request or an answer follow the frame by NCCL
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
from hoplite_ray.serve.edge.outgoing import Outgoing
from hoplite_ray.serve.edge.protocol import (
    BEGUN,
    CALL,
    CALL_ALONE,
    FAILURE,
    REPLY,
    TAKEN_BACK,
    Action,
    Protocol,
)
from hoplite_ray.serve.errors import EdgeBrokenError
from hoplite_ray.worlds import Cause, World

logger = logging.getLogger("hoplite_ray.serve")

# Tells the caller that work on its call begins (True) or has ended (False). Returns an event that
# is set when this end has sent everything, or the edge has broken.
Begun = Callable[[bool], asyncio.Event]
# Is called with a request as soon as it has come. A task of its own awaits the result.
Handler = Callable[[Any, Begun], Awaitable[Any]]

_IGNORE, _ANSWER, _ANSWER_ALONE, _SETTLE, _CANCEL = Action  # once, as in protocol.py
_NO_NUMBER = -1  # of a call that waits for room, which the protocol does not know
_LEAVE_S = 1.0  # for the last messages to go at a close, and again for the world to end


class Edge:
    """One end of an edge. It belongs to one event loop.

    is_broken:     True if the edge is over.
    has_left:      True if it is over because the peer left; a peer that leaves has not died.
    calls_open:    calls of this end that have no answer yet, with those that wait for room.
    calls_broken:  calls that were open when the edge broke.
    """

    def __init__(
        self,
        world: World,
        handler: Handler,
        what: str = "the value",
        reading: asyncio.Lock | None = None,
    ) -> None:
        """Begin to receive.

        what:     names the values of this end in errors.
        reading:  is held while a call that may kill this process is read. All edges of a door
                  share it.
        """
        self.world = world
        self._reading = reading or asyncio.Lock()
        self._what = what
        self.is_broken = False
        self.has_left = False
        self.calls_open = 0
        self.calls_broken = 0
        self._peer = 1 - world.rank
        self._handler = handler
        self._protocol = Protocol()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._outgoing = Outgoing(
            world, lambda error: self._hear_failure(error, "what was to go by it can't")
        )
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self._context = contextvars.copy_context()
        self._heard: Callable[[], Any] | None = None  # returns the next frame after `_came`
        self._receiving: asyncio.Task[None] | None = None  # arrays on GPUs of one frame
        self._lender = Lender()
        self._borrowing: set[asyncio.Task[None]] = set()  # handles in replies
        self._listen()

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
            if not self._outgoing.has_room.is_set():
                await self._outgoing.has_room.wait()
                if self.is_broken:
                    raise EdgeBrokenError(f"{self.world} has ended", was_sent=False)
            number = self._protocol.open()
            reply = self._replies[number] = asyncio.get_running_loop().create_future()
            message = self._packed(CALL_ALONE if alone else CALL, number, request)
            self._outgoing.post(message)
            return await reply
        except asyncio.CancelledError:
            if self._protocol.take_back(number):
                self._outgoing.post(Message.pack(TAKEN_BACK, number, None))
            raise
        finally:
            self.calls_open -= 1
            self._protocol.close(number)
            self._replies.pop(number, None)
            if message is not None:
                self._lender.end(message)

    async def ended(self) -> None:
        """Return when the edge is over, whichever end ended it."""
        await self._ended.wait()

    async def close(self) -> None:
        """Send what waits, then leave the world. Open calls raise EdgeBrokenError."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._outgoing.has_sent.wait(), _LEAVE_S)
        self._break("it was closed")
        try:
            await self.world.leave_async(timeout_s=_LEAVE_S)
        except WorldError as error:
            logger.debug("left %s: %s", self.world, error)

    def _packed(self, kind: int, number: int, value: Any) -> Message:
        """Pack a value. Raises TypeError for a value that pickle can't take."""
        try:
            return self._lender.lend(Message.pack(kind, number, value, self.world.device))
        except BaseException as error:  # a SystemExit of the value would end this loop
            raise unsendable_error(self._what, error) from error

    def _hear_failure(self, error: Exception, what: str) -> None:
        if isinstance(error, WorldError):
            self._hear_end(error)
        else:  # for example a frame of another version, or no memory on the GPU
            self._give_up(f"{what}: {describe_error(error)}")

    def _listen(self) -> None:
        try:
            self._heard = self.world.messages.receive_by_callback(self._peer, self._came)
        except Exception as error:
            self._hear_failure(error, "nothing that comes by it can be had")

    def _came(self) -> None:
        self._context.run(self._take_frame)

    def _take_frame(self) -> None:
        heard, self._heard = self._heard, None
        if heard is None:  # the edge has ended
            return
        try:
            messages = unpack_frame(heard())
            if any(message.description is not None for message in messages):
                self._receiving = asyncio.create_task(self._take_in_arrays(messages))
                return
            for message in messages:
                self._take_in(message)
        except Exception as error:
            self._hear_failure(error, "what came by it can't be had")
        if not self.is_broken:
            self._listen()

    async def _take_in_arrays(self, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                self._take_in(await self._with_arrays(message))
        except Exception as error:
            self._hear_failure(error, "what came by it can't be had")
        if not self.is_broken:
            self._listen()

    async def _with_arrays(self, message: Message) -> Message:
        """Receive the arrays on the GPU that follow a message's frame."""
        if message.description is None:
            return message
        if self.world.device is None:
            raise ValueError("arrays of a GPU are announced on an edge without one")
        arrays = gpu_arrays.make(message.description, self.world.device)
        for array in arrays:
            await self.world.recv_async(array, src=self._peer)
        message.arrays = arrays
        return message

    def _take_in(self, message: Message) -> None:
        kind, number = message.kind, message.number
        if kind == REPLY or kind == FAILURE:
            self._take_in_reply(message)
            return
        has_begun = kind == BEGUN and bool(message.value())
        action = self._protocol.handle(kind, number, has_begun=has_begun)
        if action is _ANSWER:
            if message.lent is None:
                self._answer_now(message)
            else:
                self._begin(number, self._answer_lent(message))
        elif action is _ANSWER_ALONE:
            self._begin(number, self._answer_alone(message))
        elif action is _CANCEL:
            _cancel_begun(self._answering[number])

    def _answer_now(self, message: Message) -> None:
        """Answer a call. The handler is called in the order of the calls."""
        try:
            answer = self._handler(message.value(), partial(self._tell_begun, message.number))
        except BaseException as error:
            self._protocol.finish(message.number)
            self._post_failure(message.number, error)
            return
        self._begin(message.number, self._answer(message.number, answer))

    def _take_in_reply(self, message: Message) -> None:
        if message.lent is None:
            self._hear_reply(message)
            return
        task = asyncio.create_task(self._take_in_lent(message))
        self._borrowing.add(task)
        task.add_done_callback(self._borrowing.discard)

    def _hear_reply(self, message: Message) -> None:
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

    async def _take_in_lent(self, message: Message) -> None:
        """Take in a reply that has handles.

        They are borrowed also when no caller waits, because their sender keeps them until then.
        """
        try:
            message.handles = await borrow(message)
        except Exception as error:  # the call then goes to another replica
            self._give_up(f"the refs in a reply can't be had: {describe_error(error)}")
            return
        self._hear_reply(message)

    async def _answer_lent(self, message: Message) -> None:
        """Answer a call that has handles."""
        try:
            message.handles = await borrow(message)
            answer = self._handler(message.value(), partial(self._tell_begun, message.number))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            self._post_failure(message.number, error)
            return
        await self._answer(message.number, answer)

    def _begin(self, number: int, answering: Coroutine[Any, Any, None]) -> None:
        task = self._answering[number] = asyncio.create_task(answering)
        task.add_done_callback(lambda _: self._answered(number))

    def _answered(self, number: int) -> None:
        self._answering.pop(number, None)
        self._protocol.finish(number)

    async def _answer_alone(self, message: Message) -> None:
        """Read a call after its caller knows that work begins.

        Reading may kill this process, and that death is to count for this call only. So one such
        call is read at a time, over all edges of the door.
        """
        number, is_running = message.number, False
        if message.lent is not None:
            try:
                message.handles = await borrow(message)
            except Exception as error:
                self._post_failure(number, error)
                return

        def tell(has_begun: bool) -> asyncio.Event:
            nonlocal is_running
            is_running = has_begun
            return self._tell_begun(number, has_begun)

        async with self._reading:
            await self._tell_begun(number, True).wait()
            if self.is_broken:  # the caller can't know that its call is the one that is read
                return
            try:
                answer = self._handler(message.value(), tell)
            except BaseException as error:
                self._post_failure(number, error)
                return
            if not is_running:  # a death while the call waits for its batch must not count
                self._tell_begun(number, False)
        await self._answer(number, answer)

    def _tell_begun(self, number: int, has_begun: bool) -> asyncio.Event:
        if not self.is_broken:
            self._outgoing.post(Message.pack(BEGUN, number, has_begun))
        return self._outgoing.has_sent

    async def _answer(self, number: int, answer: Awaitable[Any]) -> None:
        try:
            reply = self._packed(REPLY, number, await answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._post_failure(number, error)
            return
        if not self.is_broken:
            self._outgoing.post(reply)

    def _post_failure(self, number: int, error: BaseException) -> None:
        if not self.is_broken:
            self._outgoing.post(self._lender.lend(pack_failure(FAILURE, number, error)))

    def _hear_end(self, error: WorldError) -> None:
        """End this edge with its world. A peer that left has not died of its calls."""
        has_left = isinstance(error, WorldBrokenError) and error.cause == Cause.PEER_LEFT.name
        self._break(str(error), has_left=has_left)

    def _give_up(self, why: str) -> None:
        """End the world, which also tells the peer."""
        logger.warning("an edge is given up: %s: %s", self.world, why)
        self.world.abort(why)
        self._break(why)

    def _break(self, why: str, *, has_left: bool = False) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        self.has_left = has_left
        self._outgoing.stop()
        broken = self._protocol.end(self._outgoing.unsent_calls, has_left=has_left)
        self.calls_broken = len(broken)
        for number, each in broken.items():
            reply = self._replies[number]
            if not reply.done():
                reply.set_exception(
                    EdgeBrokenError(why, was_sent=each.was_sent, has_begun=each.has_begun)
                )
        self._heard = None
        self._lender.close()
        for task in (self._receiving, *self._borrowing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for task in self._answering.values():
            if task is not asyncio.current_task():
                _cancel_begun(task)
        self._outgoing.end()  # last: an answer that waits for it is cancelled by then
        self._ended.set()


def _cancel_begun(task: asyncio.Task[None]) -> None:
    """Cancel a task after its first step.

    A task that is cancelled before does not run at all, so the awaitable that its handler returned
    would never be awaited.
    """
    asyncio.get_running_loop().call_soon(task.cancel)
