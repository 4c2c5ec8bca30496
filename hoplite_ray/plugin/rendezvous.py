"""Where members of worlds meet under Ray: one small actor for the whole cluster."""

from __future__ import annotations

from typing import Any

import ray

_NAME = "hoplite_ray worlds"
_NAMESPACE = "hoplite"


class Board:
    """A table of bytes, in an actor. It is needed only while somebody joins."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._values[key] = value

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        return self._values.get(key)


class RayRendezvous:
    """The cluster's board, which the first to come starts; any process of any job reaches it."""

    def __init__(self) -> None:
        self._actor: Any = (
            ray.remote(Board)
            .options(
                name=_NAME,
                namespace=_NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
            )
            .remote()
        )

    async def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        await self._actor.set.remote(key, value)

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""
        value: bytes | None = await self._actor.get.remote(key)
        return value
