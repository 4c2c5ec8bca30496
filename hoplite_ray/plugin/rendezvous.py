"""Where members of worlds meet under Ray: its key-value store, by namespace and a world's name."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

import ray

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin import seams
from hoplite_ray.threads import begin

T = TypeVar("T")


class RayRendezvous:
    """One join's part of the table. All processes of a Ray namespace reach the same one.

    It keeps no process: an actor would keep its Ray node from being taken away.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._values = seams.KeyValues(context.gcs_address)
        self._prefix = f"world/{quote(context.namespace, safe='')}"
        self._own: dict[str, bytes] = {}  # what rank 0 has set

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._own[key] = value
        await wrap_future(_begin(lambda: self._values.write(self._key(key), value)))

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        return await wrap_future(_begin(lambda: self._values.read(self._key(key))))

    def close(self) -> None:
        """Remove what was set here, unless another rank 0 has set its own; waits for nothing.

        What a rank 0 leaves that dies before stands until the next one of its world's name comes.
        """
        if self._own:
            _begin(self._remove)

    def _remove(self) -> None:
        with suppress(ControlError):  # the cluster has gone, and its table with it
            for key, value in self._own.items():
                if self._values.read(self._key(key)) == value:
                    self._values.remove(self._key(key))

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{quote(key, safe='')}"


def _begin(work: Callable[[], T]) -> Future[T]:
    return begin(work, "hoplite-rendezvous")
