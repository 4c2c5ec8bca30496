"""Worlds: a few processes that send each other arrays; each world is a fault domain of its own.

    world = worlds.manager().join("edge", rank=0, size=2, rendezvous="tcp://10.0.0.5:29500")
    world.send(array, dst=1)

Each verb that waits has a twin for event loops: `await world.send_async(array, dst=1)`.

A member that dies ends its worlds at once, for all their members; other worlds lose nothing. A
world is joined again by its name, which is its next epoch. Worlds need no Ray and no node.
Source: MultiWorld; docs/reference/worlds.md.

The files of this folder are facades. The rooms below use each other downward only: ops, meeting,
lending, gpu, handshake, core. Start at `world` for the operations, at `manager` for joins and ends.
"""

from __future__ import annotations

from hoplite_ray.errors import (
    StaleEpochError,
    WorldBrokenError,
    WorldError,
    WorldTimeoutError,
)
from hoplite_ray.worlds.events import Cause, EventKind, EventStream, State, WorldEvent
from hoplite_ray.worlds.manager import WorldManager
from hoplite_ray.worlds.meeting.rendezvous import Rendezvous
from hoplite_ray.worlds.process import manager
from hoplite_ray.worlds.world import World

__all__ = [
    "Cause",
    "EventKind",
    "EventStream",
    "Rendezvous",
    "StaleEpochError",
    "State",
    "World",
    "WorldBrokenError",
    "WorldError",
    "WorldEvent",
    "WorldManager",
    "WorldTimeoutError",
    "manager",
]
