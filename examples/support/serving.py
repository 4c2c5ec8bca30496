"""Ray Serve on this machine alone, and how to kill its replicas."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray import serve
from ray._private import state  # the public ray.util.state needs Ray's dashboard
from support.local_cluster import local_cluster

STORE_BYTES = 256 << 20
LIGHT: dict[str, Any] = {"num_cpus": 0}  # of a replica: all of them share the cores


@contextmanager
def local_serve() -> Iterator[None]:
    """Have `serve.run` work, without HTTP: a program of one's own asks by handles."""
    with local_cluster(1, 2, STORE_BYTES) as address:
        ray.init(address, log_to_driver=False)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled")
        try:
            yield
        finally:
            serve.shutdown()


def kill(stage: str, count: int | None = None) -> None:
    """End the processes of a stage's replicas as `kill -9` does, all or the first ones."""
    actors = [each for each in state.actors().values() if each["State"] == "ALIVE"]
    replicas = [each for each in actors if each["Name"].startswith("SERVE_REPLICA::")]
    pids = [each["Pid"] for each in replicas if each["Name"].split("#")[1] == stage]
    for pid in [*filter(None, pids)][:count]:  # 0 would be our own processes
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGKILL)
