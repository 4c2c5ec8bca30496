"""After `serve.run` replicas are where the placement says, on machines that offer its slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray._private import state

from hoplite_ray.serve import pipeline, stage
from hoplite_ray.serve.placement.devices import Device, DeviceKind, Slice
from hoplite_ray.serve.placement.place import Component, Fit, place
from hoplite_ray.serve.placement.placed import Placement
from tests.ray.raycluster import eventually
from tests.serve.conftest import Application, Node

_WHOLE, _HALF = Slice("toy", 8, 2), Slice("toy-half", 4, 1)
_TOY = DeviceKind("toy", ((_WHOLE,), (_HALF, _HALF)))


@stage
class Adding:
    """A stage that adds a number to each query, or to both of its inputs."""

    def __init__(self, more: int) -> None:
        self._more = more

    def __call__(self, *queries: list[int], **inputs: list[int]) -> list[int]:
        return [sum(each) + self._more for each in zip(*queries, *inputs.values(), strict=True)]


@pytest.fixture
def placement(node: Node) -> Iterator[Placement]:
    """Three stages on two machines with two devices each, which Ray knows as resources only."""
    placement = place(
        [
            Component("vision", {"toy": Fit(10, 8)}),
            Component("text", {"toy-half": Fit(30, 4)}, replicas_max=2),
            Component("cross", {"toy-half": Fit(10, 4)}),
        ],
        [Device(f"{name}{at}", _TOY, name) for name in ("left", "right") for at in range(2)],
        edges={("vision", "cross"): 16e6, ("text", "cross"): 1e5},
    )
    offered = placement.ray_resources()
    added = [
        node.cluster.add_node(name, num_cpus=8, resources=resources)
        for name, resources in offered.items()
    ]
    yield placement
    for each in added:
        node.cluster.cluster.remove_node(each)
    assert eventually(lambda: sum(each["Alive"] for each in ray.nodes()) == 1, within_s=60)


def count_replicas(application: str) -> Counter[tuple[str, str]]:
    """Count the running replicas by machine and stage."""
    machines = {
        each["NodeID"]: name
        for each in ray.nodes()
        for name in ("left", "right")
        if each["Alive"] and name in each["Resources"]
    }
    found: Counter[tuple[str, str]] = Counter()
    for actor in state.actors().values():
        kind, _, name = actor["Name"].partition("::")
        app, _, rest = name.partition("#")
        deployment = rest.partition("#")[0]
        if kind == "SERVE_REPLICA" and app == application and actor["State"] == "ALIVE":
            if deployment in ("vision", "text", "cross"):
                found[machines.get(actor["Address"]["NodeID"], "head"), deployment] += 1
    return found


@pytest.mark.slow  # two more Ray nodes
@pytest.mark.timeout(120)
def test_replicas_are_where_the_placement_says(placement: Placement) -> None:
    options: dict[str, dict[str, Any]] = placement.serve_options()
    stages = {
        "vision": Adding.options(**options["vision"]).bind(1),
        "text": Adding.options(**options["text"]).bind(2),
        "cross": Adding.options(**options["cross"]).bind(3).after("vision", "text"),
    }
    application = Application("placed", pipeline(stages))
    try:
        assert application.answer(4) == 5 + 6 + 3
        planned = Counter(
            (berth.node, name) for berth in placement.berths for name in berth.throughput_per_s
        )
        assert len({machine for machine, _ in planned}) == 2
        assert count_replicas("placed") == planned
    finally:
        application.delete()
