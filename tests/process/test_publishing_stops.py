"""Publishes that end amid their steps: what they have begun is deleted all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hoplite_ray.base.steps import drive
from hoplite_ray.channel.names import name_channel
from hoplite_ray.channel.publisher import Publisher
from hoplite_ray.channel.steps import Within
from hoplite_ray.errors import GetTimeoutError, ObjectLostError, StoreFullError
from hoplite_ray.values.codec import encode
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes

NAME = "stops"


def do(step: Any) -> Any:
    if isinstance(step, Within):
        return step.pending.result(WAIT_S)
    return step() if callable(step) else step.result(WAIT_S)


def publish(
    nodes: Nodes, publisher: Publisher, value: Any, keep: int, act: Callable[[Any], Any] = do
) -> int:
    steps = publisher.publish(nodes.client(0), encode(value), None, keep, 1, delta=True)
    return drive(steps, act)


def test_a_publish_that_stops_at_its_first_deletion_leaves_none(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    publisher = Publisher(name_channel("", NAME), "", NAME)
    for _ in range(4):
        publish(nodes, publisher, np.zeros(MIB, np.uint8), keep=4)

    def stop(step: Any) -> Any:
        if "delete of object" in getattr(step, "_what", ""):
            raise KeyboardInterrupt
        return do(step)

    with pytest.raises(KeyboardInterrupt):
        publish(nodes, publisher, np.zeros(MIB - 1, np.uint8), keep=1, act=stop)
    nodes.wait_for(0, lambda stats: stats.objects == 1)  # versions 1 to 4, and three deltas
    assert publish(nodes, publisher, np.zeros(MIB, np.uint8), keep=1) == 6


def test_a_delta_whose_put_is_late_is_not_left(cluster: MakeNodes) -> None:
    nodes = cluster(1)
    publisher = Publisher(name_channel("", NAME), "", NAME)

    def be_late(step: Any) -> Any:
        result = do(step)
        if isinstance(step, Within):
            raise GetTimeoutError("the delta is whole, and its answer is late")
        return result

    for version in (1, 2, 3):
        value = np.full(MIB, version, np.uint8)
        value[version:] = 0
        assert publish(nodes, publisher, value, keep=1, act=be_late) == version
        nodes.wait_for(0, lambda stats: stats.objects == 1)


@pytest.mark.parametrize("error", [ObjectLostError, StoreFullError])
def test_an_error_of_the_function_that_writes_is_its_own(
    cluster: MakeNodes, error: type[Exception]
) -> None:
    nodes = cluster(1)
    like = {"layer": np.zeros(MIB, np.uint8)}
    calls: list[int] = []

    def fail(value: dict[str, Any]) -> None:
        calls.append(len(calls))
        raise error("what it reads is lost")

    for _ in range(2):
        for _ in range(2):  # the second one has a delta, which must not give way
            nodes[0].publish(NAME, like, timeout_s=WAIT_S)
        with pytest.raises(error, match="what it reads is lost"):
            nodes[0].publish(NAME, like, fill=fail, timeout_s=WAIT_S)
    assert calls == [0, 1]
