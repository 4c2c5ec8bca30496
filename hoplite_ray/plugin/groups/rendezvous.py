"""Where members of worlds meet under Ray: its key-value store, by namespace and a world's name."""

from __future__ import annotations

import random
from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

import ray

from hoplite_ray.base.threads import run_in_thread
from hoplite_ray.errors import ControlError, HopliteError
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.seams import table

T = TypeVar("T")

_ALL = "world/"  # every key begins with it
_ENDS = b"\n"  # between the process that has set a record and the value
_LOOKS = 16  # records that one set looks at: the dead stay a sixteenth of all, or less than that


class RayRendezvous:
    """One join's part of the table. All processes of a Ray namespace reach the same table.

    It is no actor, because an actor would keep its Ray node from being taken away. A record names
    the process that has set it. Each rank 0 that sets a record looks at a few other records, and
    removes those of dead processes. So these stay a small share of all.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._values = table.KeyValues(context.gcs_address)
        self._prefix = f"{_ALL}{quote(context.namespace, safe='')}"
        self._own: dict[str, bytes] = {}  # the records that rank 0 has set
        self._connection = seams.connection()
        self._owner = f"{seams.this_worker()}@{context.get_node_id()}"

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        record = self._own[key] = self._owner.encode() + _ENDS + value
        await wrap_future(_submit(lambda: self._values.write(self._key(key), record)))
        _submit(self._remove_dead)

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        record = await wrap_future(_submit(lambda: self._values.read(self._key(key))))
        return None if record is None else record.partition(_ENDS)[2]

    def close(self) -> None:
        """Remove the records that this process has set and no other has replaced; don't wait."""
        own, self._own = self._own, {}
        if own:
            _submit(lambda: self._remove(own))

    def _remove(self, own: dict[str, bytes]) -> None:
        with suppress(ControlError):  # the cluster has gone, and its table with it
            for key, record in own.items():
                self._remove_if(self._key(key), record)

    def _remove_if(self, at: str, record: bytes) -> None:
        if self._values.read(at) == record:
            self._values.remove(at)

    def _remove_dead(self) -> None:
        """Remove records of dead processes, a few at a time."""
        with suppress(HopliteError):  # the cluster has gone, or this process has left it
            keys = self._values.keys(_ALL)
            for at in random.sample(keys, min(len(keys), _LOOKS)):
                record = self._values.read(at)
                if record is not None and self._is_dead(record):
                    self._remove_if(at, record)
            for key, record in self._own.copy().items():
                # Another rank's `_remove_if` of a dead predecessor's record may remove a new one.
                if self._values.read(self._key(key)) is None and key in self._own:
                    self._values.write(self._key(key), record)

    def _is_dead(self, record: bytes) -> bool:
        worker, _, ray_node_id = record.partition(_ENDS)[0].decode().partition("@")
        with seams.stay_connected(self._connection):
            return not seams.is_worker_alive(worker, ray_node_id)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{quote(key, safe='')}"


def _submit(work: Callable[[], T]) -> Future[T]:
    return run_in_thread(work, "hoplite-rendezvous")
