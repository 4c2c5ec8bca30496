"""Ray nodes that join and leave under work: drained, idle, or killed."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2

import hoplite_ray as hop
from hoplite_ray.control.client import ControlClient
from hoplite_ray.plugin.node.start import NodePlace, node_name, running_node
from hoplite_ray.plugin.process.anchors import AnchorSupply
from hoplite_ray.plugin.process.attachment import attachment
from hoplite_ray.plugin.seams import core as seams
from hoplite_ray.plugin.steward import departure
from hoplite_ray.plugin.steward_client.client import steward_on
from hoplite_ray.plugin.steward_client.incarnation import StewardIncarnation
from tests.ray.raycluster import LARGE, RayCluster, eventually
from tests.ray.rounds import Rounds, Worker, drain, living, stats_at


@contextmanager
def joined(cluster: RayCluster, name: str) -> Iterator[tuple[Any, Any]]:
    """A further Ray node for the body, which may end it, and a worker there."""
    node = cluster.add_node(name)
    try:
        yield node, Worker.options(resources={name: 0.001}).remote()
    finally:
        if node in cluster.cluster.worker_nodes:
            cluster.crash_node(node)
        # Until Ray believes it, it places the next test's actors there.
        assert eventually(lambda: node.node_id not in living(), within_s=60)


def is_running(directory: Path) -> bool:
    return running_node(NodePlace("", directory)) is not None


def keepers(find_dead: str) -> list[Path]:
    """The directories of the nodes that keep something."""
    nodes = [each.parent for each in Path(find_dead).parent.glob("hoplite-*/node.json")]
    alive = [each for each in nodes if each != Path(find_dead) and is_running(each)]
    return [each for each in alive if stats_at(str(each)).arena_bytes_pinned > 0]


def has_steward(directory: Path) -> bool:
    return StewardIncarnation.current(NodePlace("", directory)) > 0


def guests() -> int:
    """How many calls pend at the stewards of Ray nodes other than their callers'."""

    def count(steward: Any) -> int:
        return sum("@" in each.caller for each in steward._pending.values())

    found = 0
    for ray_node_id in seams.placeable_nodes():
        with suppress(ValueError):  # it has no steward
            found += ray.get(steward_on(ray_node_id).__ray_call__.remote(count))
    return found


def stewards_begun(ray_node_id: str) -> int:
    """How many stewards of that node Ray was ever asked for."""
    actors = ray._private.state.actors()
    return sum(each["Name"] == node_name(ray_node_id) for each in actors.values())


def leaves_soon(ray_node_id: str) -> None:
    """Have the steward that is there now leave a second after it is needed, not 60."""

    def leave_soon(_steward: object) -> None:
        departure._UNNEEDED_S = 1.0

    ray.get(steward_on(ray_node_id).__ray_call__.remote(leave_soon))


def status_of(cluster: RayCluster, ray_node_id: str) -> int:
    """What Ray's autoscaler knows of a node: whether it runs, is idle or drains."""
    told = GcsClient(address=cluster.cluster.address).get_cluster_resource_state()
    state = autoscaler_pb2.GetClusterResourceStateReply.FromString(told).cluster_resource_state
    return {node.node_id.hex(): node.status for node in state.node_states}[ray_node_id]


def is_idle(cluster: RayCluster, node: Any) -> bool:
    return status_of(cluster, node.node_id) == autoscaler_pb2.NodeStatus.IDLE


def take_away(cluster: RayCluster, *nodes: Any) -> None:
    """As Ray's autoscaler takes idle nodes away."""
    assert eventually(lambda: all(is_idle(cluster, each) for each in nodes), within_s=60)
    for node in nodes:
        drain(cluster.cluster.address, node.node_id, "IDLE_TERMINATION")
    raylets = [node.all_processes["raylet"][0].process for node in nodes]
    assert eventually(lambda: all(each.poll() is not None for each in raylets), within_s=30)


def test_a_life_that_is_relied_on_does_not_end(tmp_path: Path) -> None:
    place = NodePlace("", tmp_path)
    assert StewardIncarnation.use(place) == 0
    life = StewardIncarnation(place)
    assert not life.take_use_mark()
    assert StewardIncarnation.current(place) == 1
    assert not life.take_use_mark()
    assert StewardIncarnation.use(place) == 1
    assert life.take_use_mark()
    assert not life.take_use_mark()

    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    user = threading.Thread(target=lambda: seen.put(StewardIncarnation.use(place)))
    with life.announce_end():
        user.start()
        assert eventually(life.take_use_mark)  # so it does not end
        assert seen.empty()
    user.join()
    assert seen.get() == 1


@ray.remote(num_cpus=0)
class Left:
    """A steward that leaves under its first call."""

    async def anchors(self, count: int) -> None:
        ray.kill(ray.get_runtime_context().current_actor)
        await asyncio.Event().wait()  # it is killed meanwhile


def test_a_steward_that_leaves_under_the_question_for_anchors_is_asked_again_in_its_next_life(
    cluster: RayCluster,
) -> None:
    here = attachment()
    first = Left.options(max_task_retries=-1).remote()
    stewards = iter([first, here.steward])
    anchor = AnchorSupply(here.place, lambda: next(stewards)).take()
    assert anchor.binary() in ray.get(here.steward.__ray_call__.remote(lambda self: self._anchors))


@pytest.mark.timeout(180)  # a Ray node starts and ends
def test_what_only_a_node_has_is_elsewhere_when_ray_has_drained_it(cluster: RayCluster) -> None:
    with joined(cluster, "drained") as (node, worker):
        array = ray.get(worker.array.remote(3.0))
        ray_node_id, directory = ray.get(worker.where.remote())
        drain(cluster.cluster.address, ray_node_id, "PREEMPTION")
        assert eventually(lambda: stats_at(directory).arena_bytes_pinned == 0, within_s=30)
        cluster.crash_node(node)
        assert eventually(lambda: all(map(has_steward, keepers(directory))), within_s=30)
        assert hop.get(array, timeout_s=60).sum() == 3 * LARGE


@pytest.mark.timeout(180)  # a Ray node starts and ends
def test_arrays_and_reduces_are_made_on_a_draining_node_whose_steward_has_left(
    cluster: RayCluster,
) -> None:
    """Case review_05."""
    with joined(cluster, "late") as (_, worker):
        ray.get(worker.put.remote(1.0))
        ray_node_id, directory = ray.get(worker.where.remote())
        place = NodePlace(ray_node_id, Path(directory))
        assert eventually(lambda: StewardIncarnation.current(place) == 1, within_s=60)
        leaves_soon(ray_node_id)
        ray.get(worker.forget.remote())
        assert eventually(lambda: StewardIncarnation.current(place) == 0, within_s=60)
        drain(cluster.cluster.address, ray_node_id, "PREEMPTION", deadline_s=120)
        begun = stewards_begun(ray_node_id)
        ray.get(worker.put.remote(2.0), timeout=60)
        assert stewards_begun(ray_node_id) == begun  # Ray would place none there
        array = ray.get(worker.array.remote(2.0), timeout=60)
        assert hop.get(array, timeout_s=60).sum() == 2 * LARGE
        (total,) = ray.get(worker.reduced.remote(), timeout=60)
        assert hop.get(total, timeout_s=60).sum() == 2 * LARGE

        ray.get(worker.reduces_never.remote())
        assert eventually(lambda: guests() == 1)
        ray.kill(worker)
        assert eventually(lambda: guests() == 0, within_s=60)


@pytest.mark.timeout(180)  # a Ray node starts and ends
def test_a_steward_leaves_when_nothing_needs_it_and_its_ray_node_may_go(
    cluster: RayCluster,
) -> None:
    with joined(cluster, "idle") as (node, worker):
        ray_node_id, directory = ray.get(worker.where.remote())
        place = NodePlace(ray_node_id, Path(directory))
        array = ray.get(worker.array.remote(1.0))
        assert StewardIncarnation.current(place) == 1
        leaves_soon(ray_node_id)
        ray.get(worker.put.remote(1.0))
        del array
        ray.get(worker.forget.remote())
        assert eventually(lambda: StewardIncarnation.current(place) == 0, within_s=60)

        (total,) = ray.get(worker.reduced.remote())  # of the same process: another steward
        array = ray.get(worker.array.remote(2.0))
        assert StewardIncarnation.current(place) == 2
        leaves_soon(ray_node_id)
        ray.kill(worker)  # the worker itself keeps its Ray node from being idle
        assert hop.get(array, timeout_s=60).sum() == 2 * LARGE
        assert hop.get(total, timeout_s=60)[0] == 2  # by the id of its ref, whose owner is dead
        del array, total
        take_away(cluster, node)


@ray.remote(num_cpus=0)
def late_array() -> hop.Array:
    time.sleep(1.0)
    return hop.array(np.ones(LARGE, np.float32))


def keeps_whole(directory: str, array: hop.Array) -> bool:
    """Whether that node keeps all of it, and may not evict it."""
    control = json.loads(Path(directory, "node.json").read_text())["control"]
    secret = Path(directory, "secret").read_bytes().strip()

    async def ask() -> bool:
        calls = ControlClient(secret)
        try:
            rows = await calls.objects(control, limit=1000)
        finally:
            await calls.close()
        return any(
            row.object_id == array._object_id and row.pinned and row.state == "whole"
            for row in rows
        )

    return asyncio.run(ask())


@pytest.mark.timeout(240)  # two Ray nodes start and end
def test_what_idle_nodes_have_of_a_result_is_elsewhere_when_ray_has_taken_it_away(
    cluster: RayCluster,
) -> None:
    makers = [Worker.options(**cluster.on(node)).remote() for node in range(2)]
    array, _ = ray.get([each.array.remote(1.0) for each in makers])
    stay_connected = [
        directory for _, directory in ray.get([each.where.remote() for each in makers])
    ]
    with joined(cluster, "one") as one, joined(cluster, "other") as other:
        workers = [worker for _, worker in (one, other)]
        for worker in workers:
            ray.get(worker.sum.remote(array))  # so ours is there
        places = ray.get([each.where.remote() for each in workers])
        going = [Path(directory) for _, directory in places]
        assert eventually(lambda: all(map(has_steward, going)), within_s=30)
        for ray_node_id, _ in places:
            leaves_soon(ray_node_id)
        for worker in workers:
            ray.kill(worker)
        assert eventually(lambda: not any(map(has_steward, going)), within_s=60)
        early = makers[0].array.remote(1.0)
        total = hop.reduce([early, late_array.options(**cluster.on(1)).remote()])
        array = ray.get(total)
        assert all(stats_at(str(each)).arena_bytes_pinned > 0 for each in going)
        assert not any(keeps_whole(each, array) for each in stay_connected)
        take_away(cluster, *(node for node, _ in (one, other)))
        assert eventually(
            lambda: any(keeps_whole(each, array) for each in stay_connected), within_s=30
        )
        assert eventually(lambda: not any(map(is_running, going)), within_s=30)
        assert hop.get(array, timeout_s=60).sum() == 2 * LARGE


@pytest.mark.timeout(240)  # two Ray nodes start and end
def test_transfers_go_on_while_nodes_join_and_leave(cluster: RayCluster) -> None:
    workers = [Worker.options(**cluster.on(node)).remote() for node in range(3)]
    rounds = Rounds(workers)
    with rounds.running():
        with joined(cluster, "first") as (node, worker):
            rounds.take_part(worker)
            ray_node_id, directory = ray.get(worker.where.remote())
            rounds.leave(worker)
            drain(cluster.cluster.address, ray_node_id, "PREEMPTION")
            assert eventually(lambda: stats_at(directory).arena_bytes_pinned == 0, within_s=30)
            cluster.crash_node(node)
        with joined(cluster, "second") as (node, worker):
            rounds.take_part(worker)
            rounds.leave(worker)
            cluster.crash_node(node)
            rounds.more()
    assert rounds.count >= 4
