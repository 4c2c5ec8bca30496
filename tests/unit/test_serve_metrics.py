"""The dashboard and the page about stages name every metric of their table."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hoplite_ray.metrics.dashboards import dashboard
from hoplite_ray.serve.metrics import METRICS, PANELS
from tests.process.command import hoplite_ray


def test_every_metric_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/serving.md").read_text()
    for metric in METRICS.values():
        assert f"`{metric.exposed_name.removesuffix('_bucket')}` {metric.meaning}" in page


def test_the_dashboard_asks_for_every_metric() -> None:
    printed = hoplite_ray("dashboard", "--serving")
    assert printed.status == 0
    told = json.loads(printed.out)
    assert told == dashboard(PANELS, "hoplite_ray serving")
    asked = [target["expr"] for panel in told["panels"] for target in panel["targets"]]
    names = {name for query in asked for name in re.findall(r"ray_hoplite_\w+", query)}
    assert names == {metric.exposed_name for metric in METRICS.values()}
    tails = [query for query in asked if query.startswith("histogram_quantile(0.99, sum by (le, ")]
    assert len(tails) == sum(metric.kind == "histogram" for metric in METRICS.values())
