"""What Prometheus reads from Ray's metrics agent, and the dashboard that asks for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hoplite_ray.metrics import METRICS, PANELS, dashboard
from tests.process.command import hoplite_ray
from tests.ray.raycluster import eventually, free_port

OBJECTS = "ray_hoplite_objects"
PROGRAM = """
import sys
import numpy as np, ray, hoplite_ray as hop
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         _metrics_export_port=int(sys.argv[1]), _system_config={"metrics_report_interval_ms": 500},
         runtime_env={"hoplite": {"arena_bytes": 64 << 20}})
kept = [hop.put(np.ones(1 << 20, np.uint8)) for _ in range(3)]
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
    assert all('node="' in labels for _, labels, _ in lines)
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
        gauges = {metric.exposed for metric in METRICS if metric.kind == "gauge"}
        assert eventually(lambda: gauges <= {*(told := scraped(port))} and told[OBJECTS] >= 3)
        seen = scraped(port)
        program.communicate()
    assert seen["ray_hoplite_arena_bytes"] == 64 << 20
    assert 3 << 20 <= seen["ray_hoplite_arena_bytes_pinned"] <= seen["ray_hoplite_arena_bytes_used"]
    assert seen["ray_hoplite_turns_total"] > 0
    assert {*seen} <= {metric.exposed for metric in METRICS}


def test_every_metric_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    for metric in METRICS:
        assert f"`{metric.exposed}` {metric.meaning}" in page


def test_the_dashboard_asks_for_every_metric_once() -> None:
    printed = hoplite_ray("dashboard")
    assert printed.status == 0
    told = json.loads(printed.out)
    assert told == dashboard()
    asked = [target["expr"] for panel in told["panels"] for target in panel["targets"]]
    names = [re.findall(r"ray_hoplite_\w+", query) for query in asked]
    assert names == [[metric.exposed] for metric in METRICS]
    assert [panel["title"] for panel in told["panels"]] == [*PANELS]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in told["panels"]}
    assert len(places) == len(PANELS)
