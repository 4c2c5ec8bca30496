"""`hoplite-ray top` over real nodes, one of them frozen so that its transfers last."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT
from typing import Any

import numpy as np
import pytest

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.client import ControlClient
from tests.process.command import at, hoplite_ray, stopped
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

_PATIENT = {"liveness_suspect_ms": 300, "liveness_dead_ms": 3_600_000}
_SIZE = 2 * MIB
_QUICK = ("--timeout-s", "4", "--interval-s", "0.1")
_PATIENTLY = ("--timeout-s", "12", "--interval-s", "0.1")  # it waits for a node that is frozen
_UNHURRIED = ("--timeout-s", "60", "--interval-s", "0.1")


def transfers(nodes: Nodes, rank: int) -> list[pb.Transfer]:
    """What comes in to one node, as soon as something does."""
    node = nodes.processes[rank]

    async def poll(calls: ControlClient) -> list[pb.Transfer]:
        while not (told := await calls.transfers(node.control, limit=100)):
            pass
        return told

    return nodes.call(rank, poll)


@pytest.fixture
def nodes(cluster: MakeNodes) -> Nodes:
    """Two nodes that take no silence for a death."""
    return cluster(2, arena_bytes=64 * MIB, options=_PATIENT)


@contextmanager
def stuck(nodes: Nodes) -> Iterator[list[Any]]:
    """Gets on node 1 of objects that node 0 has, which is frozen.

    Of sixteen objects some have their home on node 1, which names node 0 as the sender at once.
    """
    object_ids = [nodes.put(0, numbers(_SIZE, seed)) for seed in range(16)]
    with stopped(nodes.processes[0]):
        gets = [nodes.client(1)._client.get(object_id, True) for object_id in object_ids]
        yield gets  # and kept: a request without a holder is cancelled


def test_transfers_under_way_are_told_by_their_receiver(nodes: Nodes) -> None:
    first = nodes.processes[0]
    with stuck(nodes) as gets:
        told = transfers(nodes, 1)
        for each in told:
            assert (each.kind, each.sender, each.object_id) == (
                "copy",
                first.node_id,
                each.target_id,
            )
            assert each.landed_bytes <= each.size_bytes <= _SIZE
    for get in gets:
        assert get.wait(WAIT_S)

    async def ask(calls: ControlClient) -> list[pb.Transfer]:
        return await calls.transfers(nodes.processes[1].control, limit=100)

    assert nodes.call(1, ask) == []


def test_top_draws_what_is_under_way_though_a_node_is_frozen(nodes: Nodes) -> None:
    first, second = nodes.processes
    with stuck(nodes):
        transfers(nodes, 1)
        said = hoplite_ray("top", "--once", *_PATIENTLY, *at(second))
        told = hoplite_ray("top", "--json", *_PATIENTLY, *at(second))
    assert (said.status, told.status) == (1, 1)
    states = {node["node_id"]: node["state"] for node in told.told["nodes"]}
    assert states == {f"{first.node_id:x}": "silent", f"{second.node_id:x}": "serving"}
    rows = told.told["transfers"]
    assert {(row["sender"], row["receiver"]) for row in rows} == {
        (f"{first.node_id:x}", f"{second.node_id:x}")
    }
    assert {row["bytes_per_s"] for row in rows} == {0.0}
    lines = said.out.splitlines()
    under = next(i for i, line in enumerate(lines) if line.endswith("stripe 1"))
    assert lines[under + 1] == f"{first.node_id:x}"
    assert lines[under + 2].startswith(f"  └─ {second.node_id:x}")


def test_top_of_nodes_at_rest(nodes: Nodes) -> None:
    rate = None
    while rate is None:  # nodes on busy cores publish no counters between two looks
        said = hoplite_ray("top", *_UNHURRIED, *at(nodes.processes[0]))  # no terminal: once
        assert said.status == 0
        assert said.out.splitlines()[0].endswith("2 of 2 nodes answer, 0 transfers")
        rate = re.search(" (Ki)?B/s", said.out)


def test_top_shows_channels_and_the_readers_that_lag(nodes: Nodes) -> None:
    first, second = nodes.processes
    with nodes[1].watch("weights") as watch:
        nodes[0].publish("weights", np.ones(MIB, np.uint8), version=100, timeout_s=WAIT_S)
        watch.next(timeout_s=WAIT_S)
        nodes[0].publish("weights", np.ones(MIB, np.uint8), version=200, timeout_s=WAIT_S)
        nodes[0].publish("quiet\x1b[2J", np.ones(3), timeout_s=WAIT_S)
        said = hoplite_ray("top", "--once", *_UNHURRIED, *at(first))
        told = hoplite_ray("top", "--json", *_UNHURRIED, *at(second))
    weights, quiet = told.told["channels"]
    assert weights["name"] == "weights" and quiet["name"] == "quiet\x1b[2J"
    assert (weights["version"], weights["kept"], weights["lag_versions"]) == (200, 2, 1)
    assert weights["publisher"] == f"{first.node_id:x}" and 0 <= weights["age_s"] < 600
    (reader,) = weights["readers"]
    assert reader["lag_s"] > 0
    assert (reader["node_id"], reader["process"], reader["version"], reader["lag_versions"]) == (
        *(f"{second.node_id:x}", os.getpid()),
        *(100, 1),
    )
    assert "\x1b" not in said.out and "quiet?[2J" in said.out
    lines = [line.split() for line in said.out.splitlines()]
    shown_rows = [line for line in lines if "weights" in line]
    assert [line[1:3] for line in shown_rows] == [
        ["weights", "200"],
        [f"{second.node_id:x}", str(os.getpid())],
    ]


def test_top_in_a_terminal_goes_on_when_a_node_dies_until_it_is_interrupted(nodes: Nodes) -> None:
    first, second = nodes.processes
    leader, terminal = pty.openpty()
    command = [sys.executable, "-m", "hoplite_ray.cli", "top", *_QUICK, *at(first)]
    running = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE)
    os.close(terminal)
    try:
        shown(leader, b"2 of 2 nodes answer")
        second.kill()
        shown(leader, b"1 of ")
        running.send_signal(SIGINT)
        while True:  # what it still draws must be read
            try:
                os.read(leader, 65536)
            except OSError:  # it has hung up
                break
        _, errors = running.communicate()
        assert (running.returncode, errors) == (0, b"")
    finally:
        running.kill()
        running.wait()
        os.close(leader)


def shown(leader: int, text: bytes) -> None:
    """Read what is drawn until `text` is; the test's limit ends it else."""
    seen = b""
    while text not in seen:
        seen += os.read(leader, 65536)


def test_top_says_which_package_the_live_picture_lacks(nodes: Nodes, tmp_path: Any) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    leader, terminal = pty.openpty()
    command = [sys.executable, "-m", "hoplite_ray.cli", "top", *_QUICK, *at(nodes.processes[0])]
    done = subprocess.run(
        command,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    os.close(terminal)
    os.close(leader)
    assert done.returncode == 1
    assert "pip install 'hoplite_ray[top]'" in done.stderr
