"""The puts that this process has made or read lately: a get of one needs no answer of Ray's."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from hoplite_ray.values.codec import Encoded
from hoplite_ray.values.recipe import Recipe

_PUTS_MAX = 16_384  # of some 200 bytes each; a get of an older put asks Ray for its handle
_BYTES_MAX = 16 << 20  # of small values, which are kept beside Ray's copies


class KnownPut(NamedTuple):
    """The incarnation of a put, and a small value itself: all that a get of the ref needs.

    `recipe` is there if the put had a base.
    """

    incarnation: int
    small: Encoded | None = None
    recipe: Recipe | None = None


class KnownPuts:
    """The newest puts by the ids of their refs, within two bounds. Any thread may use it."""

    def __init__(self, puts_max: int = _PUTS_MAX, bytes_max: int = _BYTES_MAX) -> None:
        self._puts_max = puts_max
        self._bytes_max = bytes_max
        self._puts: OrderedDict[bytes, KnownPut] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def find(self, object_id: bytes) -> KnownPut | None:
        return self._puts.get(object_id)

    def add(self, object_id: bytes, put: KnownPut) -> None:
        """Remember a put; the oldest ones are forgotten for it."""
        with self._lock:
            self._forget(object_id)
            self._puts[object_id] = put
            self._size_bytes += _size_bytes(put)
            while len(self._puts) > self._puts_max or self._size_bytes > self._bytes_max:
                self._forget(next(iter(self._puts)))

    def _forget(self, object_id: bytes) -> None:
        if (put := self._puts.pop(object_id, None)) is not None:
            self._size_bytes -= _size_bytes(put)


def _size_bytes(put: KnownPut) -> int:
    if put.small is None:
        return 0
    return put.small.layout.size_bytes + len(put.small.layout.to_bytes())
