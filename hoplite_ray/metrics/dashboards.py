"""The metrics of every node in one table, and the Grafana dashboard that is made from it.

`hoplite_ray.serve.metrics` has such a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_PREFIX = "ray_hoplite_"  # `ray_` is Ray's own, in front of every metric of an application
_RATE_OVER = "1m"  # two of Prometheus' usual intervals of 15 s, and a lost one


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of Prometheus. `unit` is one of Grafana's units; `tags` are its labels."""

    counter: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    meaning: str
    tags: tuple[str, ...] = ("node",)

    @property
    def name(self) -> str:
        """The name that Ray gets."""
        return f"hoplite_{self.counter}"

    @property
    def exposed_name(self) -> str:
        """The name that Prometheus reads; its ending follows Prometheus' rules."""
        return f"{_PREFIX}{self.counter}{_ENDINGS[self.kind]}"

    @property
    def queries(self) -> dict[str, str]:
        """The queries of a dashboard, by the words before the labels in its legend.

        A gauge shows its value, a counter its rate, and a histogram its median and its tail.
        """
        selected = f'{self.exposed_name}{{SessionName=~"$session"}}'
        if self.kind == "gauge":
            return {self.counter: selected}
        if self.kind == "counter":
            return {self.counter: f"rate({selected}[{_RATE_OVER}])"}
        by = ", ".join(("le", *self.tags))
        spread = f"sum by ({by}) (rate({selected}[{_RATE_OVER}]))"
        return {
            f"{self.counter} p{share}": f"histogram_quantile(0.{share}, {spread})"
            for share in (50, 99)
        }

    @property
    def legend(self) -> str:
        """The labels in a dashboard's legend."""
        return " ".join(f"{{{{{tag}}}}}" for tag in self.tags)


_ENDINGS = {"gauge": "", "counter": "_total", "histogram": "_bucket"}

Panels = Mapping[str, tuple[Metric, ...]]

_OF_CHANNELS = ("node", "namespace", "channel")

# By panel. Every metric has the label `node`: its id, as `hoplite-ray status` prints it.
PANELS: dict[str, tuple[Metric, ...]] = {
    "Arena": (
        Metric("arena_bytes", "gauge", "bytes", "size of the arena: memory for objects"),
        Metric("arena_bytes_used", "gauge", "bytes", "arena bytes that objects occupy"),
        Metric("arena_bytes_pinned", "gauge", "bytes", "arena bytes that cannot be evicted now"),
        Metric("arena_bytes_orphaned", "gauge", "bytes", "arena bytes whose owners are dead"),
    ),
    "Disk": (
        Metric("spill_bytes", "gauge", "bytes", "bytes of objects in the spill file"),
        Metric("spill_bytes_written", "counter", "Bps", "bytes written to the spill file"),
        Metric("spill_bytes_read", "counter", "Bps", "bytes read from the spill file"),
        Metric("spill_errors", "counter", "ops", "failed writes and reads of the spill file"),
    ),
    "Bytes between nodes": (
        Metric("link_bytes_sent", "counter", "Bps", "bytes sent to other nodes, with headers"),
        Metric("link_bytes_received", "counter", "Bps", "bytes received from other nodes"),
    ),
    "Objects": (
        Metric("objects", "gauge", "short", "objects on the node, whole or in part"),
        Metric("waiters", "gauge", "short", "gets that wait"),
        Metric("directory_entries", "gauge", "short", "objects whose home the node is"),
        Metric("evictions", "counter", "ops", "copies evicted to make room"),
        Metric("rebuilds", "counter", "ops", "objects that the node made of a base and deltas"),
        Metric(
            "rebuilds_failed",
            "counter",
            "ops",
            "rebuilds that ended with a fetch of the whole object, or with another maker of a part",
        ),
        Metric("excerpts", "counter", "ops", "parts of objects that the node made for readers"),
    ),
    "Reduces": (
        Metric("reduces_committed", "counter", "ops", "planned reduces with final members"),
        Metric("reduces_branched", "counter", "ops", "planned reduces with several levels"),
        Metric("blocks_folded", "counter", "ops", "blocks of sources added to a result"),
    ),
    "Repairs": (
        Metric("edges_moved", "counter", "ops", "edges of trees moved to another sender"),
        Metric("peers_suspected", "counter", "ops", "peers without a heartbeat for a while"),
        Metric("peers_dead", "counter", "ops", "peers that the node has given up"),
        Metric("peers_frozen", "counter", "ops", "peers given up without a heartbeat"),
        Metric("peers_unreachable", "counter", "ops", "peers given up behind a cut network"),
        Metric("rails_lost", "counter", "ops", "rails lost to peers that other rails reach"),
    ),
    "Membership": (
        Metric("members", "gauge", "short", "nodes in this node's view"),
        Metric("has_quorum", "gauge", "short", "1 if the view can change, 0 in a minority"),
        Metric("draining", "gauge", "short", "1 from a drain until the node ends"),
        Metric("sole_copies", "gauge", "short", "objects that only this draining node has"),
    ),
    "Refused": (
        Metric("link_handshakes_refused", "counter", "ops", "refused handshakes at the data port"),
        Metric("link_frames_bad", "counter", "ops", "frames of nodes that break the protocol"),
        Metric("link_blocks_corrupt", "counter", "ops", "received blocks with a wrong checksum"),
        Metric("client_refusals", "counter", "ops", "refused processes of the node's machine"),
        Metric("client_frames_bad", "counter", "ops", "frames of clients that break the protocol"),
    ),
    "Memory of the node": (
        Metric("memory_bytes", "gauge", "bytes", "anonymous memory, without the arena"),
        Metric("parked_bytes", "gauge", "bytes", "bytes of messages kept for a newer view"),
        Metric("link_layout_bytes", "gauge", "bytes", "bytes of layouts that links remember"),
        Metric("link_bytes_queued", "gauge", "bytes", "bytes queued for slow nodes"),
        Metric("client_bytes_queued", "gauge", "bytes", "bytes queued for slow clients"),
    ),
    "Tables of the node": (
        Metric("parked_messages", "gauge", "short", "messages of nodes, kept for a newer view"),
        Metric("deletions_open", "gauge", "short", "deletions that have not ended"),
        Metric("deletions_remembered", "gauge", "short", "ended deletions that are remembered"),
        Metric("objects_recent", "gauge", "short", "objects evicted or orphaned within a minute"),
        Metric("questions", "gauge", "short", "unanswered questions for an object's location"),
        Metric("reduces", "gauge", "short", "reduces planned, folded or remembered"),
        Metric("channels", "gauge", "short", "version channels whose newest version is kept"),
        Metric("channel_requests", "gauge", "short", "requests about channels that wait here"),
        Metric("excerpts_wanted", "gauge", "short", "parts of objects that clients here wait for"),
        Metric("actions", "gauge", "short", "actions decided and not carried out yet"),
    ),
    "Version channels": (
        Metric(
            "channel_version",
            "gauge",
            "short",
            "newest version of a channel, told by its home",
            _OF_CHANNELS,
        ),
        Metric(
            "channel_reader_version",
            "gauge",
            "short",
            "version that the slowest reader on the node has",
            _OF_CHANNELS,
        ),
        Metric(
            "channel_lag_versions",
            "gauge",
            "short",
            "versions that the slowest reader on the node lacks",
            _OF_CHANNELS,
        ),
    ),
    "Age of what readers have": (
        Metric(
            "channel_lag_seconds",
            "gauge",
            "s",
            "how much older the version of the slowest reader is than the newest",
            _OF_CHANNELS,
        ),
    ),
    "Reactor": (
        Metric("turns", "counter", "ops", "turns of the thread that does a node's work"),
        Metric("turns_over_10ms", "counter", "ops", "turns that took more than 10 ms"),
    ),
}
METRICS = tuple(metric for metrics in PANELS.values() for metric in metrics)
CHANNEL_METRICS = tuple(metric for metric in METRICS if metric.tags == _OF_CHANNELS)
NODE_METRICS = tuple(metric for metric in METRICS if metric not in CHANNEL_METRICS)


def dashboard(panels: Panels = PANELS, title: str = "hoplite_ray") -> dict[str, Any]:
    """Return a Grafana dashboard of all metrics, in the form that Grafana imports."""
    first = next(iter(panels.values()))[0]
    return {
        "title": title,
        "uid": title.replace("_", "-").replace(" ", "-"),
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_SOURCE, _session(first)]},
        "panels": [_panel(number, *panel) for number, panel in enumerate(panels.items())],
    }


_PROMETHEUS = {"type": "prometheus", "uid": "${source}"}
_SOURCE = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_WIDTH, _HEIGHT = 12, 8  # of a panel; Grafana's rows have 24 columns


def _session(metric: Metric) -> dict[str, Any]:
    """Return the variable that selects a Ray session among those with this metric."""
    return {
        "name": "session",
        "label": "Ray session",
        "type": "query",
        "datasource": _PROMETHEUS,
        "query": f"label_values({metric.exposed_name}, SessionName)",
        "includeAll": True,
        "allValue": ".*",
        "refresh": 2,  # whenever the time range changes
        "sort": 2,  # the newest session first
    }


def _panel(number: int, title: str, metrics: tuple[Metric, ...]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": "\n".join(f"{metric.counter}: {metric.meaning}" for metric in metrics),
        "datasource": _PROMETHEUS,
        "gridPos": {
            "x": number % 2 * _WIDTH,
            "y": number // 2 * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": metrics[0].unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": what,
                "datasource": _PROMETHEUS,
                "expr": query,
                "legendFormat": f"{what} {metric.legend}",
            }
            for metric in metrics
            for what, query in metric.queries.items()
        ],
    }
