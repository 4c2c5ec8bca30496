"""Nodes whose blocks are moved by threads: the same bytes. test_failures.py has a death."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hoplite_ray.store import new_id
from tests.certificates import Authority
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers
from tests.process.test_failures import SLOW, is_under_way

THREADS = 2
OPTIONS = {"io_threads": THREADS}
TWICE = ("127.0.0.1:0", "127.0.0.1:0")  # two connections for blocks to each peer


def run_times_s(nodes: Nodes, rank: int) -> list[float]:
    """The CPU time of each thread of a node that moves blocks."""
    tasks = Path(f"/proc/{nodes.processes[rank].process.pid}/task").iterdir()
    return [
        int((task / "schedstat").read_text().split()[0]) * 1e-9
        for task in tasks
        if (task / "comm").read_text().strip() == "hoplite-bulk"
    ]


@pytest.mark.parametrize("listen", [TWICE[:1], TWICE], ids=["one rail", "one address twice"])
def test_a_broadcast_arrives_by_threads(cluster: MakeNodes, listen: tuple[str, ...]) -> None:
    nodes = cluster(4, options=OPTIONS, listen=listen)
    before = run_times_s(nodes, 0)
    assert len(before) == THREADS
    assert len(nodes.processes[0].rails) == len(listen)
    array = numbers(48 * MIB + 5)
    object_id = nodes.put(0, array)
    pending = [nodes[rank].begin_get(object_id) for rank in (1, 2, 3)]
    for each in pending:
        np.testing.assert_array_equal(each.result(WAIT_S).value, array)
    after = run_times_s(nodes, 0)
    busy = [then - now > 0.001 for now, then in zip(before, after, strict=True)]
    assert sum(busy) >= len(listen)  # a peer's connections have a thread each


def test_a_broadcast_arrives_by_threads_and_tls(
    cluster: MakeNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Authority(tmp_path / "ours").certify("node", "127.0.0.1").items():
        monkeypatch.setenv(name, value)
    nodes = cluster(2, options={**OPTIONS, "data_tls": "on"}, listen=TWICE)
    array = numbers(16 * MIB)
    np.testing.assert_array_equal(nodes.get(1, nodes.put(0, array)), array)


def test_reduces_are_right_by_threads(cluster: MakeNodes) -> None:
    nodes = cluster(4, options=OPTIONS)
    sources = [np.arange(rank, rank + (1 << 20), dtype=np.int64) for rank in range(4)]
    for _ in range(3):
        ids = [nodes.put(rank, source) for rank, source in enumerate(sources)]
        reduction = nodes[0].reduce(new_id(), ids, timeout_s=WAIT_S)
        for rank in range(4):
            np.testing.assert_array_equal(nodes.get(rank, reduction.target), sum(sources))


def test_a_get_that_is_cancelled_amid_its_blocks_frees_its_range(cluster: MakeNodes) -> None:
    nodes = cluster(2, options={**SLOW, **OPTIONS}, arena_bytes=64 * MIB)
    object_id = nodes.put(0, numbers(40 * MIB))
    pending = nodes[1].begin_get(object_id)
    is_under_way(nodes, 1)
    pending.cancel()
    array = numbers(50 * MIB, seed=1)  # fits only once the other is gone
    np.testing.assert_array_equal(nodes.get(1, nodes.put(1, array)), array)
