"""`hoplite-ray trace`: an object's life over real nodes, in order of time."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoplite_ray.cli.tracing.trace import _KINDS
from hoplite_ray.store import new_id
from tests.process.command import Ran, at, hoplite_ray
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nodes(cluster: MakeNodes) -> Nodes:
    """Three nodes that know each other."""
    made = cluster(3, arena_bytes=32 * MIB)
    made.view(0, size=3)
    return made


def trace(nodes: Nodes, digits: str, *more: str) -> Ran:
    """Run the command; a node may take long to answer, on busy cores."""
    where = ("--directory", directory(nodes), "--timeout-s", "120")
    return hoplite_ray("trace", digits, *where, *more)


def traced(nodes: Nodes, digits: str) -> dict[str, Any]:
    """The object that trace --json prints."""
    ran = trace(nodes, digits, "--json")
    assert ran.status == 0, ran.err
    return ran.told


def directory(nodes: Nodes) -> str:
    """The directory of a node that lives."""
    return str(nodes.processes[0].directory)


def name(nodes: Nodes, rank: int) -> str:
    """The node as the command names it."""
    return f"{nodes.processes[rank].node_id:x}"


def moments(told: dict[str, Any], node: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in told["moments"] if (each["node_id"], each["kind"]) == (node, kind)]


def test_from_put_to_get_to_deletion(nodes: Nodes) -> None:
    object_id = nodes.put(0, numbers(3 * MIB))
    for rank in (1, 2):
        assert nodes.get(rank, object_id).nbytes == 3 * MIB
    nodes[1].delete(object_id)
    told = traced(nodes, object_id.hex()[:20])
    assert told["object_id"] == object_id.hex()
    times = [each["at_ms"] for each in told["moments"]]
    assert times == sorted(times)
    assert min(each["since_ms"] for each in told["moments"]) == 0

    [sealed] = moments(told, name(nodes, 0), "sealed")
    assert (sealed["process"], sealed["size_bytes"]) == (os.getpid(), 3 * MIB)
    for rank in (1, 2):
        received = moments(told, name(nodes, rank), "received")
        assert sum(each["size_bytes"] for each in received) == 3 * MIB
        [got] = moments(told, name(nodes, rank), "got")
        assert (got["process"], got["size_bytes"]) == (os.getpid(), 3 * MIB)
        slack_ms = 2 * max(told["clock_error_ms"].values())
        assert sealed["since_ms"] - slack_ms < got["since_ms"] < got["at_ms"]
        for one in received:
            serving = moments(told, one["peer"], "serving")
            assert any(each["peer"] == name(nodes, rank) for each in serving)
    [deleted] = [each for each in told["moments"] if each["kind"] == "delete" and each["process"]]
    assert deleted["node_id"] == name(nodes, 1)


def test_a_small_object_is_told_of_too(nodes: Nodes) -> None:
    object_id = nodes.put(0, numbers(100))
    for rank in range(3):
        nodes.get(rank, object_id)
    told = traced(nodes, object_id.hex())
    assert [each["size_bytes"] for each in moments(told, name(nodes, 0), "sealed")] == [100]
    for rank in range(3):
        assert len(moments(told, name(nodes, rank), "got")) == 1


def test_who_waits_and_who_died(nodes: Nodes) -> None:
    object_id = nodes.put(2, numbers(MIB))
    assert nodes.get(0, object_id).nbytes == MIB
    dead = name(nodes, 2)
    nodes.kill(2)
    nodes.view(0, size=2)
    deaths = [each for each in traced(nodes, object_id.hex())["moments"] if each["kind"] == "dead"]
    assert deaths
    assert {each["peer"] for each in deaths} == {dead}

    never = new_id()
    waiting = nodes[0].begin_get(never)
    assert not waiting.wait(0)
    said = trace(nodes, never.hex())
    assert f"asked by process {os.getpid()}, waits since" in said.out
    waiting.cancel()


def test_what_went_to_the_disk_and_came_back(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=16 * MIB, options={"when_full": "spill"})
    object_ids = [nodes.put(0, numbers(4 * MIB, seed)) for seed in range(8)]
    nodes.wait_for(0, lambda stats: stats.spill_bytes >= 4 * 4 * MIB)
    first = object_ids[0]
    assert nodes.get(1, first).nbytes == 4 * MIB
    told = traced(nodes, first.hex())
    disk = ("spilling", "reading", "spilled")
    moved = [each for each in told["moments"] if each["kind"] in disk]
    assert {each["node_id"] for each in moved} == {name(nodes, 0)}
    assert {(each["size_bytes"], each["error"]) for each in moved} == {(4 * MIB, "")}
    kinds = [each["kind"] for each in moved]
    assert kinds[:2] == ["spilling", "spilled"]
    assert kinds[-2:] == ["reading", "spilled"]
    assert moved[1]["since_ms"] == moved[0]["at_ms"] < moved[1]["at_ms"]
    serving, *_ = moments(told, name(nodes, 0), "serving")
    assert moved[1]["at_ms"] < serving["at_ms"]
    said = trace(nodes, first.hex()).out
    for words in ("begins to write 4.0 MiB to its", "begins to read 4.0 MiB back from its"):
        assert f"{words} disk" in said
    assert re.search(r"disk done: 4\.0 MiB in \S+ ms\n", said)


@pytest.mark.parametrize("size_bytes", [40, 4 * MIB])
def test_a_reduce_from_its_asking_to_its_commit(nodes: Nodes, size_bytes: int) -> None:
    sources = [nodes.put(rank, np.ones(size_bytes // 4, np.float32)) for rank in range(3)]
    target = new_id()
    nodes[2].reduce(target, sources, timeout_s=WAIT_S)
    assert nodes.get(1, target)[0] == 3
    told = traced(nodes, target.hex())
    [asked] = moments(told, name(nodes, 2), "reduce")
    [ended] = [each for each in moments(told, name(nodes, 2), "committed") if each["process"]]
    assert asked["process"] == ended["process"] == os.getpid()
    # A turn of the reactor has one instant, and what is all there is folded in the same turn.
    assert asked["at_ms"] <= ended["at_ms"]
    assert told["moments"].index(asked) < told["moments"].index(ended)
    [got] = moments(told, name(nodes, 1), "got")
    assert got["size_bytes"] == size_bytes
    folding = [each for each in told["moments"] if each["kind"] == "folding"]
    for each in folding:
        assert moments(told, each["node_id"], "committed"), "who folds hears that it is final"
    said = trace(nodes, target.hex()).out
    assert f"process {os.getpid()} wants it made out of others" in said
    assert f"its sources are final, process {os.getpid()} is told" in said
    if size_bytes > MIB:  # the caller's node folds a small one
        planners = {each["peer"] for each in moments(told, name(nodes, 2), "committed")}
        # A planner that folds all of it tells no node to, and has no such moment.
        assert {each["node_id"] for each in folding} | planners - {None, name(nodes, 2)}
        assert not folding or re.search(r"folds stripes of it, planned by [0-9a-f]+\n", said)


def test_whose_owner_died_and_who_keeps_it_then(nodes: Nodes) -> None:
    orphan = nodes.put(0, numbers(MIB))
    nodes.client(1).begin_orphan(orphan).result(WAIT_S)
    nodes.wait_for(0, lambda stats: stats.arena_bytes_orphaned >= MIB)
    told = traced(nodes, orphan.hex())
    # The order in which the nodes hear it is within the error of their clocks.
    [said] = [each for each in told["moments"] if each["kind"] == "orphaned" and each["process"]]
    assert (said["node_id"], said["process"]) == (name(nodes, 1), os.getpid())
    page = trace(nodes, orphan.hex()).out
    assert f"hears from process {os.getpid()}: its owner has died" in page

    # An adopter that is the object's home tells itself nothing: the node that drains must be it.
    entries = nodes.stats(0).directory_entries
    kept: list[bytes] = []
    while nodes.stats(0).directory_entries <= entries:
        kept.append(nodes.put(0, numbers(MIB // 4, len(kept))))
    drained = hoplite_ray("drain", name(nodes, 0), *at(nodes.processes[1]))
    assert drained.status == 0, drained
    asked = next(filter(None, (adoptions(nodes, object_id) for object_id in kept)))
    for each in asked:
        assert each["node_id"] != name(nodes, 0), "which leaves"
        assert each["peer"] != each["node_id"]


def adoptions(nodes: Nodes, object_id: bytes) -> list[dict[str, Any]]:
    """The nodes that were asked to keep it, and have it."""
    told = traced(nodes, object_id.hex())
    asked = [each for each in told["moments"] if each["kind"] == "adopted"]
    for each in asked:
        received = moments(told, each["node_id"], "received")
        assert sum(one["size_bytes"] for one in received) == MIB // 4
    return asked


def test_for_people(nodes: Nodes) -> None:
    object_id = nodes.put(0, numbers(3 * MIB))
    nodes.get(1, object_id)
    ran = trace(nodes, object_id.hex())
    assert ran.status == 0, ran.err
    assert f"put by process {os.getpid()}: 3.0 MiB" in ran.out
    assert re.search(r"received \S+ MiB of (it|stripe \d/\d) from", ran.out)
    assert "clocks of the nodes are compared to ±" in ran.out
    lines = [line for line in ran.out.splitlines() if line.endswith("|")]
    assert any("P" in line for line in lines)
    assert any("G" in line for line in lines)


def test_mistakes_say_what_to_do(nodes: Nodes) -> None:
    unknown = trace(nodes, "ab" * 28)
    assert unknown.status == 1
    assert "none of those that run has ever seen it" in unknown.err
    assert trace(nodes, "what").status == 2
    first, second = (bytes([0xEE, number]) + new_id()[2:] for number in (1, 2))
    for object_id in (first, second):
        nodes[0].put(object_id, numbers(10))
    several = trace(nodes, "ee")
    assert several.status == 1
    assert f"2 objects begin with ee: {first.hex()}, {second.hex()}; give more" in several.err


@pytest.mark.parametrize(
    ("kept", "text"), [(0, "moments_max above 0"), (2, "it was never there, or is forgotten")]
)
def test_what_is_not_kept_is_not_told(cluster: MakeNodes, kept: int, text: str) -> None:
    nodes = cluster(1, arena_bytes=32 * MIB, options={"moments_max": kept})
    first = nodes.put(0, numbers(10))
    for _ in range(3):
        nodes.put(0, numbers(10))
    ran = trace(nodes, first.hex())
    assert ran.status == 1
    assert text in ran.err


def test_every_kind_of_moment_has_words() -> None:
    words = (ROOT / "native/bindings/rows.h").read_text().partition("kMomentWords = {")[2]
    assert re.findall(r'"([a-z ]+)"', words.partition("};")[0]) == [
        kind for kind in _KINDS if kind != "arriving"
    ]
