"""A cache whose bound is a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The entries that were used last, within a number of bytes. Any thread may use it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def find(self, key: K) -> V | None:
        """Return the entry, and count it as used; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def add(self, key: K, value: V, size_bytes: int) -> None:
        """Keep an entry of this size; the entries that were used longest ago go for it.

        An entry that is larger than the bound is not kept.
        """
        with self._lock:
            if (before := self._entries.pop(key, None)) is not None:
                self._size_bytes -= before[1]
            self._entries[key] = value, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._bytes_max:
                self._size_bytes -= self._entries.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()
            self._size_bytes = 0
