"""The thread that deletes: objects without a version, and slots that a stored state replaces."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin.tables.log_store import KeyValueStore, perform
from hoplite_ray.tables.compaction import Compaction

_logger = logging.getLogger("hoplite_ray.tables")


class Janitor:
    """Does work one after the other on a thread of its own, which the first work starts.

    A failure is logged: another process does the work later, because the table's log has it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards `_thread`
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Do `work` after all work before it; returns at once."""
        self._work.put(work)
        with self._lock:
            if self._thread is None:
                name = f"hoplite-janitor-{self._name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread after the work that is under way."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # a full disk, a node that restarts, a Ray that has ended
                _logger.warning("table %s: left for another process: %s", self._name, error)


def compact(table: str, values: KeyValueStore, slot: int, data: bytes) -> None:
    """Store the state after `slot`, and remove what it replaces."""
    compaction = Compaction(slot, data)
    while (call := compaction.poll_call()) is not None:
        try:
            answer = perform(call, table, values)
        except ControlError:
            compaction.handle_failure()
            raise
        compaction.handle_answer(answer)
