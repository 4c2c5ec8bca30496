"""`nodes = cluster(3)`, and three nodes that the tests of a module share; members of worlds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.nodes import MakeNodes, Nodes
from tests.process.world_crew import Crew, Member, crews


@pytest.fixture
def cluster() -> Iterator[MakeNodes]:
    """`nodes = cluster(3)`: as many nodes; keywords as for NodeProcess.start."""
    made: list[Nodes] = []

    def make(count: int, **how: Any) -> Nodes:
        made.append(Nodes(0, **how))  # first, so that a start that fails leaves nothing behind
        for _ in range(count):
            made[-1].add()
        made[-1].meet()
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()


@pytest.fixture(scope="module")
def three() -> Iterator[Nodes]:
    """Three nodes, shared by tests that leave them as they were."""
    nodes = Nodes(0)
    try:
        for _ in range(3):
            nodes.add()
        nodes.meet()
        yield nodes
    finally:
        nodes.end()


@pytest.fixture(scope="session")
def idle_members() -> Iterator[list[Member]]:
    """Processes that wait for a test of worlds."""
    with crews() as started:
        yield started


@pytest.fixture
def crew(idle_members: list[Member]) -> Iterator[Crew]:
    """`a, b = crew.muster(2)`: two processes that can be in worlds."""
    yield from mustered(idle_members)


def mustered(started: list[Member]) -> Iterator[Crew]:
    """A crew for one test."""
    made = Crew(started)
    yield made
    made.dismiss()


@pytest.fixture(scope="session")
def equipped() -> Iterator[list[Member]]:
    """Members that wait for a test of worlds of GPUs: what they have loaded stays."""
    with crews() as started:
        yield started


@pytest.fixture
def gpus(equipped: list[Member]) -> Iterator[Crew]:
    """Like `crew`, of the `equipped` processes."""
    yield from mustered(equipped)
