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
    def exposed(self) -> str:
        """The name that Prometheus reads; its ending follows Prometheus' rules."""
        return f"{_PREFIX}{self.counter}{_ENDINGS[self.kind]}"

    @property
    def queries(self) -> dict[str, str]:
        """The queries of a dashboard, by the words before the labels in its legend.

        A gauge shows its value, a counter its rate, and a histogram its median and its tail.
        """
        selected = f'{self.exposed}{{SessionName=~"$session"}}'
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

# By panel. Every metric has the label `node`: its id, as `hoplite-ray status` prints it.
PANELS: dict[str, tuple[Metric, ...]] = {
    "Arena": (
        Metric("arena_bytes", "gauge", "bytes", "memory for objects"),
        Metric("arena_bytes_used", "gauge", "bytes", "of it taken by objects"),
        Metric("arena_bytes_pinned", "gauge", "bytes", "of that not to be evicted now"),
        Metric("arena_bytes_orphaned", "gauge", "bytes", "of that of processes that are dead"),
    ),
    "Disk": (
        Metric("spill_bytes", "gauge", "bytes", "of objects in the file of spilled ones"),
        Metric("spill_bytes_written", "counter", "Bps", "to it"),
        Metric("spill_bytes_read", "counter", "Bps", "from it"),
        Metric("spill_errors", "counter", "ops", "of its disk"),
    ),
    "Bytes between nodes": (
        Metric("link_bytes_sent", "counter", "Bps", "to other nodes, headers and all"),
        Metric("link_bytes_received", "counter", "Bps", "from other nodes"),
    ),
    "Objects": (
        Metric("objects", "gauge", "short", "here, whole or in part"),
        Metric("waiters", "gauge", "short", "gets that wait"),
        Metric("directory_entries", "gauge", "short", "objects whose home this node is"),
        Metric("evictions", "counter", "ops", "copies that made room for others"),
    ),
    "Reduces": (
        Metric("reduces_committed", "counter", "ops", "planned here, with their members final"),
        Metric("reduces_branched", "counter", "ops", "of them, by a tree of several levels"),
        Metric("blocks_folded", "counter", "ops", "of sources, added to a result"),
    ),
    "Repairs": (
        Metric("edges_moved", "counter", "ops", "edges of trees given to another sender"),
        Metric("peers_dead", "counter", "ops", "nodes given up by this one"),
        Metric("peers_frozen", "counter", "ops", "of them, without a sign of life"),
        Metric("peers_unreachable", "counter", "ops", "of them, beyond a cut network"),
        Metric("rails_lost", "counter", "ops", "connections whose bytes stayed unacknowledged"),
    ),
    "Membership": (
        Metric("members", "gauge", "short", "nodes in this one's view"),
        Metric("has_quorum", "gauge", "short", "0 in a minority, where no view can change"),
        Metric("draining", "gauge", "short", "1 if it gives away what only it holds"),
    ),
    "Refused": (
        Metric("link_handshakes_refused", "counter", "ops", "of nodes without the secret"),
        Metric("link_frames_bad", "counter", "ops", "from nodes, not of this protocol"),
        Metric("link_blocks_corrupt", "counter", "ops", "whose checksum was wrong"),
        Metric("client_refusals", "counter", "ops", "of clients of other users"),
        Metric("client_frames_bad", "counter", "ops", "from clients, not of this protocol"),
    ),
    "Memory of the node": (
        Metric("memory_bytes", "gauge", "bytes", "anonymous memory of its process, not the arena"),
        Metric("parked_bytes", "gauge", "bytes", "of messages kept for a newer view"),
        Metric("link_layout_bytes", "gauge", "bytes", "of layouts that links remember"),
        Metric("link_bytes_queued", "gauge", "bytes", "to nodes that are slow to take them"),
        Metric("client_bytes_queued", "gauge", "bytes", "to clients that are slow to take them"),
    ),
    "Tables of the node": (
        Metric("parked_messages", "gauge", "short", "of other nodes, kept for a newer view"),
        Metric("deletions_open", "gauge", "short", "asked for and not ended"),
        Metric("deletions_remembered", "gauge", "short", "so as to refuse what comes late"),
        Metric("objects_recent", "gauge", "short", "evicted or orphaned within a minute"),
        Metric("questions", "gauge", "short", "where an object is, not answered"),
        Metric("reduces", "gauge", "short", "planned, folded or remembered"),
        Metric("actions", "gauge", "short", "decided and not done"),
    ),
    "Reactor": (
        Metric("turns", "counter", "ops", "of the thread that does all of a node's work"),
        Metric("turns_over_10ms", "counter", "ops", "of them, longer than they should be"),
    ),
}
METRICS = tuple(metric for metrics in PANELS.values() for metric in metrics)


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
        "query": f"label_values({metric.exposed}, SessionName)",
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
