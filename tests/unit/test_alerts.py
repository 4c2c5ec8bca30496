"""The alert rules: Prometheus can read them, their metrics exist, and the runbook explains each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from hoplite_ray.metrics import alerts, dashboards
from hoplite_ray.metrics.alerts import RULE_SETS, Alert
from hoplite_ray.serve import metrics as serving
from tests.process.command import hoplite_ray

ROOT = Path(__file__).parents[2]
METRICS = {each.exposed_name: each for each in (*dashboards.METRICS, *serving.METRICS.values())}
OF_RAY = {"SessionName"}  # labels that Ray gives every metric; tests/ray/test_metrics.py sees them
ALERTS = [alert for group in RULE_SETS.values() for alert in group]
EACH = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def labels_in(alert: Alert) -> set[str]:
    """The labels by which the rule selects or groups, and those that its summary shows."""
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", alert.expression)
    selected = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", alert.expression)
    shown = re.findall(r"\$labels\.(\w+)", alert.summary)
    return {*(name.strip() for each in grouped for name in each.split(",")), *selected, *shown}


@EACH
def test_a_rule_asks_for_metrics_and_labels_that_are_there(alert: Alert) -> None:
    asked = set(re.findall(r"ray_hoplite_\w+", alert.expression))
    assert asked and asked <= METRICS.keys()
    for name in asked:
        assert labels_in(alert) <= {*METRICS[name].tags, *OF_RAY}, name


@EACH
def test_a_rule_treats_a_counter_as_one(alert: Alert) -> None:
    for name, over in re.findall(r"(ray_hoplite_\w+)(?:{[^}]*})?(\[\d+m\])?", alert.expression):
        is_bare = not over and not re.search(rf"{name} (unless|offset)", alert.expression)
        assert is_bare == (METRICS[name].kind == "gauge"), name
    assert alert.expression.count("(") == alert.expression.count(")")


@EACH
def test_the_runbook_has_the_heading_of_a_rule(alert: Alert) -> None:
    page, _, anchor = alert.runbook.partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.M)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_the_command_prints_every_rule_as_prometheus_reads_it() -> None:
    printed = hoplite_ray("alerts")
    assert printed.status == 0 and printed.out.strip() == alerts.rules()
    told = yaml.safe_load(printed.out)
    assert [*told] == ["groups"]
    assert {each["name"]: [rule["alert"] for rule in each["rules"]] for each in told["groups"]} == {
        name: [alert.name for alert in group] for name, group in RULE_SETS.items()
    }
    rules = [rule for each in told["groups"] for rule in each["rules"]]
    for rule, alert in zip(rules, ALERTS, strict=True):
        assert rule == {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "runbook": alert.runbook},
        }
        assert re.fullmatch(r"\d+m", alert.lasts)


def test_the_page_lists_every_rule() -> None:
    page = (ROOT / "docs/operate/alerts.md").read_text()
    row = r"^\| (Hoplite\w+) \| `(.*?)` \| (\w+) \| (\w+) \| \[.*\]\(runbook\.md#([\w-]+)\) \|$"
    listed = [
        (name, each.replace("\\|", "|"), *rest) for name, each, *rest in re.findall(row, page, re.M)
    ]
    assert listed == [
        (alert.name, alert.expression, alert.lasts, alert.severity, alert.heading)
        for alert in ALERTS
    ]
    assert f"SUCCESS: {len(ALERTS)} rules found" in page
