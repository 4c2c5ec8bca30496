"""The messages that wait at one end of an edge, and the frames that carry them.

Messages that are posted in one turn of the event loop, or while a send is under way, go together in
one frame, so that answers of one batch reach the next stage as one batch. Arrays on GPUs follow
their frame by NCCL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hoplite_ray import WorldError
from hoplite_ray.serve import metrics
from hoplite_ray.serve.edge.frames import Message, pack_frame
from hoplite_ray.serve.edge.protocol import CALL, CALL_ALONE
from hoplite_ray.worlds import World
from hoplite_ray.worlds.core.waiting import Waits, Wanted, run_async

_TOGETHER = 64  # messages in one frame at most; more wait for the next frame
_TOGETHER_BYTES = 1 << 20  # bytes in a frame of several messages at most
_ALLOC_BYTES_MIN = 64 << 10  # of a frame; below it `World.alloc` gives ordinary memory
_QUEUED_BYTES_MAX = 64 << 20  # bytes that wait to be sent; above it new calls wait for room


class Outbox:
    """The messages that wait for their frame. It belongs to one event loop."""

    def __init__(self, world: World, fail: Callable[[Exception], None]) -> None:
        """Begin with no message.

        fail:  is called with the error of a frame that can't be made or sent. It must end the edge.
        """
        self._world = world
        self._peer = 1 - world.rank
        self._fail = fail
        self._messages: deque[Message] = deque()
        self._queued_bytes = 0
        self._send_task: asyncio.Task[None] | None = None
        self._is_sending = False
        self._is_over = False
        self.has_sent = asyncio.Event()  # set while nothing is to be sent, and at the end
        self.has_sent.set()
        self.has_room = asyncio.Event()  # set while few enough bytes wait, and at the end
        self.has_room.set()

    @property
    def unsent_calls(self) -> set[int]:
        """The numbers of this end's calls whose frame has not been begun."""
        return {each.number for each in self._messages if each.kind in (CALL, CALL_ALONE)}

    def post(self, message: Message) -> None:
        """Send a message at the end of this turn, or after the send that is under way."""
        self._messages.append(message)
        self._queued_bytes += message.total_bytes
        if self._queued_bytes > _QUEUED_BYTES_MAX:
            self.has_room.clear()
        if not self._is_sending:
            self._is_sending = True
            self.has_sent.clear()
            asyncio.get_running_loop().call_soon(self._send_next)

    def stop(self) -> None:
        """Send nothing more, because the edge has broken. `end` must follow."""
        self._is_over = True
        if self._send_task is not None and self._send_task is not asyncio.current_task():
            self._send_task.cancel()

    def end(self) -> None:
        """Drop what was not sent, and wake all that wait for room or for the last send."""
        self._messages.clear()
        self.has_room.set()
        self.has_sent.set()

    def _send_next(self) -> None:
        if self._is_over or not self._messages:
            self._is_sending = False
            self.has_sent.set()
            return
        try:
            frame, arrays = self._next_frame()
            steps = self._send_steps(frame, arrays)
            wanted = next(steps)
        except (
            StopIteration
        ):  # the frame was sent at once; the rest of this turn's messages go together
            asyncio.get_running_loop().call_soon(self._send_next)
        except Exception as error:  # for example no memory
            self._fail(error)
        else:
            self._send_task = asyncio.create_task(self._finish_send(steps, wanted))

    def _send_steps(self, frame: np.ndarray[Any, Any], arrays: Sequence[Any]) -> Waits[None]:
        """Send a frame, and the arrays on the GPU that follow it."""
        for array in (frame, *arrays):
            yield from self._world.messages.send(array, self._peer, None)

    async def _finish_send(self, steps: Waits[None], wanted: Wanted) -> None:
        try:
            await run_async(steps, wanted)
        except Exception as error:
            self._fail(error)
        self._send_next()

    def _next_frame(self) -> tuple[np.ndarray[Any, Any], Sequence[Any]]:
        """Make a frame of waiting messages; returns it and the arrays on the GPU that follow it."""
        messages = [self._messages.popleft()]
        total_bytes = messages[0].total_bytes
        while self._messages and len(messages) < _TOGETHER:
            if total_bytes + self._messages[0].total_bytes > _TOGETHER_BYTES:
                break
            messages.append(self._messages.popleft())
            total_bytes += messages[-1].total_bytes
        self._queued_bytes -= total_bytes
        if self._queued_bytes <= _QUEUED_BYTES_MAX:
            self.has_room.set()
        gpu_bytes = sum(message.gpu_bytes for message in messages)
        metrics.count("serve_edge_bytes", total_bytes - gpu_bytes)
        arrays = [array for message in messages for array in message.arrays]
        if gpu_bytes:
            metrics.count("serve_edge_gpu_bytes", gpu_bytes)
        return pack_frame(messages, self._alloc), arrays

    def _alloc(self, size_bytes: int) -> np.ndarray[Any, Any]:
        if size_bytes >= _ALLOC_BYTES_MIN:
            with contextlib.suppress(WorldError):  # no memory to share: the frame is copied
                return self._world.alloc(size_bytes, np.uint8)
        return np.empty(size_bytes, np.uint8)
