"""The driver of parts.py: writers and readers of one matrix, each on a Ray node of its own."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray
from ranks import serve

import hoplite_ray as hop
from hoplite_ray import parts

HOPLITE, RAY = "hoplite", "ray"
ROW_BYTES = 16 << 10  # of the matrix
TIMEOUT_S = 600.0


def play(address: str, arena_bytes: str, link_mbit: str, sides: str) -> None:
    """Be the driver of a cluster: the first nodes write, the others read."""
    flag = {"arena_bytes": int(arena_bytes), "link_mbit": int(link_mbit)}
    ray.init(address, runtime_env={"hoplite": flag}, log_to_driver=False)
    serve(_Driver(int(sides)))


@ray.remote(num_cpus=0)
class _Writer:
    def write(self, contender: str, rank: int, rows: int) -> list[Any]:
        """Put rows whose elements are the writer's rank and the place in the row."""
        shard = np.empty((rows, ROW_BYTES // 4), np.float32)
        shard[:] = rank * (1 << 14) + np.arange(ROW_BYTES // 4, dtype=np.float32)
        return [hop.array(shard) if contender == HOPLITE else ray.put(shard)]


@ray.remote(num_cpus=0)
class _Reader:
    def start_node(self) -> None:
        """Have the store's node of this Ray node begin, which takes seconds."""
        hop.get(hop.array(np.zeros(1 << 16)), timeout_s=TIMEOUT_S)

    def read(self, contender: str, given: list[Any], rank: int, sides: int) -> float:
        """Get the columns of a rank; returns the sum of the first and the last row."""
        split = parts.split(rank, sides, axis=1)
        if contender == HOPLITE:
            columns = hop.get(given[0], part={"w": split}, timeout_s=TIMEOUT_S)["w"]
        else:
            rows = ray.get(given, timeout=TIMEOUT_S)
            first, end = split.bounds(rows[0].shape[1])
            columns = np.concatenate([each[:, first:end] for each in rows])
        return float(columns[0].sum(dtype=np.float64) + columns[-1].sum(dtype=np.float64))


class _Driver:
    """The benchmark's commands."""

    def __init__(self, sides: int) -> None:
        self._sides = sides
        self._writers = [self._place(_Writer, rank) for rank in range(sides)]
        self._readers = [self._place(_Reader, rank) for rank in range(sides, 2 * sides)]
        self._given: list[Any] = []
        ray.get([each.start_node.remote() for each in self._readers], timeout=TIMEOUT_S)

    @staticmethod
    def _place(kind: Any, rank: int) -> Any:
        return kind.options(resources={f"n{rank}": 0.001}).remote()

    def write(self, contender: str, size_bytes: int) -> None:
        """Have every writer put its rows."""
        rows = size_bytes // ROW_BYTES // self._sides
        written = ray.get(
            [each.write.remote(contender, rank, rows) for rank, each in enumerate(self._writers)],
            timeout=TIMEOUT_S,
        )
        shards = [shard for (shard,) in written]
        self._given = [hop.compose({"w": parts.shards(shards)})] if contender == HOPLITE else shards

    def read(self, contender: str) -> float:
        """Have all readers get their columns; returns the seconds until the last has them."""
        began_s = time.monotonic()
        sums = ray.get(
            [
                each.read.remote(contender, self._given, rank, self._sides)
                for rank, each in enumerate(self._readers)
            ],
            timeout=TIMEOUT_S,
        )
        took_s = time.monotonic() - began_s
        columns = ROW_BYTES // 4
        places = np.arange(columns, dtype=np.float32)
        rows = [rank * (1 << 14) + places for rank in (0, self._sides - 1)]
        for rank, found in enumerate(sums):
            first, end = parts.split(rank, self._sides).bounds(columns)
            if found != sum(float(row[first:end].sum(dtype=np.float64)) for row in rows):
                raise ValueError(f"reader {rank} has other columns than were written")
        return took_s

    def forget(self) -> None:
        """Let go of the rows."""
        self._given = []
