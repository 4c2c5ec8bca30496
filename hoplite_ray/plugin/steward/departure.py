"""The steward's part when a Ray node leaves the cluster.

Ray takes a node away when it is idle, and a steward, like any actor, keeps its node from being
idle. So a steward with nothing to do leaves, and the next use on the node starts another one.
When Ray drains a Ray node, its steward drains the node of this package, and stays until that is
done: Ray ends a draining node as soon as it is idle, or at the drain's deadline.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import ray

from hoplite_ray.control.client import ControlClient
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.node.start import NodePlace, node_name, node_number
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward_client.client import steward_of
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation

T = TypeVar("T")

_logger = logging.getLogger("hoplite_ray.steward")

_UNNEEDED_S = 60.0  # without duties, beyond which it leaves; a start takes 2 s of a core
_DRAIN_ASK_S = 0.5


class Departure:
    """The leaving of one steward's Ray node; one thread calls `look` again and again."""

    def __init__(
        self,
        place: NodePlace,
        life: StewardIncarnation,
        has_duties: Callable[..., bool],
    ) -> None:
        self._place = place
        self._life = life
        self._has_duties = has_duties
        self._needed_s = time.monotonic()
        self._has_asked_others = False
        self._is_drained = False

    def poll(self) -> None:
        """Drain the node if Ray does; end this process if nothing needs it.

        Raises: HopliteError or OSError if the node does not answer: look again later.
        """
        if seams.is_draining(self._place.ray_node_id):
            self._drain()
            if not self._is_drained:
                return
        now_s = time.monotonic()
        if self._is_needed():
            self._needed_s = now_s
        elif now_s - self._needed_s > _UNNEEDED_S and not self._keeps_objects():
            self._leave()

    def _is_needed(self) -> bool:
        """Return True if the steward has duties, or a caller has marked it as used."""
        was_used = self._life.take_use_mark()
        return self._has_duties(is_drained=self._is_drained) or was_used

    def _leave(self) -> None:
        with self._life.announce_end():
            if self._is_needed():
                self._needed_s = time.monotonic()
                return
            _logger.info("nothing here needs a steward; the next use starts one")
            ray.kill(seams.this_actor(), no_restart=True)
            time.sleep(60.0)  # Ray kills the process meanwhile

    def _drain(self) -> None:
        if not self._has_asked_others and self._keeps_objects():
            self._ask_others()
        node = self._read_record()
        key = node["node_id"], node["incarnation"]
        drain = self._call(lambda calls, at: calls.drain(at, key, timeout_s=_DRAIN_ASK_S))
        if drain.drained and not self._is_drained:
            _logger.info("Ray drains this node; what only it had is elsewhere now")
        self._is_drained = drain.drained

    def _ask_others(self) -> None:
        """Start stewards on Ray nodes that may take objects over: a steward keeps its node.

        If no other Ray node has a node of this package yet, one begins.
        """
        view = self._call(lambda calls, at: calls.view(at))
        members = {member.key[0] for member in view.members}
        others = [each for each in seams.placeable_nodes() if each != self._place.ray_node_id]
        takers = [each for each in others if node_number(each) in members] or others[:1]
        for other in takers:
            steward_of(NodePlace(other, Path(node_name(other))))
        self._has_asked_others = bool(takers)

    def _call(self, ask: Callable[[ControlClient, str], Awaitable[T]]) -> T:
        """Return the node's answer to `ask`."""

        async def answer() -> T:
            calls = ControlClient(self._read_secret())
            try:
                return await ask(calls, self._read_record()["control"])
            finally:
                await calls.close()

        return asyncio.run(answer())

    def _keeps_objects(self) -> bool:
        """Return True if other nodes may rely on objects of this node."""
        stats = NodeStats.read(self._read_record()["control"], self._read_secret())
        return stats.arena_bytes_pinned + stats.spill_bytes > 0

    def _read_record(self) -> dict[str, Any]:
        return dict(json.loads((self._place.directory / "node.json").read_text()))

    def _read_secret(self) -> bytes:
        return (self._place.directory / "secret").read_bytes().strip()
