"""How a Ray node leaves the cluster, as its steward sees to it.

Ray takes a node away once it is idle, and a steward, as any actor, keeps its node from being idle.
So a steward for which nothing is left to do leaves; the next use on the node starts another one.
Where Ray drains a node, ours is drained as well, and its steward stays until that is done: Ray lets
a draining node end as soon as it is idle, and gives it time until the deadline that it was told.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import ControlError
from hoplite_ray.plugin import seams
from hoplite_ray.plugin.anchors import StewardLife
from hoplite_ray.plugin.start import NodePlace, node_name
from hoplite_ray.stats import NodeStats

_logger = logging.getLogger("hoplite_ray.steward")

_UNNEEDED_S = 10.0  # a start takes a second or two, and Ray lets an idle node stay for a minute
_IN_FLIGHT_S = 1.0  # for calls that were made before it was said that this life ends
_DRAIN_ASK_S = 0.5


class Departure:
    """Whether the Ray node of one steward leaves, looked at in turns by one thread."""

    def __init__(self, place: NodePlace, life: StewardLife, is_needed: Callable[[], bool]) -> None:
        self._place = place
        self._life = life
        self._is_needed = is_needed
        self._needed_s = time.monotonic()
        self._is_drained = False

    def look(self) -> None:
        """Drain the node if Ray does; end this process if nobody needs it.

        Raises: HopliteError or OSError if the node does not answer: look again later.
        """
        if seams.is_draining(self._place.ray_node_id):
            self._drain()
            if not self._is_drained:
                return
        now_s = time.monotonic()
        if self._is_needed():
            self._needed_s = now_s
        elif now_s - self._needed_s > _UNNEEDED_S:
            if not self._keeps_objects():
                self._leave()
            self._needed_s = time.monotonic()

    def _leave(self) -> None:
        with self._life.ending():
            time.sleep(_IN_FLIGHT_S)
            if self._is_needed():
                return
            _logger.info("nothing here needs a steward; the next use starts one")
            itself = seams.this_actor()
            ray.kill(itself, no_restart=True)
            time.sleep(60.0)  # it is killed meanwhile

    def _drain(self) -> None:
        async def ask() -> bool:
            node = self._record()
            calls = ControlClient(self._secret())
            try:
                key = node["node_id"], node["incarnation"]
                return (await calls.drain(node["control"], key, timeout_s=_DRAIN_ASK_S)).drained
            finally:
                await calls.close()

        is_drained = asyncio.run(ask())
        if is_drained and not self._is_drained:
            _logger.info("Ray drains this node; what only it had is elsewhere now")
        self._is_drained = is_drained
        if not is_drained and self._stats().members == 1:
            self._begin_elsewhere()

    def _begin_elsewhere(self) -> None:
        """Have some other Ray node begin, for none has ours yet that could take anything over."""
        from hoplite_ray.plugin.steward import steward_of

        for other in seams.placeable_nodes():
            if other != self._place.ray_node_id:
                _logger.info("nodes are needed that take over from this one: one on %s", other)
                steward_of(NodePlace(other, Path(node_name(other))))
                return

    def _keeps_objects(self) -> bool:
        """Whether other nodes rely on what this one has."""
        try:
            told = self._stats()
        except (ControlError, FileNotFoundError):  # it has died: nothing is left there
            return False
        return told.arena_bytes_pinned + told.spill_bytes > 0

    def _stats(self) -> NodeStats:
        return NodeStats.read(self._record()["control"], self._secret())

    def _record(self) -> dict[str, Any]:
        return dict(json.loads((self._place.directory / "node.json").read_text()))

    def _secret(self) -> bytes:
        return (self._place.directory / "secret").read_bytes().strip()
