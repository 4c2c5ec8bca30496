"""The driver of weights.py: it publishes the weights, and starts replicas on the other nodes.

A replica is an actor that has the weights when its constructor ends: by `hop.weights`, or as people
do it with plain Ray, by `ray.get` of a ref that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from frame import connect_driver
from ranks import serve

import hoplite_ray as hop

HOPLITE, RAY, BARE = "hoplite", "ray", "bare"  # a bare replica has no weights
NAME = "model"
LAYERS = 16
TIMEOUT_S = 300.0
_PAGE = 1024  # float32 elements


def play(address: str, arena_bytes: str, link_mbit: str) -> None:
    """Be the driver of a cluster, whose new nodes have a resource each."""
    connect_driver(address, arena_bytes, link_mbit)
    serve(_Driver())


@ray.remote(num_cpus=0)
class _Replica:
    def __init__(self, contender: str, refs: Sequence[Any]) -> None:
        self._weights: dict[str, Any] = {}
        if contender == HOPLITE:
            self._weights = hop.weights(NAME, timeout_s=TIMEOUT_S)
        elif contender == RAY:
            self._weights = ray.get(refs[0])
        self._total = sum(float(each[::_PAGE].sum()) for each in self._weights.values())

    def total(self) -> float:
        """The sum of an element of each page."""
        return self._total


class _Driver:
    """The benchmark's commands."""

    def __init__(self) -> None:
        self._refs: list[Any] = []
        self._total = 0.0

    def publish(self, size_bytes: int) -> None:
        """Publish the weights, and put them into Ray's own store."""
        elements = size_bytes // 4 // LAYERS
        value = {f"layer {at}": np.full(elements, at, np.float32) for at in range(LAYERS)}
        self._total = sum(float(each[::_PAGE].sum()) for each in value.values())
        hop.publish_weights(NAME, value, timeout_s=TIMEOUT_S)
        self._refs = [ray.put(value)]

    def start(self, contender: str, resource: str, count: int) -> float:
        """Start replicas on a node at once; returns the seconds until all of them are ready."""
        options = _Replica.options(resources={resource: 0.001})
        began_s = time.monotonic()
        replicas = [options.remote(contender, self._refs) for _ in range(count)]
        totals = ray.get([each.total.remote() for each in replicas], timeout=TIMEOUT_S)
        took_s = time.monotonic() - began_s
        if contender != BARE and set(totals) != {self._total}:
            raise ValueError(f"the replicas have weights with sums {totals}, not {self._total}")
        for each in replicas:
            ray.kill(each)
        return took_s
