"""Nodes that spill to disk: four times as much as an arena holds, read here and elsewhere."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from hoplite_ray.errors import NodeLostError, StoreFullError
from hoplite_ray.store import Store, new_id
from tests.process.nodes import MIB, WAIT_S, MakeNodes, Nodes, numbers

ARENA = 8 * MIB
SPILLS = {"when_full": "spill"}
COUNT, SIZE = 16, 2 * MIB  # four times the arena


def put_all(nodes: Nodes) -> list[bytes]:
    return [nodes.put(0, numbers(SIZE, seed=n)) for n in range(COUNT)]


def check_all(nodes: Nodes, rank: int, ids: list[bytes]) -> None:
    for n, object_id in enumerate(ids):
        np.testing.assert_array_equal(nodes.get(rank, object_id), numbers(SIZE, seed=n))
        gc.collect()


def spill_files(pid: int, directory: Path) -> list[Path]:
    """Return the files without a name below `directory` that the process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:  # such as a connection that has just been closed
            continue
        if target.startswith(f"{directory}/") and target.endswith("(deleted)"):
            found.append(link)
    return found


def test_four_times_what_fits_is_read_here_and_elsewhere_and_leaves_nothing(
    cluster: MakeNodes,
) -> None:
    nodes = cluster(2, arena_bytes=ARENA, options=SPILLS)
    ids = put_all(nodes)
    nodes.wait_for(0, lambda s: s.spill_bytes >= (COUNT - 4) * SIZE)
    check_all(nodes, 0, ids)
    check_all(nodes, 1, ids)
    stats = nodes.wait_for(0, lambda s: s.spill_bytes_read >= 2 * (COUNT - 4) * SIZE)
    assert stats.spill_errors == 0
    for object_id in ids:
        nodes[1].delete(object_id, timeout_s=WAIT_S)
    for rank in (0, 1):
        nodes.wait_for(rank, lambda s: s.spill_bytes == 0 and s.arena_bytes_used == 0)
    process = nodes.processes[0]
    (file,) = spill_files(process.process.pid, process.directory)
    while file.stat().st_blocks:  # they go back to the file system, a little after the counter
        time.sleep(0.01)  # the test's limit ends it else


def test_a_reduce_reads_its_sources_from_the_file(cluster: MakeNodes) -> None:
    nodes = cluster(2, arena_bytes=ARENA, options=SPILLS)
    ids = [new_id() for _ in range(COUNT)]
    for n, object_id in enumerate(ids):
        nodes[n % 2].put(object_id, np.full(SIZE // 4, n, np.float32), timeout_s=WAIT_S)
    target = new_id()
    nodes[1].reduce(target, ids[:6], timeout_s=WAIT_S)
    total = nodes[0].get(target, timeout_s=WAIT_S)
    np.testing.assert_array_equal(total, np.full(SIZE // 4, 15, np.float32))


def test_nothing_is_left_after_a_kill(cluster: MakeNodes, tmp_path: Path) -> None:
    nodes = cluster(1, arena_bytes=ARENA, options=SPILLS, spill_directory=tmp_path)
    put_all(nodes)
    assert len(spill_files(nodes.processes[0].process.pid, tmp_path)) == 1
    (file,) = spill_files(nodes.processes[0].process.pid, tmp_path)
    assert file.stat().st_nlink == 0, "nor will any process find it"
    assert not list(tmp_path.iterdir()), "the file has no name"
    nodes.kill(0)
    assert not list(tmp_path.iterdir())
    nodes.add()
    assert len(spill_files(nodes.processes[1].process.pid, tmp_path)) == 1, "its own"
    assert not list(tmp_path.iterdir())


def fill(nodes: Nodes) -> tuple[list[bytes], str]:
    """Put until the arena and the disk are full; returns what is there, and what the last heard."""
    ids: list[bytes] = []

    def put_on() -> None:
        while True:
            ids.append(nodes.put(0, numbers(SIZE, seed=len(ids))))

    with pytest.raises(StoreFullError) as full:
        put_on()
    return ids, str(full.value)


def test_a_file_that_may_not_grow_is_named_and_loses_nothing(
    cluster: MakeNodes, tmp_path: Path
) -> None:
    options = {**SPILLS, "admission_grace_ms": 500}
    nodes = cluster(1, arena_bytes=ARENA, options=options, spill_directory=tmp_path)
    # Files of the node may be no longer than that from now on; its arena is one already.
    limits = (2 * SIZE, 2 * SIZE)
    resource.prlimit(nodes.processes[0].process.pid, resource.RLIMIT_FSIZE, limits)
    ids, said = fill(nodes)
    assert f"Spilling failed: writing {SIZE} bytes to {tmp_path}: File too large (errno 27)" in said
    assert len(ids) >= 5, "two went to the disk"
    nodes[0].delete(ids.pop(), timeout_s=WAIT_S)
    check_all(nodes, 0, ids)


def test_a_full_disk_is_named_and_loses_nothing(cluster: MakeNodes, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # only root can mount one
    script = f'mount -t tmpfs -o size={2 * SIZE + MIB} spill {tmp_path} && exec "$@"'
    nodes = cluster(
        1,
        arena_bytes=ARENA,
        options={**SPILLS, "admission_grace_ms": 500},
        spill_directory=tmp_path,
        before=["unshare", "--mount", "sh", "-c", script, "sh"],
    )
    ids, said = fill(nodes)
    assert f"bytes to {tmp_path}: No space left on device (errno 28)" in said
    assert len(ids) >= 5, "two went to the disk"
    stats = nodes.wait_for(0, lambda s: s.spill_errors >= 1)
    assert stats.spill_bytes == 2 * SIZE
    nodes[0].delete(ids.pop(), timeout_s=WAIT_S)
    check_all(nodes, 0, ids)


def test_a_directory_that_is_none_is_named() -> None:
    with pytest.raises(NodeLostError, match=r"a file for spilled objects in /nowhere"):
        Nodes(1, options=SPILLS, spill_directory=Path("/nowhere"))


def test_the_environment_says_so_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPLITE_RAY_WHEN_FULL", "spill")
    monkeypatch.setenv("HOPLITE_RAY_SPILL_DIRECTORY", str(tmp_path))
    with Store.start(arena_bytes=ARENA) as store:
        assert len(spill_files(store.node.process.pid, tmp_path)) == 1
