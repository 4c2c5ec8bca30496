"""One thread that runs submitted calls, one after the other.

To hand a call to an executor takes 0.05 ms more amid other processes' work, and a query waits for
it: an executor makes a future for each, and tells it of its end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

logger = logging.getLogger("hoplite_ray.serve")

_Call = tuple[Callable[..., object], tuple[Any, ...]]


class Worker:
    """A thread of a stage. It ends when it is closed, or with the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the thread, after all that were submitted before.

        The function delivers its own result. An error that it raises is logged.
        """
        self._calls.put((function, args))

    def close(self) -> None:
        """End the thread after all that was submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run one function; returns False at the end.

        It is a call of its own so that the thread keeps no argument while it waits for the next.
        """
        call = self._calls.get()
        if call is None:
            return False
        function, args = call
        try:
            function(*args)
        except BaseException:  # else the thread would end, and later functions never run
            logger.exception("%s has failed", function)
        return True
