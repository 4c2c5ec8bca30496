"""Verbs for the tests of this folder: a cluster of three Ray nodes, and what to wait for."""

from __future__ import annotations

import gc
import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

import hoplite_ray as hop

ARENA_BYTES = 96 << 20
LARGE = 200_000  # float32 elements: 800 KB, so more than one block and more than is sent inline
_STARTS = 3  # Ray gives a raylet 30 s, and a machine under load needs more now and then
_NODE_OPTIONS: dict[str, Any] = {
    "num_cpus": 2,
    "object_store_memory": 100 << 20,
    "setup_worker_path": str(Path(__file__).with_name("worker_start.py")),
}
# No test reads the output of the dashboard, the log monitor and the autoscaler's monitor.
_UNSEEN: dict[str, Any] = {
    "include_dashboard": False,
    "dashboard_port": None,  # with a port Ray leaves its socket open where another Ray has it
    "include_log_monitor": False,
    "no_monitor": True,
}
# A crash is believed after five checks that are refused, not after 15 s; a node that is only slow
# has the time to answer that Ray gives it. Idle workers stay for the next test.
_SYSTEM: dict[str, Any] = {"health_check_period_ms": 500, "num_workers_soft_limit": 6}

_WORKER = "default_worker.py"  # which Ray starts

# Workers unpickle functions of the test modules, so they need our import path.
_PATHS = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]


@dataclass
class RayCluster:
    """Ray nodes on this machine, each of which has its own node process."""

    cluster: Cluster

    def __post_init__(self) -> None:
        self._logs = Path(self.cluster.head_node.get_logs_dir_path())

    @classmethod
    def start(cls, nodes: int = 3, **options: Any) -> RayCluster:
        present = filter(None, [os.environ.get("PYTHONPATH")])
        os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, *present])
        head = {**_NODE_OPTIONS, **_UNSEEN, "resources": {"n0": 1}, **options}
        head["_system_config"] = {**_SYSTEM, **options.get("_system_config", {})}
        started = cls(_retried(lambda: Cluster(initialize_head=True, head_node_args=head)))
        for node in range(1, nodes):
            started.add_node(f"n{node}")
        return started

    def on(self, node: int) -> dict[str, Any]:
        """Options that place a task or an actor on a node, beside whatever runs there."""
        return {"num_cpus": 0, "resources": {f"n{node}": 0.001}}

    def add_node(self, name: str, **options: Any) -> Any:
        resources = {name: 1, **options.pop("resources", {})}
        options = {**_NODE_OPTIONS, **options, "resources": resources}
        return _retried(lambda: self.cluster.add_node(**options))

    def crash_node(self, node: Any) -> None:
        """Kill a Ray node, with the workers that it was starting.

        A worker that has not reached its raylet yet does not hear of its end, and waits for it for
        longer than a test may leave a process behind. On a busy machine that takes it 10 s.
        """
        self.cluster.remove_node(node, allow_graceful=False)
        raylet = f"--raylet-name={node.raylet_socket_name}"
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = process.cmdline()  # a worker that has begun to serve has another one
                if raylet in command and any(each.endswith(_WORKER) for each in command):
                    process.kill()

    def stop(self) -> None:
        """End it, and see that no worker of it has left instances of the extension behind."""
        self.cluster.shutdown()
        assert not (found := leaks_told(self._logs)), "\n".join(found)


def leaks_told(logs: Path) -> list[str]:
    """Messages of nanobind about leaked instances at the end of workers, with file and line."""
    return [
        f"{file}:{number}: {line}"
        for file in sorted([*logs.glob("worker-*.err"), *logs.glob("worker-*.out")])
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if "nanobind: leaked" in line
    ]


def _retried(start: Callable[[], Any]) -> Any:
    for _ in range(_STARTS - 1):
        before = psutil.Process().children()
        try:
            return start()
        except Exception:
            for process in set(psutil.Process().children()) - set(before):
                with suppress(psutil.NoSuchProcess):
                    process.kill()  # left over from a node whose start failed
    return start()


def free_port() -> int:
    """A free port, outside of the ranges for connections and for workers of Ray."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port


def eventually(condition: Callable[[], bool], *, within_s: float = 15.0) -> bool:
    """Whether `condition` holds at some time within `within_s`."""
    began = time.monotonic()
    collected_at = -math.inf
    while (now := time.monotonic()) < began + within_s:
        if now - collected_at > 1.0:  # a test's own frames must not keep refs
            gc.collect()
            collected_at = time.monotonic()
        if condition():
            return True
        time.sleep(min(0.2, 0.02 + (now - began) / 20))  # a long wait asks less often
    return condition()


def not_initialized(*threads: threading.Thread) -> Callable[[], bool]:
    """A `ray.is_initialized` that says no to this thread, to `threads` and to those yet to start.

    The other ones hear what is true: those of this process's attachment would let go of it for
    good, and no object of any later test would be released.
    """
    others = {*threading.enumerate()} - {threading.current_thread(), *threads}
    truly = ray.is_initialized
    return lambda: threading.current_thread() in others and truly()


def cancel(ref: ray.ObjectRef[Any]) -> None:
    """`ray.cancel`, again if need be: Ray may lose one that meets the beginning of a coroutine."""

    def cancelled() -> bool:
        ray.cancel(ref)
        return bool(ray.wait([ref], timeout=2)[0])

    assert eventually(cancelled, within_s=60)


def is_gone(object_id: bytes) -> bool:
    """True if no node of the cluster has the object any more."""
    from hoplite_ray.plugin.process.attachment import attachment

    try:
        attachment().store.begin_get(object_id, exists=True).result(5.0)
    except hop.ObjectLostError:
        return True
    return False
