"""What `hoplite-ray status` says of the Ray nodes on which the nodes are."""

from __future__ import annotations

import json
from typing import Any

from hoplite_ray.cli import commands
from hoplite_ray.cli.cluster import survey
from hoplite_ray.cli.cluster.places import Cluster
from hoplite_ray.cli.cluster.survey import NodeReport, Survey
from hoplite_ray.control.view import View


def raylet(number: int, *, alive: bool = True) -> dict[str, Any]:
    """What Ray tells of a Ray node, whose node would have this number."""
    return {
        "ray_node_id": f"{number:056x}",
        "node_id": number,
        "address": f"10.0.0.{number}",
        "hostname": f"gpu-{number}",
        "alive": alive,
    }


def survey_of(*numbers: int, told: list[dict[str, Any]]) -> Survey:
    reports = [NodeReport(number, 1, f"10.0.0.{number}:1") for number in numbers]
    return Survey(View(), reports, survey._ray_nodes(told, reports))


CLUSTER = Cluster("Ray cluster", b"", ())


def test_each_node_has_its_ray_node_and_machine() -> None:
    seen = survey_of(2, 1, told=[raylet(1), raylet(2)])
    assert [report.ray_node_id for report in seen.nodes] == [f"{2:056x}", f"{1:056x}"]
    table = commands._status_text(CLUSTER, seen).splitlines()[-3:]
    assert [line.split() for line in table] == [
        ["NODE", "RAY", "NODE", "ADDRESS", "HOST", "ALIVE"],
        ["2", f"{2:056x}", "10.0.0.2", "gpu-2", "yes"],
        ["1", f"{1:056x}", "10.0.0.1", "gpu-1", "yes"],
    ]


def test_a_ray_node_without_a_node_is_last_and_a_dead_one_is_told_only_of_a_member() -> None:
    told = [raylet(4), raylet(3, alive=False), raylet(2, alive=False), raylet(1)]
    seen = survey_of(1, 2, told=told)
    rows = [(each.node_id, each.hostname, each.alive) for each in seen.ray_nodes]
    assert rows == [(1, "gpu-1", True), (2, "gpu-2", False), (None, "gpu-4", True)]
    told_json = json.loads(json.dumps(commands._status_json(CLUSTER, seen)))
    assert [each["node_id"] for each in told_json["ray_nodes"]] == ["1", "2", None]
    assert told_json["nodes"][1]["ray_node_id"] == f"{2:056x}"


def test_without_ray_there_is_no_such_table() -> None:
    seen = survey_of(1, told=[])
    assert seen.ray_nodes == [] and seen.nodes[0].ray_node_id is None
    assert "RAY NODE" not in commands._status_text(CLUSTER, seen)
