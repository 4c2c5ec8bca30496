"""In which order sends begin: one that has to wait before it begins holds those after it up.

Without it what is called later would overtake it, for the native core takes messages as they come.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hoplite_ray.worlds.core.waiting import DONE, Deadline, Turn, Waits


class Sending(Turn):
    """A send that has not begun; `before` it another one, for which it waits, or waited."""

    def __init__(self, before: Sending | None) -> None:
        super().__init__()
        self.before = before

    def wait_for_others(self, deadline: Deadline) -> Waits[bool]:
        """Return whether all before it have begun, or given up, by the deadline."""
        while self.before is not None:
            if not (yield self.before, deadline.left_s()):
                return False
            self.before = self.before.before  # none, unless that one has given up waiting
        return True


class Sendings:
    """The sends of a world that have not begun, by rank; empty but for moments. Any thread."""

    def __init__(self) -> None:
        self._last: dict[int, Sending] = {}
        self._lock = threading.Lock()  # two that are queued at once wait one for the other

    def __bool__(self) -> bool:
        return bool(self._last)

    def __contains__(self, dst: int) -> bool:
        return dst in self._last

    @contextmanager
    def queued(self, dst: int) -> Iterator[Sending]:
        """Until the end of the context those that are called later wait."""
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
        # This send gave up waiting: the next one waits for what it waited for.
        left = turn.before
        while left is not None and left.state == DONE:
            left = left.before
        if left is None:
            del self._last[dst]
        else:
            self._last[dst] = left
