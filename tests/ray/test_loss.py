"""A get whose bytes are gone: they come from elsewhere, or an error says why."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster
from tests.ray.test_node import Client

SMALL = 20  # objects of as many ids: some have their directory entry on the node that dies


@ray.remote(num_cpus=0)
class Maker:
    def small(self, value: int) -> hop.Array:
        return hop.array(np.full(100, value))

    def large(self) -> hop.Array:
        return hop.array(np.ones(LARGE, np.float32))

    def put(self) -> list[ray.ObjectRef]:
        self.kept = hop.put(np.ones(LARGE, np.float32))
        return [self.kept]


@pytest.fixture
def maker(cluster: RayCluster) -> Any:
    return Maker.options(**cluster.on(1)).remote()


def kill_node_process_of_1(cluster: RayCluster) -> None:
    pid, _ = ray.get(Client.options(**cluster.on(1)).remote().attach.remote())
    os.kill(pid, signal.SIGKILL)


def test_a_small_result_is_there_as_long_as_its_handle(cluster: RayCluster, maker: Any) -> None:
    unread = [maker.small.remote(value) for value in range(SMALL)]
    handles = ray.get([maker.small.remote(value) for value in range(SMALL)])
    hop.wait(unread, num_returns=SMALL, timeout_s=60)
    kill_node_process_of_1(cluster)
    assert [int(value[0]) for value in hop.get(unread, timeout_s=60)] == list(range(SMALL))
    assert [int(value[0]) for value in hop.get(handles, timeout_s=60)] == list(range(SMALL))


def test_a_lost_object_is_named_with_the_reason(cluster: RayCluster, maker: Any) -> None:
    large = ray.get(maker.large.remote())
    (ref,) = ray.get(maker.put.remote())
    kill_node_process_of_1(cluster)
    for lost, object_id in ((large, large._object_id), (ref, ref.binary())):
        name = f"{object_id[:4].hex()}..{object_id[-4:].hex()}"
        with pytest.raises(hop.ObjectLostError, match=f"object {name} .*lost|holders"):
            hop.get(lost, timeout_s=60)
        with pytest.raises(ray.exceptions.ObjectLostError):
            hop.get(lost, timeout_s=60)
