"""A Ray cluster whose nodes Ray's autoscaler brings and takes, by test_autoscaler.py.

A process of its own, for it is the driver of a cluster of its own. Each assertion is a test's.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import ray
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FAKE_HEAD_NODE_TYPE,
)

import hoplite_ray as hop
from tests.ray.raycluster import LARGE, RayCluster, eventually, free_port
from tests.ray.rounds import Rounds, Worker, drain, living, stats_at

IDLE_S = 6
NODES_MAX = 3
_NONE = (  # of what machines need that are not processes of this one
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands"),
    *("cluster_synced_files", "rsync_exclude", "rsync_filter"),
)


def settings(gcs: str) -> dict[str, object]:
    """The configuration for `ray up`: a cluster whose machines are processes of this machine."""
    folder = "ray.autoscaler._private.fake_multi_node.node_provider"
    worker = {"CPU": 1, "object_store_memory": 100 << 20}
    return {
        "cluster_name": "autoscaled",
        "max_workers": NODES_MAX,
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": {
            "type": "external",  # the wheel lacks the defaults of the type "fake_multinode"
            "module": f"{folder}.FakeMultiNodeProvider",
            "gcs_address": gcs,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
        },
        **{name: [] for name in _NONE},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        "file_mounts_sync_continuously": False,
        "upscaling_speed": 1.0,
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "available_node_types": {
            FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": worker, "node_config": {}, "max_workers": NODES_MAX},
        },
    }


def started(folder: Path) -> RayCluster:
    """A head that asks for nodes as it needs them; see AutoscalingCluster, which ends all Rays."""
    port = free_port()
    file = folder / "autoscaling.json"
    file.write_text(json.dumps(settings(f"{ray.util.get_node_ip_address()}:{port}")))
    os.environ |= {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    of_the_head = {
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": FAKE_HEAD_NODE_TYPE,
    }
    os.environ |= of_the_head
    how = {"autoscaling_config": str(file), "no_monitor": False, "gcs_server_port": port}
    cluster = RayCluster.start(nodes=1, num_cpus=0, **how)
    for name in of_the_head:
        del os.environ[name]
    return cluster


def run(cluster: RayCluster) -> None:
    on_head = Worker.options(**cluster.on(0)).remote()
    first, second, third = (Worker.options(num_cpus=1).remote() for _ in range(NODES_MAX))
    places = ray.get([each.where.remote() for each in (first, second, third)])
    assert len({ray_node_id for ray_node_id, _ in places}) == NODES_MAX  # three have come

    rounds = Rounds([on_head, first, second, third])
    with rounds.running():
        rounds.more()
        kept = ray.get(first.array.remote(3.0))
        (kept_by, directory), (idle, _) = places[0], places[2]
        for worker in (first, third):  # an actor would keep its node, too
            rounds.leave(worker)
            ray.kill(worker)
        assert eventually(lambda: idle not in living(), within_s=120)
        rounds.more()

        assert kept_by in living()  # as idle as the other one, but for the array that it keeps
        drain(cluster.cluster.address, kept_by, "PREEMPTION")
        assert eventually(lambda: stats_at(directory).arena_bytes_pinned == 0, within_s=30)
        rounds.more()
    assert hop.get(kept, timeout_s=30).sum() == 3 * LARGE
    ray.kill(second)
    del kept
    assert eventually(lambda: len(living()) == 1, within_s=120)


def stop(cluster: RayCluster) -> None:
    """Ends the nodes that are there or half ended, too, which Ray leaves to themselves."""
    autoscaler = cluster.cluster.head_node.all_processes["monitor"][0].process.pid
    brought = psutil.Process(autoscaler).children()
    cluster.stop()
    for process in brought:
        with suppress(psutil.NoSuchProcess):
            process.kill()


cluster = started(Path(sys.argv[1]))
try:
    flag = {"hoplite": {"arena_bytes": 64 << 20}}
    ray.init(address=cluster.cluster.address, log_to_driver=False, runtime_env=flag)
    run(cluster)
    sys.stdout.write("all have gone\n")
finally:
    ray.shutdown()
    stop(cluster)
