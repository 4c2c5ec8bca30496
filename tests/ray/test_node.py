"""The node process: one per Ray node, one set of options, and as mortal as its raylet."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray import _native
from hoplite_ray.config import Config, Memory, ray_arena_bytes
from hoplite_ray.errors import WireVersionMismatchError
from hoplite_ray.metrics.counters import NodeStats
from hoplite_ray.plugin.node import start
from hoplite_ray.plugin.node.start import NodePlace, RunningNode, ensure_node
from tests.ray.raycluster import ARENA_BYTES, LARGE, RayCluster, eventually


@ray.remote(num_cpus=0)
class Client:
    """A process that attaches, and says to what."""

    def attach(self) -> tuple[int, str]:
        from hoplite_ray.plugin.process.attachment import attachment

        hop.array(np.ones(LARGE))  # an object, which needs the node
        directory = attachment().place.directory
        return json.loads((directory / "node.json").read_text())["pid"], str(directory)

    def array(self) -> hop.Array:
        return hop.array(np.ones(LARGE, np.float32))

    def life(self) -> int:
        from hoplite_ray.plugin.process.attachment import attachment

        return attachment().node_incarnation

    def sum(self, array: hop.Array) -> float:
        return float(np.asarray(array).sum())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes under the read
        return False


def test_rays_directory_of_logs_has_the_nodes_log(cluster: RayCluster) -> None:
    hop.get(hop.put(np.ones(3)))
    directory = NodePlace.of_this_process().directory
    assert (directory.parent / "logs" / f"{directory.name}.log").samefile(directory / "node.log")


def test_each_ray_node_has_one_node_whoever_comes_first(cluster: RayCluster) -> None:
    clients = [Client.options(**cluster.on(node)).remote() for node in (0, 1, 2) for _ in range(2)]
    seen = ray.get([client.attach.remote() for client in clients])
    assert len(set(seen)) == 3
    assert seen[0] == seen[1]
    for _, directory in set(seen):
        assert Path(directory).stat().st_mode & 0o777 == 0o700
        assert json.loads(Path(directory, "node.json").read_text())["options"]["arena_bytes"] == (
            ARENA_BYTES
        )


@pytest.mark.timeout(180)  # two Ray node starts and deaths
def test_a_node_comes_back_alone_and_goes_with_its_raylet(cluster: RayCluster) -> None:
    node = cluster.add_node("mortal")
    try:
        options: dict[str, Any] = {"num_cpus": 0, "resources": {"mortal": 0.001}}
        clients = [Client.options(**options).remote() for _ in range(2)]
        first_pid, directory = ray.get(clients[0].attach.remote())
        lost = ray.get(clients[0].array.remote())
        assert ray.get([client.life.remote() for client in clients]) == [1, 1]

        os.kill(first_pid, signal.SIGKILL)
        assert eventually(lambda: not is_running(first_pid))
        pids = {pid for pid, _ in ray.get([client.attach.remote() for client in clients])}
        assert len(pids) == 1
        second_pid = pids.pop()
        assert second_pid != first_pid
        assert ray.get([client.life.remote() for client in clients]) == [2, 2]
        with pytest.raises(hop.ObjectLostError):
            hop.get(lost, timeout_s=30)
        again = ray.get(clients[1].array.remote())
        assert hop.get(again, timeout_s=30).sum() == LARGE  # from another Ray node
        assert ray.get(clients[0].sum.remote(hop.put(np.ones(LARGE, np.float32)))) == LARGE
    finally:
        cluster.crash_node(node)
    assert eventually(lambda: not is_running(second_pid), within_s=10)
    assert not Path(directory, "node.sock").exists()


def test_a_node_whom_rays_gcs_does_not_answer_says_so(cluster: RayCluster) -> None:
    pid, directory = ray.get(Client.options(**cluster.on(1)).remote().attach.remote())
    control = json.loads(Path(directory, "node.json").read_text())["control"]
    secret = Path(directory, "secret").read_bytes()
    assert NodeStats.read(control, secret).has_quorum == 1
    [gcs] = cluster.cluster.head_node.all_processes["gcs_server"]
    gcs.process.send_signal(signal.SIGSTOP)
    try:
        assert eventually(lambda: NodeStats.read(control, secret).has_quorum == 0, within_s=30)
    finally:
        gcs.process.send_signal(signal.SIGCONT)
    assert eventually(lambda: NodeStats.read(control, secret).has_quorum == 1, within_s=30)
    assert is_running(pid)


@pytest.mark.timeout(180)  # Ray takes its time to believe that a node is dead
def test_ray_makes_a_lost_result_again(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=0, resources={"lossy": 0.001}, max_retries=3)
    def make(shard: int) -> hop.Array:
        return hop.array(np.full(LARGE, shard, np.float32))

    node = cluster.add_node("lossy")
    ref = make.remote(7)
    ray.wait([ref], timeout=60, fetch_local=False)
    cluster.crash_node(node)
    node = cluster.add_node("lossy")
    try:
        assert hop.get(ref, timeout_s=120)[0] == 7
    finally:
        cluster.crash_node(node)


def test_a_job_that_asks_for_other_options_is_told_both(cluster: RayCluster) -> None:
    hop.put(np.zeros(3))  # the first job, which fixes the options
    place = NodePlace.of_this_process()
    with pytest.raises(ValueError, match=rf"arena_bytes=1234567, but .* run with .*={ARENA_BYTES}"):
        ensure_node(place, Config(arena_bytes=1_234_567))
    job = ray.get_runtime_context().get_job_id()
    with pytest.raises(
        ValueError, match=rf"default broadcast_stripes.*: {job} \(.*\) of user \d+;"
    ):
        ensure_node(place, Config(broadcast_stripes=3))
    with pytest.raises(ValueError, match=r"asks for data_tls=on, .* run with the default data_tls"):
        ensure_node(place, Config(data_tls="on"))
    assert ensure_node(place, Config()).incarnation >= 1


def test_a_process_of_another_release_is_told_of_the_first(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop.put(np.zeros(3))  # the first job, which fixes the wire version
    ours = _native.WIRE_VERSION
    monkeypatch.setattr(_native, "WIRE_VERSION", ours + 1)
    told = rf"has wire version {ours + 1}, but this cluster's nodes run with {ours}, .* of user"
    with pytest.raises(WireVersionMismatchError, match=told):
        ensure_node(NodePlace("no Ray node", tmp_path), Config())
    assert not (tmp_path / "life").exists()


def test_an_arena_leaves_ray_its_memory() -> None:
    gib = 1 << 30
    spacious = Memory(total_bytes=100 * gib, available_bytes=80 * gib)
    assert ray_arena_bytes(Config(), spacious) == 20 * gib
    assert ray_arena_bytes(Config(arena_bytes=70 * gib), spacious) == 70 * gib
    with pytest.raises(ValueError, match="Ray kills workers above 95% use; ask for at most"):
        ray_arena_bytes(Config(arena_bytes=78 * gib), spacious)
    narrow = Memory(total_bytes=100 * gib, available_bytes=15 * gib)
    assert ray_arena_bytes(Config(), narrow) <= 5 * gib


def test_a_node_that_has_no_room_to_start_again_is_lost(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop.put(np.zeros(3))  # the options are fixed
    narrow = Memory(total_bytes=1 << 30, available_bytes=64 << 20)
    monkeypatch.setattr(Memory, "read", lambda: narrow)
    place = NodePlace("no Ray node", tmp_path)
    with pytest.raises(ValueError, match=f"arena_bytes={ARENA_BYTES} does not fit") as caught:
        ensure_node(place, Config())
    assert not isinstance(caught.value, hop.NodeLostError)
    with pytest.raises(hop.NodeLostError, match=r"has died, .*again: arena_bytes=.* does not fit"):
        ensure_node(place, Config(), lost=RunningNode("", 1))


def test_a_node_that_does_not_start_says_why(cluster: RayCluster, tmp_path: Path) -> None:
    place = NodePlace("no Ray node", tmp_path)
    with pytest.raises(hop.NodeLostError, match="the node did not start: it is not to be"):
        start._spawn(place, ["/bin/sh", "-c", "echo it is not to be; exit 2"])
    (tmp_path / "silent").mkdir()
    with pytest.raises(hop.NodeLostError, match="it said nothing"):
        start._spawn(NodePlace("no Ray node", tmp_path / "silent"), ["/bin/true"])
