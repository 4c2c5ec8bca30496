"""One pending gather: a coroutine of the steward that waits for the handles of all sources.

No byte moves for it: a process that gets the result pulls the sources by their broadcast trees.
"""

from __future__ import annotations

import asyncio

from hoplite_ray.plugin.handle.messages import Gathered
from hoplite_ray.plugin.seams.core import Ref
from hoplite_ray.plugin.steward.looking import Looks
from hoplite_ray.plugin.steward.source import Source, TakeBare, resolve


async def run_gather(refs: list[Ref], take_bare: TakeBare) -> Gathered:
    """Return the handles of all sources. Raises: the error of the first source that fails."""
    arrivals: asyncio.Queue[Source] = asyncio.Queue()
    looks = Looks()
    sources = [Source(index, ref) for index, ref in enumerate(refs)]
    waits = [asyncio.create_task(resolve(source, arrivals, looks, take_bare)) for source in sources]
    try:
        for _ in sources:
            arrived = await arrivals.get()
            if arrived.failure is not None:
                raise arrived.failure
        return Gathered(source.handle for source in sources if source.handle is not None)
    finally:
        for wait in waits:
            wait.cancel()
        for source in sources:
            source.drop_refs()
