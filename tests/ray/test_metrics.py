"""The metrics that Prometheus reads from Ray's metrics agent, and their dashboard."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest

from hoplite_ray.metrics.dashboards import METRICS, PANELS, dashboard
from tests.process.command import hoplite_ray
from tests.ray.raycluster import eventually, free_port

PROGRAM = """
import sys
import numpy as np, ray, hoplite_ray as hop
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         _metrics_export_port=int(sys.argv[1]), _system_config={"metrics_report_interval_ms": 500},
         runtime_env={"hoplite": {"arena_bytes": 64 << 20}})
kept = [hop.put(np.ones(1 << 20, np.uint8)) for _ in range(3)]
hop.publish("weights", np.ones(1 << 20, np.uint8), version=20)
watch = hop.watch("weights")
watch.next()
for version in (30, 50):
    hop.publish("weights", np.ones(1 << 20, np.uint8), version=version)
print(flush=True)
sys.stdin.read()
"""


def scraped(port: int) -> dict[str, float]:
    """What the agent at `port` exposes of ours."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    lines = re.findall(r"^(ray_hoplite_\w+)\{(.*)\} (\S+)$", text, re.M)
    assert all('node="' in labels and 'SessionName="' in labels for _, labels, _ in lines)
    return {name: float(value) for name, _, value in lines}


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
def test_prometheus_reads_every_metric_from_rays_agent() -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RAY_ADDRESS": "local"},
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline(), "it did not start"
        gauges = {metric.exposed_name for metric in METRICS if metric.kind == "gauge"}
        seen: dict[str, float] = {}

        def are_all_told() -> bool:
            nonlocal seen
            seen = scraped(port)  # one scrape may be between two values of one look at the node
            return gauges <= {*seen} and are_right(seen)

        # Ray's agent starts after the program, and the node is looked at every 5 s.
        assert eventually(are_all_told, within_s=60), seen
        program.communicate()
    assert {*seen} <= {metric.exposed_name for metric in METRICS}


def are_right(seen: dict[str, float]) -> bool:
    pinned, used = (seen[f"ray_hoplite_arena_bytes_{which}"] for which in ("pinned", "used"))
    return (
        seen["ray_hoplite_objects"] >= 3
        and seen["ray_hoplite_arena_bytes"] == 64 << 20
        and 3 << 20 <= pinned <= used
        and seen.get("ray_hoplite_turns_total", 0) > 0
        and seen["ray_hoplite_channel_version"] == 50
        and seen["ray_hoplite_channel_reader_version"] == 20
        and seen["ray_hoplite_channel_lag_versions"] == 2
        and seen["ray_hoplite_channel_lag_seconds"] > 0
    )


def test_the_dashboard_asks_for_every_metric_once() -> None:
    printed = hoplite_ray("dashboard")
    assert printed.status == 0
    told = json.loads(printed.out)
    assert told == dashboard()
    asked = [target["expr"] for panel in told["panels"] for target in panel["targets"]]
    names = [re.findall(r"ray_hoplite_\w+", query) for query in asked]
    assert names == [[metric.exposed_name] for metric in METRICS]
    assert [panel["title"] for panel in told["panels"]] == [*PANELS]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in told["panels"]}
    assert len(places) == len(PANELS)
