"""Stages whose replicas map weights from the store: one copy a node, and updates of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray import serve
from tests.ray.raycluster import eventually
from tests.ray.spilling import told
from tests.serve.applications import Teller, Weighted, WeightedAsync
from tests.serve.conftest import Application, Node

ELEMENTS = 2 << 20  # float32: 8 MiB
SLACK_BYTES = 1 << 20  # of other objects of the node


def publish(fill: float) -> Any:
    value = {"layer": np.full(ELEMENTS, fill, np.float32)}
    return hop.publish_weights("model", value, timeout_s=60)


def ask_replicas(application: Application, count: int) -> dict[int, Any]:
    """Ask until `count` replicas have answered; returns their sums and places by process."""
    found: dict[int, Any] = {}

    def have_answered() -> bool:
        for asked in [application.ask(query) for query in range(2 * count)]:
            pid, total, place = asked.result(timeout_s=60)
            found[pid] = total, place
        return len(found) >= count

    assert eventually(have_answered, within_s=60)
    return found


@pytest.fixture
def application(node: Node) -> Iterator[Application]:
    publish(1)
    started = Application("weighted", serve.pipeline(model=Weighted, replicas=1))
    yield started
    started.delete()


def test_replicas_map_the_nodes_copy_and_an_update_maps_the_latest(
    application: Application,
) -> None:
    found = ask_replicas(application, 2)
    assert {total for total, _ in found.values()} == {ELEMENTS}
    places = [place for _, place in found.values()]
    assert len({(place.file, place.offset) for place in places}) == 1
    assert [place.copied_bytes for place in places] == [0, 0]
    publish(2)
    old = {*found}
    Application("weighted", serve.pipeline(model=Weighted, replicas=1))  # anew: a rolling update
    assert eventually(lambda: old.isdisjoint(ask_replicas(application, 2)), within_s=60)
    found = ask_replicas(application, 2)
    assert {total for total, _ in found.values()} == {2 * ELEMENTS}


def test_the_fetch_begins_before_the_class_is_imported(node: Node) -> None:
    publish(3)
    started = Application("weighted_async", serve.pipeline(model=WeightedAsync, replicas=1))
    assert started.answer(0) == (3 * ELEMENTS, ["model"])
    started.delete()


def test_a_profile_has_the_weights(node: Node) -> None:
    publish(4)
    profile = serve.profile(Weighted, [0], (1,), budget_s=0.1)
    assert profile.stage == "Weighted"


@pytest.mark.slow  # it starts a Ray node
def test_a_new_node_fetches_one_copy_and_keeps_none_pinned(node: Node) -> None:
    version = publish(4)
    far = node.cluster.add_node("far")
    try:
        there = {"num_cpus": 0, "resources": {"far": 0.001}}
        model = Weighted.options(ray_actor_options=there)
        teller = Teller.options(**there).remote()
        ray.get(teller.stats.remote())  # the node is there
        sent_before = told().bytes_sent
        started = Application("weighted_far", serve.pipeline(model=model, replicas=1))
        found = ask_replicas(started, 2)
        assert {total for total, _ in found.values()} == {4 * ELEMENTS}
        sent_bytes = told().bytes_sent - sent_before
        assert version.size_bytes <= sent_bytes <= version.size_bytes + SLACK_BYTES
        pinned = ray.get(teller.stats.remote()).arena_bytes_pinned
        assert pinned >= version.size_bytes
        started.delete()

        def is_let_go() -> bool:
            left = ray.get(teller.stats.remote()).arena_bytes_pinned
            return bool(left <= pinned - version.size_bytes)

        assert eventually(is_let_go, within_s=60)
    finally:
        node.cluster.cluster.remove_node(far)
