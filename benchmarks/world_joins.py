"""Three processes of worlds.py: rank 2 joins and leaves again while rank 1 streams to rank 0.

Time is cut into windows that all know. In every other one there is a join at its beginning and a
leave in its middle; in those between there is nothing, and what the stream carries is compared.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
from ranks import sleep_until

from hoplite_ray import worlds

MESSAGE_BYTES = 400_000
AHEAD_S = 0.02  # rank 0 is there before the other comes, whose time is taken
JOIN_S = 20.0
_LAST = np.float32(-1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan that all three processes are told."""

    begin_s: float  # of the machine's monotonic clock
    window_s: float
    joins: int
    meet_at: str
    streams: bool  # or else there is nothing but the joins

    @property
    def end_s(self) -> float:
        return self.begin_s + 2 * self.joins * self.window_s

    def join_s(self, number: int) -> float:
        """When a window with a join begins."""
        return self.begin_s + 2 * number * self.window_s


@dataclass(frozen=True, slots=True)
class Stream:
    """The receiver's counts, by window: those with a join, and those without, in turns."""

    bytes_per_s: list[float]
    longest_gap_s: list[float]


async def receive(manager: worlds.WorldManager, edge: worlds.World, plan: Plan) -> Stream:
    """Rank 0: count what comes, and be the other end of each join."""
    joins = asyncio.create_task(_joined(manager, plan, rank=0))
    arrivals = []
    into = np.zeros(MESSAGE_BYTES // 4, np.float32)
    while plan.streams and into[0] != _LAST:
        await edge.recv_async(into, src=1)
        arrivals.append(time.monotonic())
        await asyncio.sleep(0)  # a recv of an arrived message does not yield to other tasks
    await joins
    edges = plan.begin_s + plan.window_s * np.arange(2 * plan.joins + 1)
    counts, _ = np.histogram(arrivals, edges)
    gaps = []
    for begin in edges[:-1]:
        within = [at_s for at_s in arrivals if begin <= at_s < begin + plan.window_s]
        gaps.append(max(np.diff(within), default=plan.window_s))
    rates = counts * MESSAGE_BYTES / plan.window_s
    return Stream([float(rate) for rate in rates], [float(gap) for gap in gaps])


async def stream(edge: worlds.World, plan: Plan) -> None:
    """Rank 1: send as fast as they are taken until the end."""
    array = np.zeros(MESSAGE_BYTES // 4, np.float32)
    sleep_until(plan.begin_s - plan.window_s)  # a window to get up to speed
    while plan.streams and time.monotonic() < plan.end_s:
        await edge.send_async(array, dst=0)
    array[0] = _LAST
    if plan.streams:
        await edge.send_async(array, dst=0)


async def join(manager: worlds.WorldManager, plan: Plan) -> list[float]:
    """Rank 2: returns how long each join took."""
    return await _joined(manager, plan, rank=1)


async def _joined(manager: worlds.WorldManager, plan: Plan, *, rank: int) -> list[float]:
    taken_s = []
    for number in range(plan.joins):
        await _until(plan.join_s(number) + rank * AHEAD_S)
        begun = time.monotonic()
        world = await manager.join_async(
            f"joins-{number}-{plan.streams}",
            rank=rank,
            size=2,
            rendezvous=plan.meet_at,
            timeout_s=JOIN_S,
        )
        taken_s.append(time.monotonic() - begun)
        await _until(plan.join_s(number) + plan.window_s / 2)
        await world.leave_async()
    return taken_s


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
