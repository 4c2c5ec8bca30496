"""`hoplite-ray status` and `doctor` over real nodes: alive, killed, frozen, or not there.

That the command ends in time, whatever is frozen, is what the limit of each test is for.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoplite_ray.launch import NodeProcess
from tests.process.command import FOR_RAY, UNHURRIED, Ran, at, hoplite_ray, stopped
from tests.process.nodes import MIB, MakeNodes, Nodes, numbers

NO_RAY = {"RAY_ADDRESS": "127.0.0.1:1"}


@pytest.fixture
def kept(cluster: MakeNodes, tmp_path: Path) -> Nodes:
    """Three nodes whose directories outlive them."""
    patient = {"liveness_dead_ms": 60_000, "liveness_cut_ms": 60_000}  # with a node that is stopped
    nodes = cluster(0, arena_bytes=16 * MIB, options=patient)
    for rank in range(3):
        nodes.add(directory=tmp_path / str(rank))
    nodes.view(0, size=3)
    return nodes


@pytest.fixture(scope="module")
def lasting() -> Iterator[Nodes]:
    """Two nodes, shared by tests that only look at them."""
    nodes = Nodes(2, arena_bytes=16 * MIB)
    nodes.view(0, size=2)
    yield nodes
    nodes.end()


def states(ran: Ran) -> dict[int, str]:
    """Each node's state, as status --json prints it."""
    return {int(node["node_id"], 16): node["state"] for node in ran.told["nodes"]}


def failures_of(ran: Ran) -> list[str]:
    """The doctor's failures that are not this machine's own, which may be short of anything."""
    _, _, of_cluster = ran.out.partition("  cluster: ")
    return [line for line in of_cluster.splitlines() if line.startswith("fail ")]


def test_status_of_three_nodes_one_killed_and_one_frozen(kept: Nodes) -> None:
    first, second, third = kept.processes
    object_id = kept.put(0, numbers(3 * MIB))
    whole = hoplite_ray("status", "--json", *UNHURRIED, *at(first))
    assert whole.status == 0
    assert states(whole) == dict.fromkeys((n.node_id for n in kept.processes), "serving")
    told = whole.told["nodes"][0]
    assert (told["arena_bytes"], told["arena_bytes_used"], told["objects"]) == (
        16 * MIB,
        3 * MIB,
        1,
    )
    assert (told["directory"], told["pid"]) == (str(first.directory), first.process.pid)
    assert kept.get(0, object_id).nbytes == 3 * MIB

    kept.kill(2)
    kept.view(0, size=2)
    with stopped(second):
        after = hoplite_ray("status", "--json", *UNHURRIED, *at(first, second, third))
    assert after.status == 1
    assert states(after) == {
        first.node_id: "serving",
        second.node_id: "silent",
        third.node_id: "dead",
    }
    why = {node["state"]: node["why"] for node in after.told["nodes"]}
    assert why["dead"] == f"its process {third.process.pid} has ended"


def test_status_for_people(lasting: Nodes) -> None:
    first, second = lasting.processes
    said = hoplite_ray("status", *UNHURRIED, *at(first)).out.splitlines()
    assert said[0].endswith("view 2, 2 of 2 nodes answer")
    assert said[1].split()[:5] == ["NODE", "LIFE", "CONTROL", "STATE", "ARENA"]
    ids = [f"{n.node_id:x}" for n in (first, second)]
    assert [line.split()[0] for line in said[2:]] == [*ids, "NODE", *ids]
    assert "16.0 MiB" in said[2]
    assert said[4].split()[:2] == ["NODE", "MEMORY"]


def test_status_tells_what_a_node_needs_beside_its_arena(lasting: Nodes) -> None:
    first, _ = lasting.processes

    def told() -> dict[str, int]:
        [node] = [
            node
            for node in hoplite_ray("status", "--json", *UNHURRIED, *at(first)).told["nodes"]
            if node["pid"] == first.process.pid
        ]
        return {name: value for name, value in node.items() if isinstance(value, int)}

    before = told()
    object_id = lasting.put(0, numbers(12 * MIB))
    full = told()
    assert full["arena_bytes_used"] - before["arena_bytes_used"] == 12 * MIB
    assert 4 * MIB < before["memory_bytes"]
    assert full["memory_bytes"] - before["memory_bytes"] < 6 * MIB
    lasting[0].delete(object_id, timeout_s=30.0)
    after = told()
    assert after["deletions_remembered"] > before["deletions_remembered"]
    assert {"parked_bytes", "link_layout_bytes", "link_bytes_queued"} <= after.keys()


def test_a_node_is_found_by_its_control_address(lasting: Nodes, tmp_path: Path) -> None:
    node = lasting.processes[1]
    secret = str(node.directory / "secret")
    here = ("--control", node.control, *UNHURRIED)
    assert hoplite_ray("status", *here, "--secret-file", secret).status == 0
    wrong = tmp_path / "wrong"
    wrong.write_text("f" * 32)
    refused = hoplite_ray("status", *here, "--secret-file", str(wrong))
    assert refused.status == 1
    assert "does not know this cluster's secret" in refused.out
    nobody = hoplite_ray("status", "--control", "127.0.0.1:1", "--secret-file", secret)
    assert nobody.status == 1
    assert "Connection refused" in nobody.out


MISTAKES = {
    "no node there": (["--directory", "/usr"], "no node has started in /usr", 1),
    "no directory": (["--directory", "/nowhere"], "no node has started in /nowhere", 1),
    "no address": (["--control", "x", "--secret-file", "y"], "'x' is not ADDRESS:PORT", 1),
    "no secret": (["--control", "127.0.0.1:1"], "--control needs --secret-file", 1),
    "secret gone": (
        ["--control", "127.0.0.1:1", "--secret-file", "/nowhere"],
        "the secret in /nowhere can't be read: No such file or directory",
        1,
    ),
    "only a secret": (["--secret-file", "/nowhere"], "--secret-file goes with --control", 2),
    "two places": (["--control", "a:1", "--address", "b"], "not allowed with argument", 2),
    "no time": (["--timeout-s", "0"], "0 is not above 0 and below 86400 s", 2),
    "Ray not there": (
        ["--address", "127.0.0.1:1", *FOR_RAY],
        "no Ray cluster was found at 127.0.0.1:1",
        1,
    ),
    "no Ray address": (["--address", "what", *FOR_RAY], "Invalid address format: what", 1),
}


@pytest.mark.parametrize(("arguments", "words", "status"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_in_the_last_line(arguments: list[str], words: str, status: int) -> None:
    ran = hoplite_ray("status", *arguments)
    assert ran.status == status
    assert words in ran.last_words
    assert "Traceback" not in ran.err


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "node.json").mkdir()  # unreadable even for root
    ran = hoplite_ray("status", "--directory", str(tmp_path))
    assert (ran.status, "Traceback" in ran.err) == (1, False)
    assert f"{tmp_path} can't be read (Is a directory)" in ran.last_words


def test_the_doctor_finds_healthy_nodes_well(lasting: Nodes) -> None:
    ran = hoplite_ray("doctor", *UNHURRIED, *at(*lasting.processes))
    assert failures_of(ran) == []
    assert ran.status == ("\nfail " in ran.out)
    assert "ports: 2 of 2 ways between the nodes are open" in ran.out
    assert "view: all 2 nodes have view 2" in ran.out
    for node in lasting.processes:
        assert f"ok    directory {node.directory}: ours alone" in ran.out


def test_the_doctor_needs_no_cluster() -> None:
    ran = hoplite_ray("doctor", "--json", *FOR_RAY, **NO_RAY)
    found = {each["about"]: each for each in ran.told["findings"]}
    assert found["cluster"]["level"] == "warn"
    assert "no Ray cluster was found at 127.0.0.1:1" in found["cluster"]["cause"]
    assert found["native module"]["level"] == "ok"
    assert found["shared memory"]["cause"] == "memfd_create works"
    assert ran.status == (0 if ran.told["healthy"] else 1)
    named = hoplite_ray("doctor", "--json", *FOR_RAY, "--address", "127.0.0.1:1")
    assert (named.status, named.told["healthy"]) == (1, False)


def test_a_ray_that_takes_connections_and_says_nothing_is_a_failure() -> None:
    with socket.create_server(("", 0)) as silent:  # Ray asks at another address of ours
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ran = hoplite_ray("doctor", "--json", RAY_ADDRESS=address)
    found = {each["about"]: each for each in ran.told["findings"]}
    assert (ran.status, found["cluster"]["level"]) == (1, "fail")
    assert f"Ray at {address} did not answer within 5 s" in found["cluster"]["cause"]


def test_the_doctor_names_a_frozen_and_a_dead_node(kept: Nodes) -> None:
    first, second, third = kept.processes
    kept.kill(2)
    kept.view(0, size=2)
    with stopped(second):
        ran = hoplite_ray("doctor", *UNHURRIED, *at(first, second, third))
    assert ran.status == 1
    failures = failures_of(ran)
    frozen = f"its process {second.process.pid} is stopped, by SIGSTOP or a debugger"
    assert any(frozen in line and f"kill -CONT {second.process.pid}" in line for line in failures)
    assert any(f"dead: its process {third.process.pid} has ended" in line for line in failures)
    assert len(failures) == 2  # no line for what only follows from these two


def test_the_doctor_names_what_differs_and_who_may_enter(
    cluster: MakeNodes, tmp_path: Path
) -> None:
    nodes = cluster(0, arena_bytes=16 * MIB)
    nodes.add(directory=tmp_path / "0", options={"credit_bytes": 1 << 20})
    nodes.add(directory=tmp_path / "1", options={"credit_bytes": 2 << 20})
    os.chmod(tmp_path / "1", 0o755)
    os.chmod(tmp_path / "1/secret", 0o644)
    ran = hoplite_ray("doctor", *UNHURRIED, *at(*nodes.processes))
    assert ran.status == 1
    failures = "\n".join(failures_of(ran))
    first, second = (f"{node.node_id:x}" for node in nodes.processes)
    assert f"credit_bytes=1048576 on {first}; credit_bytes=2097152 on {second}" in failures
    assert f"chmod 700 {tmp_path / '1'}" in failures
    assert f"chmod 600 {tmp_path / '1/secret'}" in failures


def test_a_probe_tells_which_member_is_not_reached(kept: Nodes) -> None:
    first, second, third = kept.processes

    def failures(node: NodeProcess) -> dict[int, str]:
        told = kept.call(0, lambda calls: calls.probe(node.control, timeout_s=5.0))
        return {each.node_id: each.control_failure for each in told}

    assert failures(first) == {second.node_id: "", third.node_id: ""}
    with stopped(third):
        seen = failures(first)
    assert seen[second.node_id] == ""
    assert seen[third.node_id] == f"{third.control} does not say that it is healthy within 5 s"
