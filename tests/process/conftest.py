"""`nodes = cluster(3)`, and three nodes that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.nodes import MakeNodes, Nodes


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
        yield nodes
    finally:
        nodes.end()
