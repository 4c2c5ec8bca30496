"""The order in which sends begin: a send that has to wait holds up the sends after it.

Without that a later send would overtake it, because the native core takes messages as they come.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hoplite_ray.worlds.core.waiting import DONE, Deadline, Turn, Waits, running_loop


class Sending(Turn):
    """A send that has not begun. `before` is the send that it waits for, or has waited for."""

    def __init__(self, before: Sending | None) -> None:
        super().__init__(running_loop())
        self.before = before

    def needs(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """True if this send, or one that it waits for, can't begin while that loop stands still."""
        if super().needs(loop):
            return True
        before = self.before
        return before is not None and before.state != DONE and before.needs(loop)

    def wait_for_others(self, deadline: Deadline) -> Waits[bool]:
        """Return True if all earlier sends have begun, or were given up, by the deadline."""
        while self.before is not None:
            if not (yield self.before, deadline.left_s()):
                return False
            self.before = self.before.before  # None, except when that send has given up waiting
        return True


class Sendings:
    """The sends of a world that have not begun, by rank; mostly empty. Any thread may use it."""

    def __init__(self) -> None:
        self._last: dict[int, Sending] = {}
        self._lock = (
            threading.Lock()
        )  # of two sends that are queued at once one waits for the other

    def __bool__(self) -> bool:
        return bool(self._last)

    def __contains__(self, dst: int) -> bool:
        return dst in self._last

    @contextmanager
    def queued(self, dst: int) -> Iterator[Sending]:
        """Queue a send: later sends to that rank wait until the end of the context."""
        with self._lock:
            turn = self._last[dst] = Sending(self._last.get(dst))
        try:
            yield turn
        finally:
            turn.end()
            with self._lock:
                self._forget(dst, turn)

    def _forget(self, dst: int, turn: Sending) -> None:
        if self._last.get(dst) is not turn:
            return
        # This send has given up waiting: the next send waits for the same earlier one.
        left = turn.before
        while left is not None and left.state == DONE:
            left = left.before
        if left is None:
            del self._last[dst]
        else:
            self._last[dst] = left
