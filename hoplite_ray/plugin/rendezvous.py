"""Where members of worlds meet under Ray: its key-value store, by namespace and a world's name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

import ray

from hoplite_ray.errors import ControlError
from hoplite_ray.plugin import seams

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
        await _in_thread(lambda: self._values.write(self._key(key), value))

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        return await _in_thread(lambda: self._values.read(self._key(key)))

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


async def _in_thread(work: Callable[[], T]) -> T:
    """As asyncio.to_thread; the end of the loop does not wait for a thread that is stuck."""
    return await asyncio.wrap_future(_begin(work))


def _begin(work: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a task that waits for it can't cancel it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="hoplite-rendezvous", daemon=True).start()
    return done
