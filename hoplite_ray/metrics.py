"""What Prometheus hears of every node: one table, from which the Grafana dashboard is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

_PREFIX = "ray_hoplite_"  # `ray_` is Ray's own, in front of every metric of an application
_RATE_OVER = "1m"  # two of Prometheus' usual intervals of 15 s, and a lost one


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter of a node, as Prometheus has it. `unit` is one of Grafana's."""

    counter: str
    kind: Literal["gauge", "counter"]
    unit: str
    meaning: str

    @property
    def name(self) -> str:
        """As Ray is told of it."""
        return f"hoplite_{self.counter}"

    @property
    def exposed(self) -> str:
        """As Prometheus reads it; the ending is by its rules."""
        return f"{_PREFIX}{self.counter}{'_total' if self.kind == 'counter' else ''}"

    @property
    def query(self) -> str:
        """What a dashboard shows: the value, or the rate of what only counts up."""
        selected = f'{self.exposed}{{SessionName=~"$session"}}'
        return selected if self.kind == "gauge" else f"rate({selected}[{_RATE_OVER}])"


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
    "Reactor": (
        Metric("turns", "counter", "ops", "of the thread that does all of a node's work"),
        Metric("turns_over_10ms", "counter", "ops", "of them, longer than they should be"),
    ),
}
METRICS = tuple(metric for metrics in PANELS.values() for metric in metrics)


def dashboard() -> dict[str, Any]:
    """A Grafana dashboard of all metrics, as Grafana imports it."""
    return {
        "title": "hoplite_ray",
        "uid": "hoplite-ray",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_SOURCE, _SESSION]},
        "panels": [_panel(number, title) for number, title in enumerate(PANELS)],
    }


_PROMETHEUS = {"type": "prometheus", "uid": "${source}"}
_SOURCE = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_SESSION = {
    "name": "session",
    "label": "Ray session",
    "type": "query",
    "datasource": _PROMETHEUS,
    "query": f"label_values({_PREFIX}arena_bytes, SessionName)",
    "includeAll": True,
    "allValue": ".*",
    "refresh": 2,  # whenever the time range changes
    "sort": 2,  # the newest session first
}
_WIDTH, _HEIGHT = 12, 8  # of a panel; Grafana's rows have 24 columns


def _panel(number: int, title: str) -> dict[str, Any]:
    metrics = PANELS[title]
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
                "refId": metric.counter,
                "datasource": _PROMETHEUS,
                "expr": metric.query,
                "legendFormat": f"{metric.counter} {{{{node}}}}",
            }
            for metric in metrics
        ],
    }
