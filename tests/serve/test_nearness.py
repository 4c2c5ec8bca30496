"""Queries go to the node that has their Arrays, so no byte of these crosses the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.serve import pipeline, stage
from tests.ray.raycluster import eventually
from tests.ray.rounds import stats_at
from tests.serve.applications import FLOATS, LIGHT, Makes, Sums, node_directory
from tests.serve.conftest import Application, Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # one more Ray node

ON_EACH_NODE: dict[str, Any] = {**LIGHT, "num_replicas": 2, "max_replicas_per_node": 1}
QUERIES = 40


@pytest.fixture(scope="module")
def directories(node: Node) -> Iterator[set[str]]:
    """A second Ray node, and the directories of the nodes on both."""
    added = node.cluster.add_node("n1")
    find = ray.remote(node_directory)
    yield {*ray.get([find.options(**node.cluster.on(each)).remote() for each in range(2)])}
    node.cluster.cluster.remove_node(added)
    assert eventually(lambda: sum(each["Alive"] for each in ray.nodes()) == 1, within_s=60)


@pytest.fixture(scope="module")
def application(directories: set[str]) -> Iterator[Application]:
    """A stage that makes Arrays, and one that reads them, each with a replica on both nodes."""
    assert len(directories) == 2
    stages = {
        "makes": stage(**ON_EACH_NODE)(Makes),
        "sums": stage(near="data", max_batch=1, **ON_EACH_NODE)(Sums).after("makes"),
    }
    started = Application("near", pipeline(stages, replicas=1))
    yield started
    started.delete()


@pytest.fixture(scope="module")
def reader(directories: set[str]) -> Iterator[Application]:
    """The stage that reads, alone: its sender is the ingress."""
    reads = stage(near="data", max_batch=2, **ON_EACH_NODE)(Sums)
    started = Application("reader", pipeline(reads=reads, replicas=1))
    yield started
    started.delete()


def count_received(directories: set[str]) -> int:
    """Count the blocks that have come to any node from another one."""
    return sum(stats_at(each).blocks_received for each in directories)


def ask_in_turn(application: Application, queries: list[Any]) -> list[Any]:
    return [application.answer(query) for query in queries]


def test_with_holders_free_no_byte_of_an_array_crosses_the_network(
    application: Application, directories: set[str]
) -> None:
    def are_at_home() -> bool:  # once all senders have all edges
        answers = ask_in_turn(application, [*range(8)])
        return all(each["made"] == each["read"] for each in answers) and (
            {each["read"] for each in answers} == directories
        )

    assert eventually(are_at_home, within_s=60)
    before = count_received(directories)
    answers = ask_in_turn(application, [*range(QUERIES)])
    assert [each["array"] for each in answers] == [FLOATS * n for n in range(QUERIES)]
    assert {each["made"] for each in answers} == directories
    assert all(each["made"] == each["read"] for each in answers)
    assert count_received(directories) == before


def test_a_full_queue_beats_nearness_and_the_copy_counts_from_then_on(
    reader: Application, directories: set[str], tmp_path: Path
) -> None:
    """The replica here is full with four calls, so of five queries one goes elsewhere."""
    here = node_directory()

    [away] = directories - {here}
    none = [{"array": np.ones(1)}] * 8  # of these the load decides
    assert eventually(
        lambda: {each["read"] for each in ask_in_turn(reader, none)} == directories, within_s=60
    )
    array, gate = hop.array(np.ones(FLOATS)), tmp_path / "gate"
    before = count_received(directories)
    asked = [reader.ask({"array": array, "until": str(gate)}) for _ in range(5)]
    assert eventually(lambda: len([*tmp_path.iterdir()]) == 2, within_s=60), "two have begun"
    gate.touch()
    assert Counter(each.result(timeout_s=60)["read"] for each in asked) == {here: 4, away: 1}
    after = count_received(directories)
    assert after > before, "the other node has fetched it"
    found = ask_in_turn(reader, [{"array": array}] * QUERIES)
    assert {each["read"] for each in found} == directories, "both have it, so the load decides"
    assert count_received(directories) == after
