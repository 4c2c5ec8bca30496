"""Version channels under Ray: actors on several nodes, namespaces, deaths of publishers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster

WAIT_S = 60


def value_of(version: int) -> dict[str, Any]:
    return {"layer": np.full(LARGE, version, np.int64)}


@ray.remote(num_cpus=0)
class Publisher:
    def publish(self, name: str, version: int, **options: Any) -> int:
        return hop.publish(name, value_of(version), timeout_s=WAIT_S, **options)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@ray.remote(num_cpus=0, max_concurrency=2)
class Reader:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def latest(self, name: str, newer_than: int | None = None) -> int:
        update = hop.latest(name, newer_than=newer_than, timeout_s=WAIT_S)
        assert (update.value["layer"] == update.version).all()
        return update.version

    def watch(self, name: str) -> list[int]:
        for update in hop.watch(name):
            assert (update.value["layer"] == update.version).all()
            self.seen.append(update.version)
        return self.seen

    def process(self) -> int:
        return os.getpid()

    def count_seen(self) -> int:
        return len(self.seen)


@pytest.fixture
def publisher(cluster: RayCluster) -> Any:
    return Publisher.options(**cluster.on(1)).remote()


@pytest.fixture
def reader(cluster: RayCluster) -> Any:
    return Reader.options(**cluster.on(2)).remote()


def test_actors_watch_what_one_publishes(publisher: Any, reader: Any) -> None:
    watching = reader.watch.remote("watched")
    until_s, version = time.monotonic() + WAIT_S, 0
    # A watch that begins after the channel's end waits for the next one, and actors start late.
    while version < 5 or not ray.get(reader.count_seen.remote(), timeout=WAIT_S):
        assert time.monotonic() < until_s, "the reader saw no version"
        version += 1
        assert ray.get(publisher.publish.remote("watched", version), timeout=WAIT_S) == version
        assert hop.latest("watched", newer_than=version - 1, timeout_s=WAIT_S).version == version
    hop.unpublish("watched", timeout_s=WAIT_S)
    seen = ray.get(watching, timeout=WAIT_S)
    assert seen == sorted(set(seen)) and seen, "each version once, in order"


def test_a_publisher_that_died_is_followed_by_another(
    cluster: RayCluster, publisher: Any, reader: Any
) -> None:
    for version in (1, 2):
        ray.get(publisher.publish.remote("followed", version), timeout=WAIT_S)
    publisher.die.remote()
    assert ray.get(reader.latest.remote("followed"), timeout=WAIT_S) == 2
    following = Publisher.options(**cluster.on(2)).remote()
    assert ray.get(following.publish.remote("followed", 3), timeout=WAIT_S) == 3
    assert ray.get(reader.latest.remote("followed", 2), timeout=WAIT_S) == 3
    hop.unpublish("followed", timeout_s=WAIT_S)


def test_channels_lists_versions_and_how_readers_lag(publisher: Any, reader: Any) -> None:
    for version in (1, 2):
        ray.get(publisher.publish.remote("listed", version), timeout=WAIT_S)
    assert ray.get(reader.latest.remote("listed", 0), timeout=WAIT_S) == 2
    for version in (3, 4, 5):
        ray.get(publisher.publish.remote("listed", version), timeout=WAIT_S)
    (listed,) = [each for each in hop.channels() if each.name == "listed"]
    assert (listed.version, listed.kept) == (5, 2)
    assert listed.namespace == ray.get_runtime_context().namespace
    (lagging,) = listed.readers
    assert (lagging.version, lagging.lag_versions) == (2, 3) and lagging.lag_s > 0
    assert lagging.node_id != listed.publisher_node_id
    assert lagging.process == ray.get(reader.process.remote(), timeout=WAIT_S)
    hop.unpublish("listed", timeout_s=WAIT_S)
    assert "listed" not in [each.name for each in hop.channels()]


def test_a_channel_belongs_to_a_namespace(publisher: Any) -> None:
    ray.get(publisher.publish.remote("apart", 1, namespace="other"), timeout=WAIT_S)
    named = r"has no channel 'apart', and a channel of that name is in 'other': give its namespace"
    with pytest.raises(hop.GetTimeoutError, match=named):
        hop.latest("apart", timeout_s=0.5)
    with pytest.raises(hop.GetTimeoutError, match=named):
        asyncio.run(hop.latest_async("apart", timeout_s=0.5))
    with hop.watch("apart") as watch, pytest.raises(hop.GetTimeoutError, match=named):
        watch.next(timeout_s=0.5)
    with pytest.raises(hop.GetTimeoutError, match="nothing newer was published yet"):
        hop.latest("in no namespace", timeout_s=0.5)
    assert "apart" not in [each.name for each in hop.channels()]
    assert [each.name for each in hop.channels(namespace="other")] == ["apart"]
    assert hop.latest("apart", namespace="other", timeout_s=WAIT_S).version == 1
    hop.unpublish("apart", namespace="other", timeout_s=WAIT_S)
    with pytest.raises(hop.InvalidArgumentError, match="namespace is 7"):
        hop.latest("apart", namespace=7)  # type: ignore[arg-type]


def test_a_version_is_written_in_place(cluster: RayCluster, reader: Any) -> None:
    def write(value: dict[str, Any]) -> None:
        value["layer"][:] = 1

    like = {"layer": hop.spec(LARGE, "int64")}
    assert hop.publish("written", like, fill=write, timeout_s=WAIT_S) == 1
    assert ray.get(reader.latest.remote("written"), timeout=WAIT_S) == 1
    hop.unpublish("written", timeout_s=WAIT_S)
