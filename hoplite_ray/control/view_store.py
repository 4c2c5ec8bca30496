"""Where a view is committed: a value that is replaced by compare-and-set, epoch by epoch.

With Ray this is the GCS key-value store (plugin/seams.py). Without Ray every member remembers the
newest view it has seen, and the oldest live member commits in its own memory; a vote of the
majority takes that place in a later release.
"""

from __future__ import annotations

import threading
from typing import Protocol


class ViewStore(Protocol):
    """Calls may block and come from any thread."""

    def read(self) -> tuple[int, bytes]:
        """Return the newest epoch and its value; (0, b"") when nothing was ever stored."""
        ...

    def compare_and_set(self, epoch: int, value: bytes) -> bool:
        """Store `value` as `epoch`; False, and nothing stored, if there is one at >= `epoch`."""
        ...


class MemoryViewStore:
    """The newest view that this process has seen."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._epoch = 0
        self._value = b""

    def read(self) -> tuple[int, bytes]:
        """Return the newest epoch and its value; (0, b"") when nothing was ever stored."""
        with self._mutex:
            return self._epoch, self._value

    def compare_and_set(self, epoch: int, value: bytes) -> bool:
        """Store `value` as `epoch`; False, and nothing stored, if there is one at >= `epoch`."""
        with self._mutex:
            if epoch <= self._epoch:
                return False
            self._epoch, self._value = epoch, value
            return True
