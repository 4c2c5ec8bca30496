"""A Ray cluster of several nodes on this machine, or one that runs already."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster

ATTEMPTS = 3  # Ray gives a node 30 s to start; on a busy machine that is not always enough


@contextmanager
def cluster_at(
    address: str | None, nodes: int, workers: int, store_bytes: int
) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `ray.init` for the cluster at `address`, or for one of its own."""
    if address is None:
        with local_cluster(nodes, workers, store_bytes) as head:
            yield {"address": head}
        return
    try:
        # Ray asks an address of the internet which one is ours, and has no answer in a namespace.
        yield {"address": address, "_node_ip_address": own_address(address)}
    finally:
        ray.shutdown()


def own_address(other: str) -> str:
    """Return the address from which this machine reaches another one."""
    host, _, port = other.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


@contextmanager
def local_cluster(nodes: int, workers: int, store_bytes: int) -> Iterator[str]:
    """Start nodes with room for the workers, yield the head's address, and stop them in the end."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the workers: they share the cores
    options = {"num_cpus": -(-workers // nodes), "object_store_memory": store_bytes}
    cluster = Cluster()
    try:
        for number in range(1, nodes + 1):
            _add_node(cluster, f"Ray node {number} of {nodes}", options)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def _add_node(cluster: Cluster, name: str, options: dict[str, int]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            cluster.add_node(include_dashboard=False, **options)
            return
        except Exception as error:  # Ray raises no narrower one
            print(f"{name} did not start, attempt {attempt} of {ATTEMPTS}: {error}", flush=True)
    raise SystemExit(f"{name} did not start. Is the machine busy? Try again, or with fewer --nodes")
