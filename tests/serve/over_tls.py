"""A Ray node with Ray's TLS settings and data_tls, and Serve on it: by test_encrypted.py.

Another authority has signed the certificate of one of the last stage's two replicas. The other one
answers, and what the log of the stage before it says of the first goes into a file.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import ProxyLocation

from hoplite_ray.serve import pipeline, stage
from tests.ray.raycluster import RayCluster, eventually
from tests.serve.applications import LIGHT


class Adds:
    """Adds one. The replica that finds the file shows the certificate which that names."""

    def __init__(self, theirs: str | None = None) -> None:
        if theirs is None:
            return
        with suppress(FileNotFoundError):
            taken = Path(theirs).rename(f"{theirs}.taken")
            os.environ.update(json.loads(taken.read_text()))  # Ray has read its own already

    def __call__(self, queries: list[Any]) -> list[Any]:
        return [query + 1 for query in queries]


def main(theirs: str, told: Path) -> None:
    started = RayCluster.start(nodes=1, num_cpus=2)
    options = {"arena_bytes": 32 << 20, "data_tls": "on"}
    ray.init(started.cluster.address, log_to_driver=False, runtime_env={"hoplite": options})
    serve.start(proxy_location=ProxyLocation.Disabled)
    first, last = (stage(num_replicas=replicas, **LIGHT)(Adds) for replicas in (1, 2))
    app = pipeline(first=first, last=last.bind(theirs).after("first"), replicas=1)
    assert serve.run(app, name="tls", route_prefix=None).remote(1).result(timeout_s=60) == 3
    logs = Path(started.cluster.head_node.get_logs_dir_path(), "serve")

    def lines() -> list[str]:
        text = "".join(each.read_text() for each in logs.glob("replica_tls_first_*.log"))
        return [line for line in text.splitlines() if "there is no edge" in line]

    assert eventually(lambda: bool(lines()), within_s=60)
    told.write_text("\n".join(lines()))
    ray.shutdown()
    started.stop()


main(sys.argv[1], Path(sys.argv[2]))
