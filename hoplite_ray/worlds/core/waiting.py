"""Waiting for native operations: in an event loop, or in the calling thread.

An operation of a world is a generator that yields what to wait for. A verb and its awaitable twin
drive the same generator. An event loop has one descriptor, on which the native core reports
all operations that have ended, and one future for each operation that a task waits for. Nothing
polls, and no thread waits for a loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Generator
from typing import TypeVar
from weakref import WeakKeyDictionary

from hoplite_ray import process_end  # noqa: F401 - which lets go of all at the end
from hoplite_ray._native import Completions, WorldOperation
from hoplite_ray.errors import WorldError
from hoplite_ray.values.deadlines import deadline_in, left_s

T = TypeVar("T")
# Yields an operation and a limit in seconds, and is sent True if the operation has ended.
Wanted = tuple["WorldOperation | Turn", float | None]
Waits = Generator[Wanted, bool, T]

PENDING, DONE, BROKEN, CANCELLED = 0, 1, 2, 3  # the states of an operation

_FOREVER_S = 1e9


class LoopWaiter:
    """Waits for operations in one event loop, and does not keep the loop alive.

    Only the loop's own thread uses it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = Completions()
        self._tokens = itertools.count(1)
        self._calls: dict[int, Callable[[], object]] = {}
        loop.add_reader(self._completions.fd, self._take)

    def call(self, operation: WorldOperation | Turn, ended: Callable[[], object]) -> None:
        """Call `ended` in the loop, once, when the operation has ended."""
        token = next(self._tokens)
        self._calls[token] = ended
        if not operation.notify(self._completions, token):
            del self._calls[token]
            asyncio.get_running_loop().call_soon(ended)

    async def wait(self, operation: WorldOperation | Turn, timeout_s: float | None) -> bool:
        """Return whether the operation has ended, after at most `timeout_s`."""
        token = next(self._tokens)
        future = asyncio.get_running_loop().create_future()
        self._calls[token] = lambda: None if future.done() else future.set_result(None)
        try:
            if not operation.notify(self._completions, token):
                return True
            if timeout_s is None:
                await future
                return True
            done, _ = await asyncio.wait([future], timeout=timeout_s)
            return bool(done)
        finally:
            self._calls.pop(token, None)

    def _take(self) -> None:
        for token in self._completions.take():
            call = self._calls.pop(token, None)
            if call is not None:
                call()


_waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaiter] = WeakKeyDictionary()
_waiters_lock = threading.Lock()  # held by each change, because loops of many threads come and go


def loop_waiter() -> LoopWaiter:
    """Return the waiter of the running event loop."""
    loop = asyncio.get_running_loop()
    waiter = _waiters.get(loop)
    if waiter is None:
        with _waiters_lock:
            for closed in [each for each in list(_waiters) if each.is_closed()]:
                _waiters.pop(closed, None)  # a loop that was closed waits no more
            waiter = _waiters[loop] = LoopWaiter(loop)
    return waiter


async def run_async(steps: Waits[T], wanted: Wanted | None = None) -> T:
    """Run an operation in the event loop; cancelling the task is raised in the generator.

    wanted:  what the generator has yielded, if its first step is done.

    Returns: what the generator returns. Raises what it raises.
    """
    try:
        if wanted is None:
            wanted = next(steps)
        while True:
            try:
                has_ended = await loop_waiter().wait(*wanted)
            except BaseException as error:
                wanted = steps.throw(error)
            else:
                wanted = steps.send(has_ended)
    except StopIteration as stop:
        result: T = stop.value
        return result


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def run_blocking(steps: Waits[T], verb: str) -> T:
    """Like `run_async`, but waits in this thread; Ctrl-C is raised in the generator.

    verb:    what the caller has called, for the error.

    Raises:  WorldError if it would wait for a task of the event loop that runs in this thread.
    """
    try:
        wanted = next(steps)
        while True:
            try:
                operation, timeout_s = wanted
                if isinstance(operation, Turn) and operation.needs(running_loop()):
                    raise WorldError(
                        f"{verb} would wait for what a task of this event loop has begun, and "
                        f"that task can't go on meanwhile; await {verb}_async"
                    )
                has_ended = operation.wait(_FOREVER_S if timeout_s is None else timeout_s)
            except BaseException as error:
                wanted = steps.throw(error)
            else:
                wanted = steps.send(has_ended)
    except StopIteration as stop:
        result: T = stop.value
        return result


class Turn:
    """The turn of one operation in a queue: later ones wait for it as for a native operation.

    loop:  the event loop whose task ends the turn; None: another thread ends it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._is_over = threading.Event()
        self._waiting: list[tuple[Completions, int]] = []
        self._lock = threading.Lock()

    def end(self) -> None:
        """End the turn, and wake all that wait for it. Idempotent."""
        with self._lock:
            self._is_over.set()
            waiting, self._waiting = self._waiting, []
        for completions, token in waiting:
            completions.push(token)

    def needs(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """True if the turn can't end while that event loop stands still."""
        return loop is not None and self._loop is loop and not self._is_over.is_set()

    @property
    def state(self) -> int:
        """PENDING or DONE."""
        return DONE if self._is_over.is_set() else PENDING

    def wait(self, timeout_s: float) -> bool:
        """Wait in this thread; returns True if the turn is over."""
        return self._is_over.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def notify(self, completions: Completions, token: int) -> bool:
        """Push the token to `completions` when the turn is over. Returns False if it is over."""
        with self._lock:
            if self._is_over.is_set():
                return False
            self._waiting.append((completions, token))
            return True


class Deadline:
    """The moment when a caller's limit runs out."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline = deadline_in(timeout_s)

    def left_s(self) -> float | None:
        """Return the seconds that are left; None if there is no limit."""
        return left_s(self._deadline)
