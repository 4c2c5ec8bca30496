"""Gives a node's counters to the metrics agent of its Ray node, from which Prometheus reads them.

The steward does it, because Ray takes metrics from its own workers only. Without `ray[default]` no
agent listens, and Ray drops the counters.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import HopliteError
from hoplite_ray.metrics.dashboards import METRICS
from hoplite_ray.plugin.node.start import NodePlace, node_number

_logger = logging.getLogger("hoplite_ray.steward")

_EVERY_S = 5.0  # half of Ray's own interval


def publish_always(place: NodePlace) -> None:
    """Publish the counters of the node at `place`, and never return."""
    asyncio.run(_publish_always(place))


async def _publish_always(place: NodePlace) -> None:
    published = _PublishedCounters(f"{node_number(place.ray_node_id):x}")
    calls: ControlClient | None = None
    while True:
        try:
            if calls is None:
                calls = ControlClient((place.directory / "secret").read_bytes().strip())
            record = json.loads((place.directory / "node.json").read_text())
            published.set(await calls.stats(record["control"]))
        except (HopliteError, OSError, ValueError) as error:  # between two incarnations of the node
            _logger.info("no metrics of the node now: %s", error)
            if calls is not None:
                await calls.close()
            calls = None  # the next one reads the TLS files anew: they may have been renewed
        except Exception as error:  # for example, a node of another release lacks a counter
            _logger.warning("no metrics of the node now: %s: %s", type(error).__name__, error)
        await asyncio.sleep(_EVERY_S)


class _PublishedCounters:
    """The counters that Ray has, of one node."""

    def __init__(self, node: str) -> None:
        self._tags = {"node": node}
        self._published: dict[str, int] = {}
        of_kind = {kind: [m for m in METRICS if m.kind == kind] for kind in ("gauge", "counter")}
        tags = {"tag_keys": ("node",)}
        self._gauges = {m.counter: Gauge(m.name, m.meaning, **tags) for m in of_kind["gauge"]}
        self._counters = {m.counter: Counter(m.name, m.meaning, **tags) for m in of_kind["counter"]}

    def set(self, counters: Mapping[str, int]) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(counters[name], self._tags)
        for name, counter in self._counters.items():
            last, value = self._published.get(name, 0), counters[name]
            more = value - last if value >= last else value  # less: another incarnation of the node
            if more:
                counter.inc(more, self._tags)
            self._published[name] = value
