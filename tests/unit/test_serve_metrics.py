"""The dashboard and the page about stages name every metric of their table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ray.metrics.dashboards import dashboard
from hoplite_ray.serve import metrics
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


def test_a_batch_is_told_by_its_slowest_query_and_by_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []

    def make_recorder(name: str, limits_ms: tuple[float, ...] = ()) -> Any:
        assert limits_ms == ((250.0,) if name == "serve_spent_ms" else ())

        def record(value: float, tags: dict[str, str]) -> None:
            told.append((name, value, tags))

        return SimpleNamespace(inc=record, observe=record)

    monkeypatch.setattr(metrics, "_metric", make_recorder)
    metrics.observe_spent([0.1, 0.3, 0.25], 0.25)
    metrics.observe_spent([0.5], 0.25)
    name = "serve_budget_queries"
    assert told == [
        (name, 2, {"budget": "kept"}),
        (name, 1, {"budget": "exceeded"}),
        ("serve_spent_ms", 300.0, {}),
        (name, 1, {"budget": "exceeded"}),
        ("serve_spent_ms", 500.0, {}),
    ]
