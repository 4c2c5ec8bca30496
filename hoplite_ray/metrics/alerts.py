"""The alert rules of nodes and Serve pipelines in one table, and the file for Prometheus.

Each rule names the heading of the runbook that explains it. `dashboards` and
`hoplite_ray.serve.metrics` have the metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RUNBOOK = "docs/operate/runbook.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule: it fires if `expression` has a result for the time `lasts`."""

    name: str
    expression: str
    lasts: str
    severity: Literal["critical", "warning", "info"]
    summary: str  # of one alert, with its labels as Prometheus fills them in
    heading: str  # of the runbook, as the anchor of a link

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.heading}"


def _rises(counter: str, over: str) -> str:
    """Return an expression for a counter that rises, or that appears with its first event."""
    return f"increase({counter}[{over}]) > 0 or ({counter} unless {counter} offset {over})"


_OF_NODES = (
    Alert(
        "HopliteNoQuorum",
        "ray_hoplite_has_quorum == 0",
        "1m",
        "critical",
        "node {{ $labels.node }} is in a minority: its view cannot change",
        "minority",
    ),
    Alert(
        "HopliteMembersDiffer",
        "max(ray_hoplite_members) by (SessionName) != min(ray_hoplite_members) by (SessionName)",
        "2m",
        "critical",
        "nodes of Ray session {{ $labels.SessionName }} have different views",
        "minority",
    ),
    Alert(
        "HopliteArenaFull",
        "ray_hoplite_arena_bytes_pinned / ray_hoplite_arena_bytes > 0.8",
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the arena of node {{ $labels.node }} is pinned",
        "the-store-is-full",
    ),
    Alert(
        "HopliteOrphans",
        "ray_hoplite_arena_bytes_orphaned / ray_hoplite_arena_bytes > 0.3",
        "15m",
        "info",
        "{{ $value | humanizePercentage }} of the arena of node {{ $labels.node }} are orphans",
        "orphans",
    ),
    Alert(
        "HopliteSpillErrors",
        _rises("ray_hoplite_spill_errors_total", "5m"),
        "0m",
        "critical",
        "the disk of node {{ $labels.node }} fails to write or to read spilled objects",
        "the-disk-fails",
    ),
    Alert(
        "HopliteSpills",
        "rate(ray_hoplite_spill_bytes_written_total[5m]) > 0",
        "30m",
        "info",
        "node {{ $labels.node }} has spilled objects to disk for 30 minutes",
        "the-store-is-full",
    ),
    Alert(
        "HopliteNodesDie",
        _rises("ray_hoplite_peers_dead_total", "10m"),
        "0m",
        "warning",
        "node {{ $labels.node }} has given up a peer",
        "nodes-die",
    ),
    Alert(
        "HopliteRailsLost",
        "increase(ray_hoplite_rails_lost_total[10m]) > 3",
        "0m",
        "warning",
        "node {{ $labels.node }} has lost {{ $value | humanize }} rails in 10 minutes",
        "the-network-loses-connections",
    ),
    Alert(
        "HopliteCorrupt",
        _rises("ray_hoplite_link_blocks_corrupt_total", "10m"),
        "0m",
        "critical",
        "node {{ $labels.node }} has received a block with a wrong checksum",
        "blocks-are-corrupt",
    ),
    Alert(
        "HopliteStrangers",
        "increase(ray_hoplite_link_handshakes_refused_total[10m]) > 10",
        "0m",
        "warning",
        "node {{ $labels.node }} has refused {{ $value | humanize }} handshakes in 10 minutes",
        "strangers",
    ),
    Alert(
        "HopliteUsers",
        _rises("ray_hoplite_client_refusals_total", "10m"),
        "0m",
        "warning",
        "node {{ $labels.node }} has refused a process of its machine",
        "clients-are-refused",
    ),
    Alert(
        "HopliteSlowTurns",
        "rate(ray_hoplite_turns_over_10ms_total[5m]) > 1",
        "10m",
        "warning",
        "node {{ $labels.node }} lacks CPU time",
        "a-node-is-slow",
    ),
    Alert(
        "HopliteDrains",
        "ray_hoplite_sole_copies > 0 and on (node) ray_hoplite_draining == 1",
        "15m",
        "warning",
        "the drain of node {{ $labels.node }} has {{ $value }} objects left",
        "a-drain-does-not-end",
    ),
    Alert(
        "HopliteGetsWait",
        "ray_hoplite_waiters > 0 unless rate(ray_hoplite_link_bytes_received_total[5m]) > 0",
        "10m",
        "warning",
        "{{ $value }} gets wait on node {{ $labels.node }}, and no bytes arrive",
        "gets-wait",
    ),
    Alert(
        "HopliteReaderLags",
        "ray_hoplite_channel_lag_versions > 10",
        "5m",
        "warning",
        "a reader of channel {{ $labels.channel }} on node {{ $labels.node }} lacks {{ $value }} "
        "versions",
        "a-reader-lags",
    ),
)
_OF_PIPELINES = (
    Alert(
        "HopliteQueriesFail",
        "sum by (application) "
        '(rate(ray_hoplite_serve_queries_total{outcome=~"late|failed"}[5m])) '
        "/ sum by (application) (rate(ray_hoplite_serve_queries_total[5m])) > 0.01",
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the queries of {{ $labels.application }} fail",
        "queries-fail",
    ),
    Alert(
        "HopliteReissues",
        "increase(ray_hoplite_serve_reissues_total[10m]) > 10",
        "0m",
        "warning",
        "replicas of stage {{ $labels.stage }} died with {{ $value | humanize }} queries",
        "queries-run-again",
    ),
    Alert(
        "HopliteStageOverBudget",
        "sum by (application, deployment) "
        '(rate(ray_hoplite_serve_budget_queries_total{budget="exceeded"}[5m])) '
        "/ sum by (application, deployment) "
        "(rate(ray_hoplite_serve_budget_queries_total[5m])) > 0.1",
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the queries at stage {{ $labels.deployment }} of "
        "{{ $labels.application }} exceed its share of the promised latency",
        "a-stage-exceeds-its-budget",
    ),
    Alert(
        "HopliteEdgesMissing",
        "ray_hoplite_serve_edges < ray_hoplite_serve_replicas",
        "5m",
        "warning",
        "a replica of {{ $labels.deployment }} does not reach all of stage {{ $labels.stage }}",
        "edges-are-missing",
    ),
)
RULE_SETS: Mapping[str, tuple[Alert, ...]] = {
    "hoplite_ray": _OF_NODES,
    "hoplite_ray_serve": _OF_PIPELINES,
}


def rules() -> str:
    """Return the file of rules, as Prometheus reads it: YAML, whose texts are quoted as in JSON."""
    lines = ["groups:"]
    for group, alerts in RULE_SETS.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in alerts:
            lines += [
                f"      - alert: {alert.name}",
                f"        expr: {json.dumps(alert.expression)}",
                f"        for: {alert.lasts}",
                f"        labels: {{severity: {alert.severity}}}",
                "        annotations:",
                f"          summary: {json.dumps(alert.summary)}",
                f"          runbook: {json.dumps(alert.runbook)}",
            ]
    return "\n".join(lines)
