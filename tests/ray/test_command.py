"""`hoplite-ray` finds the nodes of a Ray cluster by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import ARENA_BYTES, LARGE, RayCluster

LIMIT_S = "60"  # of a machine on which other tests run, too


def command(cluster: RayCluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command for this cluster; returns its status and what it told."""
    done = subprocess.run(
        [sys.executable, "-m", "hoplite_ray.cli", *arguments, "--json", "--timeout-s", LIMIT_S],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RAY_ADDRESS": cluster.cluster.address},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def everywhere(cluster: RayCluster) -> hop.Array:
    """An array that each Ray node has made its own node for."""

    @ray.remote
    def attach(array: hop.Array) -> float:
        return float(np.asarray(array)[0])

    ref = hop.put(np.ones(LARGE, np.float32))
    assert ray.get([attach.options(**cluster.on(node)).remote(ref) for node in range(3)]) == [1] * 3
    return ref


def test_status_finds_the_nodes_of_the_cluster(cluster: RayCluster, everywhere: object) -> None:
    status, told = command(cluster, "status")
    assert (status, told["healthy"]) == (0, True)
    nodes = told["nodes"]
    assert len(nodes) == 3
    assert {node["arena_bytes"] for node in nodes} == {ARENA_BYTES}
    assert {node["state"] for node in nodes} == {"serving"}
    for node in nodes:
        directory = Path(node["directory"])
        assert json.loads((directory / "node.json").read_text())["pid"] == node["pid"]
    assert all(node["arena_bytes_used"] > 0 for node in nodes)
    ids = {each["ray_node_id"]: each["node_id"] for each in told["ray_nodes"] if each["node_id"]}
    assert ids == {node["ray_node_id"]: node["node_id"] for node in nodes}
    assert {each["NodeID"] for each in ray.nodes() if each["Alive"]} == {
        each["ray_node_id"] for each in told["ray_nodes"] if each["alive"]
    }
    assert {ray_node_id[-16:] for ray_node_id in ids} == {
        Path(node["directory"]).name.rpartition("-")[2] for node in nodes
    }


def test_the_doctor_finds_no_fault_in_a_healthy_cluster(
    cluster: RayCluster, everywhere: object
) -> None:
    status, told = command(cluster, "doctor")
    assert status == (not told["healthy"])
    abouts = [each["about"] for each in told["findings"]]
    of_cluster = told["findings"][abouts.index("cluster") :]  # the machine may be short of anything
    assert [each for each in of_cluster if each["level"] == "fail"] == []
    found = {each["about"]: each["cause"] for each in told["findings"]}
    assert cluster.cluster.address in found["cluster"]
    assert found["ports"].endswith("ways between the nodes are open")
    assert found["arenas"].startswith("3 of 288.0 MiB in all")
    assert sum(about.startswith("directory") for about in found) >= 3


def test_a_cluster_that_is_not_there_is_said_in_time() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hoplite_ray.cli", "status", "--address", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no Ray cluster was found at 127.0.0.1:1" in done.stderr


def test_options_are_those_of_the_first_job_and_say_so(
    cluster: RayCluster, everywhere: object
) -> None:
    status, told = command(cluster, "options")
    assert status == 0
    assert told["job"].startswith("01000000 (")
    found = {each["name"]: (each["value"], each["origin"]) for each in told["options"]}
    assert found["arena_bytes"] == (ARENA_BYTES, "flag")
    assert found["when_full"] == (None, "default")
