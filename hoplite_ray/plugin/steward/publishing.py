"""Gives a node's counters to the metrics agent of its Ray node, from which Prometheus reads them.

The steward does it, because Ray takes metrics from its own workers only. Without `ray[default]` no
agent listens, and Ray drops the counters.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence

from ray.util.metrics import Counter, Gauge

from hoplite_ray.channel.listing import ListedChannel, collect_channels
from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import HopliteError
from hoplite_ray.metrics.dashboards import CHANNEL_METRICS, NODE_METRICS
from hoplite_ray.plugin.node.start import NodePlace, node_number

_logger = logging.getLogger("hoplite_ray.steward")

_EVERY_S = 5.0  # half of Ray's own interval


def publish_always(place: NodePlace) -> None:
    """Publish the counters of the node at `place`, and never return."""
    asyncio.run(_publish_always(place))


async def _publish_always(place: NodePlace) -> None:
    node = f"{node_number(place.ray_node_id):x}"
    published, channels = _PublishedCounters(node), _PublishedChannels(node)
    calls: ControlClient | None = None
    while True:
        try:
            if calls is None:
                calls = ControlClient((place.directory / "secret").read_bytes().strip())
            record = json.loads((place.directory / "node.json").read_text())
            published.set(await calls.stats(record["control"]))
            listed = collect_channels({0: await calls.channels(record["control"])})
            channels.set(measure_channels(listed))
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
        of_kind = {
            kind: [m for m in NODE_METRICS if m.kind == kind] for kind in ("gauge", "counter")
        }
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


Place = tuple[str, str]  # the namespace and the name of a channel
Values = dict[tuple[Place, str], float]  # by channel and counter


def measure_channels(listed: Sequence[ListedChannel]) -> Values:
    """Return the values of one node's channel metrics.

    listed:  the channels as that node alone knows them, with its readers only.
    """
    values: Values = {}
    for channel in listed:
        place = (channel.namespace, channel.name)
        if channel.home_node_id is not None:  # of all nodes its home tells the newest version
            values[place, "channel_version"] = channel.version
        if not channel.readers:
            continue
        slowest = channel.readers[0]
        values[place, "channel_reader_version"] = slowest.version
        values[place, "channel_lag_versions"] = slowest.lag_versions
        values[place, "channel_lag_seconds"] = slowest.lag_s
    return values


class _PublishedChannels:
    """The channel metrics that Ray has, of one node. Ray keeps a value until another one comes."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._published: Values = {}
        self._gauges = {
            m.counter: Gauge(m.name, m.meaning, tag_keys=m.tags) for m in CHANNEL_METRICS
        }

    def set(self, values: Values) -> None:
        """Publish the values; one that was published, and is not among them, becomes 0."""
        gone = dict.fromkeys(self._published.keys() - values.keys(), 0.0)
        for ((namespace, name), counter), value in {**values, **gone}.items():
            tags = {"node": self._node, "namespace": namespace, "channel": name}
            self._gauges[counter].set(value, tags)
        self._published = values
