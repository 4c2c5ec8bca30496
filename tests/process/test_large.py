"""An object whose offsets need more than 32 bits. Two arenas of 5 GiB: 9 GiB of memory in all."""

from __future__ import annotations

import numpy as np
import pytest

from hoplite_ray.store import new_id
from tests.process.nodes import MakeNodes

GIB = 1 << 30
SIZE = 41 * GIB // 10 + 3
MARKS = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, SIZE - 1]
WAIT_S = 100.0


@pytest.mark.slow  # LocalObject's tests have blocks beyond 4 GiB, and the next test has arenas
@pytest.mark.timeout(300)  # it moves 4.1 GiB three times on one machine
def test_more_than_four_gibibytes_arrive_byte_for_byte(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=5 * GIB)
    array = np.zeros(SIZE, np.uint8)  # takes memory only where a mark is
    array[MARKS] = np.arange(1, len(MARKS) + 1)
    object_id = new_id()
    nodes[0].put(object_id, array, timeout_s=WAIT_S)
    received = nodes[1].get(object_id, timeout_s=WAIT_S)
    assert received.shape == array.shape
    assert received[MARKS].tolist() == list(range(1, len(MARKS) + 1))
    step = 64 << 20
    assert all(
        np.array_equal(received[at : at + step], array[at : at + step])
        for at in range(0, SIZE, step)
    )


@pytest.mark.parametrize("size", [2 * GIB, 4 * GIB, 4 * GIB + 1])
def test_sizes_around_two_and_four_gibibytes_are_kept(cluster: MakeNodes, size: int) -> None:
    nodes = cluster(1, arena_bytes=5 * GIB)
    marks = [mark for mark in MARKS if mark < size - 1] + [size - 1]
    object_id = new_id()
    with nodes[0].empty(object_id, size, np.uint8, timeout_s=WAIT_S) as unsealed:
        unsealed.value[marks] = np.arange(1, len(marks) + 1)  # takes memory only there
    received = nodes[0].get(object_id, timeout_s=WAIT_S)
    assert received.nbytes == size
    assert received[marks].tolist() == list(range(1, len(marks) + 1))
