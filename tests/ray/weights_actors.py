"""Processes that publish and map weights, and tell where in memory those are."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.node.start import NodePlace, node_number
from tests.ray.spilling import told

_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array is: a file of this machine, the offset in it, and what was copied of it."""

    file: tuple[str, str]  # device and inode
    offset: int
    copied_bytes: int  # pages of the mapping of which this process has copies of its own


def find_place(array: Any) -> Place:
    """Find the mapping of this process that has an array."""
    address = array.__array_interface__["data"][0]
    found: Place | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := _MAPPING.match(line):
            first, end, offset = (int(each, 16) for each in mapping.group(1, 2, 3))
            if found is not None:
                return found
            if first <= address < end:
                found = Place(mapping.group(4, 5), offset + address - first, 0)
        elif found is not None and line.startswith("Anonymous:"):
            found = Place(found.file, found.offset, int(line.split()[1]) << 10)
    assert found is not None
    return found


@ray.remote(num_cpus=0)
class Model:
    """Maps weights in its constructor, unless it is to do so later."""

    def __init__(self, name: str | None = None) -> None:
        self.weights = None if name is None else hop.weights(name, timeout_s=60)

    def pid(self) -> int:
        return os.getpid()

    def node_pid(self) -> int:
        """The process of the node here."""
        directory = NodePlace.of_this_process().directory
        return int(json.loads((directory / "node.json").read_text())["pid"])

    def node_number(self) -> int:
        return node_number(NodePlace.of_this_process().ray_node_id)

    def publish(self, name: str, value: Any) -> tuple[int, ...]:
        """Publish; returns the nodes that have a copy."""
        return hop.publish_weights(name, value, timeout_s=60).nodes

    def map(self, name: str, timeout_s: float = 60) -> None:
        self.weights = hop.weights(name, timeout_s=timeout_s)

    def sum(self, key: str) -> float:
        return float(np.sum(self.weights[key]))

    def place(self, key: str) -> Place:
        self.sum(key)  # all of its pages are there
        return find_place(self.weights[key])

    def stats(self) -> NodeStats:
        """The counters of the node here."""
        return told()

    def put_until_one_is_evicted(self, size_bytes: int, count_max: int) -> bool:
        """Put objects until one of this node is evicted; drop them, and return if one is."""
        before = told().evictions
        kept = []
        while told().evictions == before and len(kept) < count_max:
            kept.append(hop.put(np.zeros(size_bytes, np.uint8), timeout_s=60))
        return told().evictions > before
