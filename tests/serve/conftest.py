"""One Ray node with Serve for all tests of this folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import ray
from ray import serve
from ray._private import state
from ray.serve.config import HTTPOptions

from tests.ray.raycluster import RayCluster, free_port


@dataclass(frozen=True, slots=True)
class Node:
    """Where Ray is, and over HTTP Serve's applications and Ray's metrics agent."""

    address: str
    http: str
    metrics: str
    cluster: RayCluster


def gpu_count() -> int:
    try:
        import torch
    except ImportError:  # without torch no test uses a GPU
        return 0
    return torch.cuda.device_count()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """Ray and Serve."""
    os.environ["RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "0.5"  # else 10 s
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "30"  # a busy machine takes more than 5 s
    serving, telling = free_port(), free_port()
    started = RayCluster.start(
        nodes=1,
        num_cpus=4,
        num_gpus=gpu_count(),  # the cluster's own default is none
        metrics_export_port=telling,
        _system_config={"metrics_report_interval_ms": 500},
    )
    try:
        ray.init(address=started.cluster.address, log_to_driver=False)
        serve.start(http_options=HTTPOptions(port=serving))
        http, metrics = f"http://127.0.0.1:{serving}", f"http://127.0.0.1:{telling}/metrics"
        yield Node(started.cluster.address, http, metrics, started)
    finally:
        serve.shutdown()
        ray.shutdown()
        started.stop()


class Application:
    """A running application: what a test asks of it, and does to it."""

    def __init__(self, name: str, app: Any) -> None:
        self.name = name
        self._handle = serve.run(app, name=name, route_prefix=f"/{name}")

    @classmethod
    def running(cls, name: str) -> Application:
        """Return one that something else has started."""
        found = cls.__new__(cls)
        found.name, found._handle = name, serve.get_app_handle(name)
        return found

    def ask(self, query: Any, **named: str) -> Any:
        """Begin a query, of the pipeline that is named; its `result` waits."""
        return self._handle.remote(query, **named)

    def answer(self, query: Any) -> Any:
        return self.ask(query).result(timeout_s=60)

    def ask_as(self, query: Any, query_id: str, deadline_s: float | None = None) -> Any:
        return self._handle.ask.remote(query, query_id=query_id, deadline_s=deadline_s)

    def answer_as(self, query: Any, query_id: str, deadline_s: float | None = None) -> Any:
        return self.ask_as(query, query_id, deadline_s).result(timeout_s=60)

    def pids(self, deployment: str) -> list[int]:
        """The processes of a deployment's replicas."""
        mark = f"SERVE_REPLICA::{self.name}#{deployment}#"
        actors = state.actors().values()
        alive = [each for each in actors if each["State"] == "ALIVE" and each["Pid"]]
        return [each["Pid"] for each in alive if each["Name"].startswith(mark)]

    def kill_one_of(self, deployment: str) -> None:
        os.kill(self.pids(deployment)[0], signal.SIGKILL)

    def kill_all_of(self, deployment: str) -> None:
        for pid in self.pids(deployment):
            with suppress(ProcessLookupError):  # it has died since
                os.kill(pid, signal.SIGKILL)

    def delete(self) -> None:
        serve.delete(self.name)
