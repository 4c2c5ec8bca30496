"""Ray nodes that join and leave under work: drained, idle, or killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2

import hoplite_ray as hop
from hoplite_ray.plugin.anchors import StewardLife
from hoplite_ray.plugin.start import NodePlace
from hoplite_ray.stats import NodeStats
from tests.ray.raycluster import LARGE, RayCluster, eventually


@ray.remote(num_cpus=0)
class Worker:
    """A process on some node, which owns nothing but what it was last asked for."""

    def array(self, value: float) -> hop.Array:
        return hop.array(np.full(LARGE, value, np.float32))

    def put(self, value: float) -> None:
        self.ref = hop.put(np.full(LARGE, value, np.float32))

    def forget(self) -> None:
        del self.ref

    def sum(self, array: hop.Array) -> float:
        return float(np.asarray(array).sum())

    def reduced(self) -> float:
        refs = [hop.put(np.ones(LARGE, np.float32)) for _ in range(2)]
        return float(hop.get(hop.reduce(refs))[0])

    def where(self) -> tuple[str, str]:
        place = NodePlace.of_this_process()
        return place.ray_node_id, str(place.directory)


class Rounds:
    """Broadcasts and allreduces among workers, one after the other, on a thread of its own."""

    def __init__(self, workers: list[Any]) -> None:
        self.count = 0
        self._workers = workers
        self._changing = threading.Condition()
        self._is_over = False
        self._error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            thread.join()
        if self._error is not None:
            raise self._error

    def take_part(self, worker: Any) -> None:
        """Return when there was a round with it."""
        with self._changing:
            self._workers = [*self._workers, worker]
        self.more()

    def leave(self, worker: Any) -> None:
        with self._changing:
            self._workers = [each for each in self._workers if each is not worker]
        self.more()  # the last one with it has ended

    def more(self) -> None:
        """Return when two more have ended, so that one of them began after this call."""
        with self._changing:
            until = self.count + 2
            self._changing.wait_for(lambda: self.count >= until or self._error is not None)

    def _run(self) -> None:
        try:
            while not self._is_over:
                with self._changing:
                    workers = self._workers
                self._round(workers)
                with self._changing:
                    self.count += 1
                    self._changing.notify_all()
        except BaseException as error:
            with self._changing:
                self._error = error
                self._changing.notify_all()

    def _round(self, workers: list[Any]) -> None:
        refs = [worker.array.remote(float(index)) for index, worker in enumerate(workers)]
        total = hop.reduce(refs)
        sums = ray.get([worker.sum.remote(total) for worker in workers])
        assert sums == [LARGE * sum(range(len(workers)))] * len(workers)


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


def living() -> set[str]:
    return {each["NodeID"] for each in ray.nodes() if each["Alive"]}


def stats_at(directory: str) -> NodeStats:
    control = json.loads(Path(directory, "node.json").read_text())["control"]
    return NodeStats.read(control, Path(directory, "secret").read_bytes().strip())


def status_of(cluster: RayCluster, ray_node_id: str) -> int:
    """What Ray's autoscaler knows of a node: whether it runs, is idle or drains."""
    told = GcsClient(address=cluster.cluster.address).get_cluster_resource_state()
    state = autoscaler_pb2.GetClusterResourceStateReply.FromString(told).cluster_resource_state
    return {node.node_id.hex(): node.status for node in state.node_states}[ray_node_id]


def drain(cluster: RayCluster, ray_node_id: str, reason: str, deadline_s: int = 60) -> None:
    command = [f"{sys.prefix}/bin/ray", "drain-node", "--address", cluster.cluster.address]
    command += ["--node-id", ray_node_id]
    command += ["--reason", f"DRAIN_NODE_REASON_{reason}", "--reason-message", "tested"]
    command += ["--deadline-remaining-seconds", str(deadline_s)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.timeout(180)  # a Ray node starts and ends
def test_what_only_a_node_has_is_elsewhere_when_ray_has_drained_it(cluster: RayCluster) -> None:
    with joined(cluster, "drained") as (node, worker):
        array = ray.get(worker.array.remote(3.0))
        ray_node_id, directory = ray.get(worker.where.remote())
        drain(cluster, ray_node_id, "PREEMPTION")
        assert eventually(lambda: stats_at(directory).arena_bytes_pinned == 0, within_s=30)
        cluster.crash_node(node)
        assert hop.get(array, timeout_s=60).sum() == 3 * LARGE


@pytest.mark.timeout(180)  # a Ray node starts and ends
def test_a_steward_leaves_when_nothing_needs_it_and_its_ray_node_may_go(
    cluster: RayCluster,
) -> None:
    with joined(cluster, "idle") as (node, worker):
        ray_node_id, directory = ray.get(worker.where.remote())
        place = NodePlace(ray_node_id, Path(directory))
        array = ray.get(worker.array.remote(1.0))
        assert StewardLife.of(place) == 1
        ray.get(worker.put.remote(1.0))
        del array
        ray.get(worker.forget.remote())
        assert eventually(lambda: StewardLife.of(place) == 0, within_s=60)

        assert ray.get(worker.reduced.remote()) == 2  # of the same process: another steward
        array = ray.get(worker.array.remote(2.0))
        assert StewardLife.of(place) > 0
        ray.kill(worker)  # the worker itself keeps its Ray node from being idle
        assert hop.get(array, timeout_s=60).sum() == 2 * LARGE
        del array
        is_idle = autoscaler_pb2.NodeStatus.IDLE
        assert eventually(lambda: status_of(cluster, ray_node_id) == is_idle, within_s=60)
        raylet = node.all_processes["raylet"][0].process
        drain(cluster, ray_node_id, "IDLE_TERMINATION")
        assert eventually(lambda: raylet.poll() is not None, within_s=30)


@pytest.mark.timeout(240)  # two Ray nodes start and end
def test_transfers_go_on_while_nodes_join_and_leave(cluster: RayCluster) -> None:
    workers = [Worker.options(**cluster.on(node)).remote() for node in range(3)]
    rounds = Rounds(workers)
    with rounds.running():
        with joined(cluster, "first") as (node, worker):
            rounds.take_part(worker)
            ray_node_id, directory = ray.get(worker.where.remote())
            rounds.leave(worker)
            drain(cluster, ray_node_id, "PREEMPTION")
            assert eventually(lambda: stats_at(directory).arena_bytes_pinned == 0, within_s=30)
            cluster.crash_node(node)
        with joined(cluster, "second") as (node, worker):
            rounds.take_part(worker)
            rounds.leave(worker)
            cluster.crash_node(node)
            rounds.more()
    assert rounds.count >= 4
