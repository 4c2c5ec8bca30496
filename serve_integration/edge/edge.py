"""An edge between two replicas: a world of two, over which each calls the other.

The upstream replica opens it: it connects to the downstream's door, shows the door's token and says
the world's name, and both join that world; all of it in the background. A call is a message with a
number, and so is its reply; what is to go while a send is under way goes together, in one frame.
Arrays on GPUs inside of what is called with, or answered, follow the frame by NCCL if both replicas
use a GPU when their edge is made. Once the world has broken all calls that are open raise
EdgeBrokenError, and the edge is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hmac
import itertools
import logging
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hoplite_ray import WorldBrokenError, WorldError
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge import gpu_arrays
from hoplite_ray.serve.edge.failures import failure, said, unsendable
from hoplite_ray.serve.edge.frames import Message, framed, unframed
from hoplite_ray.serve.edge.handles import Lender, borrowed
from hoplite_ray.serve.edge.managers import manager, node_address, secrecy
from hoplite_ray.serve.errors import EdgeBrokenError, OtherVersionError
from hoplite_ray.worlds import Cause, World
from hoplite_ray.worlds.introductions import (
    STRANGERS_MAX,
    Acceptor,
    RefusedError,
    connected,
    field,
    hear,
    say,
)
from hoplite_ray.worlds.waiting import Waits, Wanted, run_async

logger = logging.getLogger("hoplite_ray.serve")

# Tells the caller that work on its call begins (True) or has ended (False). Returns an event, which
# is set when nothing waits to be sent any more, or the edge has broken.
Begun = Callable[[bool], asyncio.Event]
# Called as soon as a call has come; what it returns is awaited in a task of its own.
Handler = Callable[[Any, Begun], Awaitable[Any]]

VERSION = 3  # of hellos, frames and what `Query.told` has; raised when any of them changes

_JOIN_S, _LEAVE_S = 10.0, 1.0
_TOGETHER = 64  # messages in one frame at most; more wait for the next
_TOGETHER_BYTES = 1 << 20  # and so many bytes, or one message
_ALLOC_BYTES_MIN = 64 << 10  # below it `World.alloc` gives ordinary memory
_QUEUED_BYTES_MAX = 64 << 20  # that wait to be sent; above it `call` waits

_CALL, _REPLY, _FAILURE, _TAKEN_BACK, _BEGUN, _CALL_ALONE = range(6)
_CALLS = (_CALL, _CALL_ALONE)


class Edge:
    """One end of an edge. Of one event loop."""

    def __init__(
        self,
        world: World,
        handler: Handler,
        what: str = "the value",
        reading: asyncio.Lock | None = None,
    ) -> None:
        """Begin to receive.

        what:     goes by it, for errors.
        reading:  held while a call that may end this process is read; of all edges of a door.
        """
        self.world = world
        self._reading = reading or asyncio.Lock()
        self._what = what
        self.is_broken = False
        self.has_left = False  # and that by the peer's own will: it has not died
        self.calls_open = 0
        self.calls_broken = 0  # that were open when it broke
        self._peer = 1 - world.rank
        self._handler = handler
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._begun: set[int] = set()  # of those that wait
        self._outgoing: deque[Message] = deque()
        self._is_sending = False
        self._has_sent = asyncio.Event()  # it does not
        self._has_sent.set()
        self._sending: asyncio.Task[None] | None = None
        self._queued_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self._context = contextvars.copy_context()
        self._heard: Callable[[], Any] | None = None  # has the next frame, once `_came` is called
        self._receiving: asyncio.Task[None] | None = None  # arrays on the GPU
        self._lender = Lender()
        self._borrowing: set[asyncio.Task[None]] = set()  # the handles in replies
        self._listen()

    async def call(self, request: Any, *, alone: bool = False) -> Any:
        """Have the peer's handler answer; taken back, the handler is cancelled.

        alone:  the peer says that it works on it before it reads it, which may be its death.

        Raises:  EdgeBrokenError; or what the handler raised.
        """
        if self.is_broken:
            raise EdgeBrokenError(f"{self.world} has ended", was_sent=False)
        number = next(self._numbers)
        self.calls_open += 1
        message = None
        try:
            if not self._has_room.is_set():
                await self._has_room.wait()
                if self.is_broken:
                    raise EdgeBrokenError(f"{self.world} has ended", was_sent=False)
            reply = self._waiting[number] = asyncio.get_running_loop().create_future()
            message = self._packed(_CALL_ALONE if alone else _CALL, number, request)
            self._post(message)
            return await reply
        except asyncio.CancelledError:
            if not self.is_broken and number in self._waiting:
                self._post(Message.packed(_TAKEN_BACK, number, None))
            raise
        finally:
            self._waiting.pop(number, None)
            self._begun.discard(number)
            self.calls_open -= 1
            if message is not None:
                self._lender.end(message)

    async def ended(self) -> None:
        """Return when the world has ended, whoever ended it."""
        await self._ended.wait()

    async def close(self) -> None:
        """Leave the world when what is to go has gone; what is open raises."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_sent.wait(), _LEAVE_S)
        self._break("it was closed")
        try:
            await self.world.leave(timeout_s=_LEAVE_S)
        except WorldError as error:
            logger.debug("left %s: %s", self.world, error)

    def _packed(self, kind: int, number: int, value: Any) -> Message:
        """Pack a value. Raises TypeError for one that pickle can't take."""
        try:
            return self._lender.lend(Message.packed(kind, number, value, self.world.device))
        except BaseException as error:  # a SystemExit of its would end the replica's loop
            raise unsendable(self._what, error) from error

    def _post(self, message: Message) -> None:
        """Send it now, or with the next frame if one is under way."""
        self._outgoing.append(message)
        self._queued_bytes += message.total_bytes
        if self._queued_bytes > _QUEUED_BYTES_MAX:
            self._has_room.clear()
        if not self._is_sending:
            self._is_sending = True
            self._has_sent.clear()
            self._send_next()

    def _send_next(self) -> None:
        if self.is_broken or not self._outgoing:
            self._is_sending = False
            self._has_sent.set()
            return
        try:
            frame, arrays = self._next_frame()
        except Exception as error:  # as of memory
            self._give_up(f"what was to go by it can't: {said(error)}")
            return
        steps = self._sent(frame, arrays)
        try:
            wanted = next(steps)
        except StopIteration:  # it has gone; what else is to go in this turn goes together
            asyncio.get_running_loop().call_soon(self._send_next)
        except Exception as error:
            self._hear_failure(error, "what was to go by it can't")
        else:
            self._sending = asyncio.create_task(self._finish_send(steps, wanted))

    def _sent(self, frame: np.ndarray[Any, Any], arrays: Sequence[Any]) -> Waits[None]:
        """Send a frame, and the arrays on the GPU that follow it."""
        if frame.nbytes >= _ALLOC_BYTES_MIN and self.world.loans.is_ours(frame):
            yield from self.world.give_away(frame, self._peer, None)
        elif (operation := self.world.begin_send(frame, self._peer, None)) is not None:
            yield from self.world.finish(operation, None, "send")
        for array in arrays:
            yield from self.world.send_from_gpu(array, self._peer, None)

    async def _finish_send(self, steps: Waits[None], wanted: Wanted) -> None:
        try:
            await run_async(steps, wanted)
        except Exception as error:
            self._hear_failure(error, "what was to go by it can't")
        self._send_next()

    def _hear_failure(self, error: Exception, what: str) -> None:
        if isinstance(error, WorldError):
            self._hear_end(error)
        else:  # as a frame of another version, or no memory on the GPU
            self._give_up(f"{what}: {said(error)}")

    def _next_frame(self) -> tuple[np.ndarray[Any, Any], Sequence[Any]]:
        """Make a frame of what waits; returns it and the arrays on the GPU that are to follow."""
        messages = [self._outgoing.popleft()]
        total_bytes = messages[0].total_bytes
        while self._outgoing and len(messages) < _TOGETHER:
            if total_bytes + self._outgoing[0].total_bytes > _TOGETHER_BYTES:
                break
            messages.append(self._outgoing.popleft())
            total_bytes += messages[-1].total_bytes
        self._queued_bytes -= total_bytes
        if self._queued_bytes <= _QUEUED_BYTES_MAX:
            self._has_room.set()
        gpu_bytes = sum(message.gpu_bytes for message in messages)
        metrics.count("serve_edge_bytes", total_bytes - gpu_bytes)
        arrays = [array for message in messages for array in message.arrays]
        if gpu_bytes:
            metrics.count("serve_edge_gpu_bytes", gpu_bytes)
        return framed(messages, self._empty), arrays

    def _empty(self, size_bytes: int) -> np.ndarray[Any, Any]:
        if size_bytes >= _ALLOC_BYTES_MIN:
            with contextlib.suppress(WorldError):  # no memory to share: it goes as a copy
                return self.world.alloc(size_bytes, np.uint8)
        return np.empty(size_bytes, np.uint8)

    def _listen(self) -> None:
        try:
            self._heard = self.world.hear(self._peer, self._came)
        except Exception as error:
            self._hear_failure(error, "nothing that comes by it can be had")

    def _came(self) -> None:
        self._context.run(self._take_frame)

    def _take_frame(self) -> None:
        heard, self._heard = self._heard, None
        if heard is None:  # the edge has ended
            return
        try:
            messages = unframed(heard())
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
        arrays = gpu_arrays.made(message.description, self.world.device)
        for array in arrays:
            await self.world.recv(array, src=self._peer)
        message.arrays = arrays
        return message

    def _take_in(self, message: Message) -> None:
        number = message.number
        if message.kind == _CALL and message.lent is not None:
            self._begin(number, self._answer_lent(message))
        elif message.kind == _CALL:
            try:
                answer = self._handler(message.value(), partial(self._tell_begun, number))
            except BaseException as error:
                self._post_failure(number, error)
                return
            self._begin(number, self._answer(number, answer))
        elif message.kind == _CALL_ALONE:
            self._begin(number, self._answer_alone(message))
        elif message.kind == _TAKEN_BACK:
            if (answering := self._answering.get(number)) is not None:
                _cancel_begun(answering)
        elif message.kind == _BEGUN:
            if number in self._waiting and message.value():
                self._begun.add(number)
            else:
                self._begun.discard(number)
        elif message.lent is not None:
            task = asyncio.create_task(self._take_in_lent(message))
            self._borrowing.add(task)
            task.add_done_callback(self._borrowing.discard)
        else:
            self._hear_reply(message)

    def _hear_reply(self, message: Message) -> None:
        reply = self._waiting.get(message.number)
        if reply is None or reply.done():
            return
        try:
            value = message.value()
        except BaseException as error:
            reply.set_exception(RuntimeError(f"the reply can't be read here: {said(error)}"))
            return
        if message.kind == _REPLY:
            reply.set_result(value)
        elif isinstance(value, Exception) and not isinstance(value, StopIteration):
            reply.set_exception(value)
        else:
            reply.set_exception(RuntimeError(f"an error that reads here as {value!r:.200}"))

    async def _take_in_lent(self, message: Message) -> None:
        """Take in a reply that has handles; also if no caller waits: its sender keeps them."""
        try:
            message.handles = await borrowed(message)
        except Exception as error:  # its call goes to another replica
            self._give_up(f"the refs in a reply can't be had: {said(error)}")
            return
        self._hear_reply(message)

    async def _answer_lent(self, message: Message) -> None:
        """Answer a call that has handles."""
        try:
            message.handles = await borrowed(message)
            answer = self._handler(message.value(), partial(self._tell_begun, message.number))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            self._post_failure(message.number, error)
            return
        await self._answer(message.number, answer)

    def _begin(self, number: int, answering: Coroutine[Any, Any, None]) -> None:
        task = self._answering[number] = asyncio.create_task(answering)
        task.add_done_callback(lambda _: self._answering.pop(number, None))

    async def _answer_alone(self, message: Message) -> None:
        """Read it once its caller is told: reading may end this process, which then counts."""
        number, is_running = message.number, False
        if message.lent is not None:
            try:
                message.handles = await borrowed(message)
            except Exception as error:
                self._post_failure(number, error)
                return

        def tell(has_begun: bool) -> asyncio.Event:
            nonlocal is_running
            is_running = has_begun
            return self._tell_begun(number, has_begun)

        async with self._reading:
            await self._tell_begun(number, True).wait()
            if self.is_broken:  # the caller would not learn which call ended this process
                return
            try:
                answer = self._handler(message.value(), tell)
            except BaseException as error:
                self._post_failure(number, error)
                return
            if not is_running:  # a call that ends this process meanwhile must not count
                self._tell_begun(number, False)
        await self._answer(number, answer)

    def _tell_begun(self, number: int, has_begun: bool) -> asyncio.Event:
        if not self.is_broken:
            self._post(Message.packed(_BEGUN, number, has_begun))
        return self._has_sent

    async def _answer(self, number: int, answer: Awaitable[Any]) -> None:
        try:
            reply = self._packed(_REPLY, number, await answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._post_failure(number, error)
            return
        if not self.is_broken:
            self._post(reply)

    def _post_failure(self, number: int, error: BaseException) -> None:
        if not self.is_broken:
            self._post(self._lender.lend(failure(_FAILURE, number, error)))

    def _hear_end(self, error: WorldError) -> None:
        """The world has ended. Who has left it has not died over what it had."""
        has_left = isinstance(error, WorldBrokenError) and error.cause == Cause.PEER_LEFT.name
        self._break(str(error), has_left=has_left)

    def _give_up(self, why: str) -> None:
        """End the world, so that the peer hears of it, too."""
        logger.warning("an edge is given up: %s: %s", self.world, why)
        self.world.abort(why)
        self._break(why)

    def _break(self, why: str, *, has_left: bool = False) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        self.has_left = has_left
        self.calls_broken = len(self._waiting)
        unsent = {message.number for message in self._outgoing if message.kind in _CALLS}
        for number, reply in self._waiting.items():
            if not reply.done():
                was_sent = number not in unsent and not has_left
                has_begun = number in self._begun and not has_left
                reply.set_exception(EdgeBrokenError(why, was_sent=was_sent, has_begun=has_begun))
        self._heard = None
        self._lender.close()
        for task in (self._receiving, self._sending, *self._borrowing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for task in self._answering.values():
            if task is not asyncio.current_task():
                _cancel_begun(task)
        self._has_room.set()
        self._has_sent.set()  # last: a call that waits for it is cancelled by then
        self._ended.set()


def check_version(said: Mapping[str, Any], peer: str) -> None:
    """Raise OtherVersionError unless the peer speaks as this process does."""
    if (version := said.get("version")) != VERSION:
        raise OtherVersionError(
            f"{peer} has version {version} of edges, and this process {VERSION}: an update of "
            "hoplite_ray is under way; they call each other once both are of one version"
        )


def _cancel_begun(task: asyncio.Task[None]) -> None:
    """Cancel a task after its first step: else what its handler began would have no end."""
    asyncio.get_running_loop().call_soon(task.cancel)


class Door:
    """Where upstream replicas knock; each that shows the token gets an edge."""

    def __init__(self, handler: Handler, what: str) -> None:
        """Edges through it carry `what` upstream, for errors."""
        self.edges: set[Edge] = set()
        self._handler = handler
        self._what = what
        self._reading = asyncio.Lock()
        self._token = secrets.token_hex(16)

    async def open(self) -> dict[str, Any]:
        """Listen; returns what `open_edge` needs, as JSON has it.

        Raises:  ControlError if it must be encrypted, and the certificates are of no use.
        """
        tls = await asyncio.to_thread(secrecy.context)
        address = node_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, 0), family=family, backlog=STRANGERS_MAX)
        self._acceptor = Acceptor(listening, self._knocked, lambda: tls)
        return {
            "address": address,
            "port": listening.getsockname()[1],
            "token": self._token,
            "version": VERSION,
        }

    async def close(self) -> None:
        """Stop listening and leave all worlds."""
        edges = list(self.edges)
        await self._acceptor.close()
        await asyncio.gather(*(edge.close() for edge in edges))

    async def _knocked(self, sock: socket.socket) -> Coroutine[Any, Any, None]:
        hello = await hear(sock)
        token = str(hello.get("token")).encode(errors="replace")
        if not hmac.compare_digest(token, self._token.encode()):
            raise RefusedError("token", "it is no token of this door: the replica has another one")
        try:
            check_version(hello, "a caller")
        except OtherVersionError as error:
            logger.warning("an edge by the door has failed: %s", said(error))
            raise RefusedError("version", str(error)) from error
        await say(sock, welcome=str(hello.get("world")))
        return self._let_in(sock, str(hello.get("world")))

    async def _let_in(self, sock: socket.socket, name: str) -> None:
        edge = None
        try:
            async with asyncio.timeout(_JOIN_S):
                way = Doorway(sock, is_upstream=False)
                world = await manager().join(
                    name, rank=1, size=2, rendezvous=way, timeout_s=_JOIN_S
                )
            edge = Edge(world, self._handler, self._what, self._reading)
            self.edges.add(edge)
            sock.close()
            await edge.ended()
            await edge.close()
        except (WorldError, OSError, ValueError, LookupError, TypeError) as error:
            logger.debug("nobody came in by the door: %s", error)
        except Exception as error:  # a traceback for each would fill the log
            logger.warning("an edge by the door has failed: %s", said(error))
        finally:
            if edge is not None:
                self.edges.discard(edge)


class Doorway:
    """The rendezvous of one edge's world: upstream sets by a connection, downstream gets by it."""

    def __init__(self, sock: socket.socket, *, is_upstream: bool) -> None:
        self._sock = sock
        self._is_upstream = is_upstream
        self._values: dict[str, bytes] = {}

    async def set(self, key: str, value: bytes) -> None:
        """Send a value to the other end."""
        self._values[key] = value
        await say(self._sock, key=key, value=value.hex())

    async def get(self, key: str) -> bytes | None:
        """Return the value; downstream once it has come."""
        while key not in self._values and not self._is_upstream:
            frame = await hear(self._sock)
            self._values[field(frame, "key", str)] = bytes.fromhex(field(frame, "value", str))
        return self._values.get(key)


async def open_edge(door: dict[str, Any], name: str, handler: Handler, what: str) -> Edge:
    """Open an edge to the replica behind a door; `name` is the world's, known to both.

    what:  goes by it, for errors.

    Raises:  RefusedError if the door refuses; OSError, TimeoutError or WorldError if it can't be;
             OtherVersionError.
    """
    check_version(door, "the replica")
    tls = await asyncio.to_thread(secrecy.context)
    async with asyncio.timeout(_JOIN_S):
        with await connected(door["address"], door["port"], tls) as sock:
            await say(sock, token=door["token"], world=name, version=VERSION)
            await hear(sock)  # welcome, or why not
            way = Doorway(sock, is_upstream=True)
            world = await manager().join(name, rank=0, size=2, rendezvous=way, timeout_s=_JOIN_S)
    return Edge(world, handler, what)
