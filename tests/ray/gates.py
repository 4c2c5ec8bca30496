"""An actor that keeps refs pending until a test opens it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE


@ray.remote(num_cpus=0)
class Gate:
    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def open(self) -> None:
        self.opened.set()

    async def passed(self, value: Any = None) -> Any:
        """The value itself, once the gate is open."""
        await self.opened.wait()
        return value

    async def array(self) -> hop.Array:
        """An array that is made on the actor's event loop, once the gate is open."""
        await self.opened.wait()
        return await hop.array_async(np.ones(LARGE))
