"""The native store's rank: a client of the node at its place, without Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from ranks import TIMEOUT_S, check, serve, sleep_until, values

from hoplite_ray.store import Store


def play() -> None:
    """Be one."""
    serve(_Player())


class _Player:
    """The commands of a rank. Object ids are in hex.

    A command with `at_s` begins then, and returns when it ended.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._received: dict[str, npt.NDArray[np.float32]] = {}

    def attach(self, *, node: str) -> None:
        if self._store is not None:
            self._store.close()
        self._store = Store.attach(node)

    def put(self, *, object_id: str, size_bytes: int, addend: int, at_s: float = 0) -> float:
        own = values(size_bytes, addend)
        sleep_until(at_s)
        self._attached.put(bytes.fromhex(object_id), own, timeout_s=TIMEOUT_S)
        return time.monotonic()

    def put_many(self, *, object_ids: Sequence[str], size_bytes: int) -> None:
        for object_id in object_ids:
            self.put(object_id=object_id, size_bytes=size_bytes, addend=0)

    def get(self, *, object_id: str, at_s: float = 0) -> float:
        sleep_until(at_s)
        value = self._attached.get(bytes.fromhex(object_id), timeout_s=TIMEOUT_S)
        ended_s = time.monotonic()
        self._received[object_id] = value
        return ended_s

    def put_and_get(
        self, *, put: str, get: str, size_bytes: int, addend: int, at_s: float = 0
    ) -> float:
        """The first half of a round trip, and the wait for the second."""
        self.put(object_id=put, size_bytes=size_bytes, addend=addend, at_s=at_s)
        return self.get(object_id=get)

    def get_and_put(self, *, get: str, put: str, at_s: float = 0) -> float:
        """Send back what comes, as an object of its own."""
        self.get(object_id=get, at_s=at_s)
        self._attached.put(bytes.fromhex(put), self._received.pop(get), timeout_s=TIMEOUT_S)
        return time.monotonic()

    def gather(self, *, object_ids: Sequence[str], at_s: float = 0) -> float:
        sleep_until(at_s)
        ids = [bytes.fromhex(each) for each in object_ids]
        gathered = self._attached.gather(ids, timeout_s=TIMEOUT_S)
        ended_s = time.monotonic()
        self._received.update(zip(object_ids, gathered, strict=True))
        return ended_s

    def reduce(
        self, *, target: str, sources: Sequence[str], everywhere: bool, at_s: float = 0
    ) -> float:
        """Reduce, and get the result."""
        sleep_until(at_s)
        reduction = self._attached._client.begin_reduce(
            bytes.fromhex(target), source_count=len(sources), everywhere=everywhere
        )
        for index, source in enumerate(sources):
            reduction.await_source(index, bytes.fromhex(source))
        ended_s = self.get(object_id=target)
        reduction.result(TIMEOUT_S)
        return ended_s

    def check(self, *, object_id: str, count: int, addend: int) -> None:
        """Check that a received object is the sum of `count` objects, and release it."""
        check(self._received.pop(object_id), count=count, addend=addend)

    def check_and_delete_many(self, *, object_ids: Sequence[str]) -> None:
        for object_id in object_ids:
            self.check(object_id=object_id, count=1, addend=0)
            self.delete(object_id=object_id)

    def delete(self, *, object_id: str) -> None:
        self._attached.delete(bytes.fromhex(object_id), timeout_s=TIMEOUT_S)

    @property
    def _attached(self) -> Store:
        assert self._store is not None, "attach first"
        return self._store
