"""The thread that deletes: objects without a version, and slots that a stored state replaces."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin.tables.log_store import KeyValueStore, perform
from hoplite_ray.tables.compaction import Compaction
from hoplite_ray.values.deadlines import deadline_in, left_s

_logger = logging.getLogger("hoplite_ray.tables")


class Kind(Enum):
    """The kinds of work; no reader sees the effect of any."""

    DELETION = auto()  # of values: another process does it only minutes later
    UPKEEP = auto()  # states and lost copies, which the next process that needs them makes


class Janitor:
    """Does work one after the other on a thread of its own, which the first work starts.

    A failure is logged: another process does the work later, because the table's log has it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Kind, Callable[[], None]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards all below
        self._thread: threading.Thread | None = None
        self._is_ending = False  # True if only deletions are still done

    def do(self, work: Callable[[], None], kind: Kind) -> None:
        """Do `work` after all work before it; returns at once."""
        self._work.put((kind, work))
        with self._lock:
            if self._thread is None:
                name = f"hoplite-janitor-{self._name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    @property
    def is_ending(self) -> bool:
        """True if long work is to stop, because the process ends."""
        with self._lock:
            return self._is_ending

    def close(self) -> None:
        """End the thread after the work that waits."""
        self._work.put(None)

    def begin_end(self) -> None:
        """Close, and leave out all upkeep from now on."""
        with self._lock:
            self._is_ending = True
        self.close()

    def join(self, timeout_s: float | None) -> None:
        """Wait until the thread has ended. REQUIRES: `close` or `begin_end` was called."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            kind, work = item
            if kind is Kind.UPKEEP and self.is_ending:
                continue
            try:
                work()
            except Exception as error:  # a full disk, a node that restarts, a Ray that has ended
                _logger.warning("table %s: left for another process: %s", self._name, error)


def end_janitors(janitors: Sequence[Janitor], timeout_s: float) -> None:
    """Have the values deleted that wait for it, at the end of the process; all within a limit."""
    deadline = deadline_in(timeout_s)
    for each in janitors:
        each.begin_end()
    for each in janitors:
        each.join(left_s(deadline))


def compact(
    table: str,
    values: KeyValueStore,
    slot: int,
    data: bytes,
    may_go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Store the state after `slot`, and remove what it replaces, as long as it may go on."""
    compaction = Compaction(slot, data)
    while may_go_on() and (call := compaction.poll_call()) is not None:
        try:
            answer = perform(call, table, values)
        except ControlError:
            compaction.handle_failure()
            raise
        compaction.handle_answer(answer)
