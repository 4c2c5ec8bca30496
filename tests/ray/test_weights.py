"""Weights in a cluster: they outlive drivers and nodes, and a node has one copy of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.tables import weights as weights_module
from hoplite_ray.tables.log import value_ids
from tests.ray.raycluster import ARENA_BYTES, RayCluster, eventually, is_gone
from tests.ray.test_docstring_samples import check_headings, check_twin, run_example
from tests.ray.weights_actors import Model

LAYER = 4 << 20  # float32 elements: 16 MiB
SLACK_BYTES = 1 << 20  # of other objects of the cluster, which come and go meanwhile

DRIVER = """
import numpy as np, sys
import hoplite_ray as hop
hop.init(sys.argv[1], arena_bytes=int(sys.argv[2]), log_to_driver=False)
hop.publish_weights("trained", {"layer": np.ones((4, 250_000), "f4"), "tied": [np.arange(3)]})
"""


def value(fill: float, elements: int = LAYER) -> dict[str, Any]:
    return {"layer": np.full(elements, fill, np.float32), "bias": np.arange(3)}


def start_models(cluster: RayCluster, node: int, count: int, name: str | None = None) -> list[Any]:
    return [Model.options(**cluster.on(node)).remote(name) for _ in range(count)]


def count_sent(watchers: list[Any]) -> int:
    """Return the bytes that all nodes have sent to each other."""
    return sum(each.bytes_sent for each in ray.get([each.stats.remote() for each in watchers]))


def test_weights_outlive_the_driver_that_published_them(cluster: RayCluster) -> None:
    command = [sys.executable, "-c", DRIVER, cluster.cluster.address, str(ARENA_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (model,) = start_models(cluster, 1, 1, "trained")
    assert ray.get(model.sum.remote("layer")) == 1_000_000
    here = hop.weights("trained", timeout_s=60)
    assert here["tied"][0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        here["layer"][0, 0] = 2


def test_all_processes_of_a_node_map_its_one_copy(cluster: RayCluster) -> None:
    version = hop.publish_weights("shared", value(1))
    watchers = [start_models(cluster, each, 1)[0] for each in range(3)]
    numbers = ray.get([each.node_number.remote() for each in watchers])
    (node,) = (each for each in range(3) if numbers[each] not in version.nodes)
    watcher = watchers[node]  # on the node that has none of the two copies
    sent_before = count_sent(watchers)
    models = start_models(cluster, node, 2, "shared")
    places = ray.get([model.place.remote("layer") for model in models])
    assert len({(place.file, place.offset) for place in places}) == 1
    assert [place.copied_bytes for place in places] == [0, 0]
    sent_bytes = count_sent(watchers) - sent_before
    assert version.size_bytes <= sent_bytes <= version.size_bytes + SLACK_BYTES
    pinned = ray.get(watcher.stats.remote()).arena_bytes_pinned
    for pid in ray.get([model.pid.remote() for model in models]):
        os.kill(pid, signal.SIGKILL)

    def is_let_go() -> bool:
        left = ray.get(watcher.stats.remote()).arena_bytes_pinned
        return bool(left <= pinned - version.size_bytes + SLACK_BYTES)

    assert eventually(is_let_go), "what is left on the node can be evicted"
    assert ray.get(watcher.put_until_one_is_evicted.remote(4 << 20, ARENA_BYTES // (4 << 20)))
    assert hop.weights("shared")["layer"][0] == 1, "the two copies stay"


def test_one_copy_serves_when_the_node_with_the_other_has_died(cluster: RayCluster) -> None:
    publisher, reader = start_models(cluster, 1, 1)[0], start_models(cluster, 2, 1)[0]
    ray.get(publisher.publish.remote("twice", value(3, 300_000)))
    os.kill(ray.get(publisher.node_pid.remote()), signal.SIGKILL)
    ray.get(reader.map.remote("twice"))
    assert ray.get(reader.sum.remote("layer")) == 900_000
    ray.get(publisher.map.remote("twice"))
    assert ray.get(publisher.sum.remote("layer")) == 900_000


def test_a_call_waits_for_the_name_and_at_last_lists_the_names(cluster: RayCluster) -> None:
    hop.publish_weights("listed", np.zeros(1))
    why = r"no weights 'lisstd' have been published in time; there are: .*'listed'.*; correct the"
    with pytest.raises(hop.GetTimeoutError, match=why):
        hop.weights("lisstd", timeout_s=0.5)
    (model,) = start_models(cluster, 1, 1)
    waiting = model.map.remote("late")
    assert ray.wait([waiting], timeout=0.5)[0] == []
    hop.publish_weights("late", value(2, 10))
    ray.get(waiting)
    assert ray.get(model.sum.remote("layer")) == 20


def test_the_latest_weights_are_read_and_withdrawn_ones_are_not(cluster: RayCluster) -> None:
    async def use() -> None:
        await hop.publish_weights_async("changing", np.ones(2))
        await hop.publish_weights_async("changing", np.full(2, 5.0))
        assert (await hop.weights_async("changing")).sum() == 10
        removal = await hop.publish_weights_async("changing", None)
        assert removal.is_removal
        with pytest.raises(hop.GetTimeoutError, match="no weights 'changing'"):
            await hop.weights_async("changing", timeout_s=0.2)

    asyncio.run(use())


def test_replaced_weights_are_dropped_by_a_process_that_waits(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "TABLE", "weights.replaced")
    monkeypatch.setattr(weights_module, "_KEEP_S", 0.2)
    monkeypatch.setattr(weights_module, "_SILENT_S", 2.0)
    old = hop.publish_weights("a", value(1, 300_000))
    hop.publish_weights("a", value(2, 300_000))
    ids = value_ids("weights.replaced", old.writer, old.value, len(old.nodes))
    assert eventually(lambda: all(map(is_gone, ids)), within_s=60), "though no process calls"
    assert hop.weights("a")["layer"][0] == 2


def test_a_fetch_that_began_early_is_what_the_stage_gets(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_declared", None)
    hop.publish_weights("early", np.full(3, 7.0))
    weights_module.begin_early("early")
    with weights_module.declare("early"):
        mine = hop.weights()
        hop.publish_weights("early", np.full(3, 8.0))
        assert mine.sum() == 21 and not mine.flags.writeable
        assert hop.weights().sum() == 24, "the next call reads anew"
    assert hop.weights().sum() == 24


def test_an_early_fetch_of_an_unknown_name_fails_in_the_constructor(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_declared", None)
    monkeypatch.setattr(weights_module, "_NAME_S", 0.5)
    with weights_module.declare("unpublished"):
        with pytest.raises(hop.GetTimeoutError, match=r"'unpublished' have not come in time"):
            hop.weights(timeout_s=0.1)
        weights_module.begin_early("unpublished")
        with pytest.raises(hop.GetTimeoutError, match=r"no weights 'unpublished' have been"):
            hop.weights()


def test_weights_come_within_the_callers_limit_after_the_early_fetch_has_given_up(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_declared", None)
    monkeypatch.setattr(weights_module, "_NAME_S", 0.1)
    with weights_module.declare("published late"):
        fetch = weights_module._early["published late"]
        assert fetch.exception(60) is not None
        timer = threading.Timer(1.0, hop.publish_weights, ("published late", np.full(3, 2.0)))
        timer.start()
        assert hop.weights(timeout_s=60).sum() == 6
        timer.join()


# Beside the other tests of weights, because what an example publishes stays.
@pytest.mark.parametrize("verb", ["publish_weights", "weights"])
def test_the_docstring_of_a_verb_is_complete_and_runs(cluster: RayCluster, verb: str) -> None:
    check_headings(verb)
    check_twin(verb)
    run_example(verb)
