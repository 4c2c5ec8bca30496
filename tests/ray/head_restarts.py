"""A Ray cluster whose head restarts while versions are published, by test_head.py.

A process of its own, because it is the driver of a cluster of its own. Each assertion is a test's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop
from tests.ray.raycluster import ARENA_BYTES, LARGE, RayCluster, eventually, free_port

WAIT_S = 60.0
LIMIT_S = 20.0  # of a publish that can't be done
NAME = "weights"


def value_of(version: int) -> dict[str, Any]:
    return {"layer": np.full(LARGE, version, np.int64)}


def check(update: Any) -> int:
    """The version of an update whose bytes are all of that version."""
    assert (update.value["layer"] == update.version).all(), "a version is whole"
    return int(update.version)


@ray.remote(num_cpus=0)
class Publisher:
    def publish(self, version: int) -> int:
        return hop.publish(NAME, value_of(version), version=version, timeout_s=LIMIT_S)

    def fail(self, version: int) -> tuple[str, float]:
        """Publish; the error's kind and text, and how long it took. "" if it was published."""
        began = time.monotonic()
        try:
            self.publish(version)
        except hop.HopliteError as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - began
        return "", time.monotonic() - began


@ray.remote(num_cpus=0, max_concurrency=2)
class Reader:
    def __init__(self) -> None:
        self.kept: Any = None
        self.seen: list[int] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for update in hop.watch(NAME):
            check(update)
            self.kept = update
            self.seen.append(update.version)

    def versions(self) -> list[int]:
        return self.seen

    def read_kept(self) -> int:
        return check(self.kept)

    def latest(self) -> int:
        return check(hop.latest(NAME, timeout_s=WAIT_S))


def ask(ref: Any) -> Any:
    return ray.get(ref, timeout=2 * WAIT_S)


def has_seen(reader: Any, version: int) -> bool:
    return version in ask(reader.versions.remote())


def go_on(publisher: Any, readers: list[Any], versions: range) -> None:
    """Publish each version, and wait until every reader has it, by its watch and by `latest`."""
    for version in versions:
        assert ask(publisher.publish.remote(version)) == version
        for reader in readers:
            assert eventually(partial(has_seen, reader, version), within_s=90)
            assert ask(reader.latest.remote()) == version
            seen = ask(reader.versions.remote())
            assert seen == sorted(set(seen)), "versions grow"


def restart_with_redis(cluster: RayCluster, publisher: Any, readers: list[Any]) -> None:
    head = cluster.cluster.head_node
    head.kill_gcs_server(check_alive=False)
    go_on(publisher, readers, range(4, 6))  # the nodes need no head for versions
    head.start_gcs_server()
    go_on(publisher, readers, range(6, 10))
    late = Reader.options(**cluster.on(1)).remote()  # Ray places it by its new head
    go_on(publisher, [*readers, late], range(10, 12))
    assert hop.publish(NAME, value_of(12), version=12, timeout_s=WAIT_S) == 12
    (listed,) = hop.channels()
    assert (listed.name, listed.version) == (NAME, 12)


def restart_without_redis(cluster: RayCluster, publisher: Any, readers: list[Any]) -> None:
    head = cluster.cluster.head_node
    head.kill_gcs_server(check_alive=False)
    go_on(publisher, readers, range(4, 6))
    head.start_gcs_server()  # knows nothing of the nodes, which end when they hear of it
    versions = iter(range(6, 10_000))
    why = ""

    def has_failed() -> bool:
        nonlocal why
        why, took_s = ask(publisher.fail.remote(next(versions)))
        assert took_s < 2 * LIMIT_S, "within its time limit, and what a busy machine adds"
        return "restarts without Redis" in why

    assert eventually(has_failed, within_s=150), why
    assert why.startswith("NodeLostError: the Ray node of this process has ended"), why
    for reader in readers:
        seen = ask(reader.versions.remote())
        assert seen == sorted(set(seen)) and seen[-1] >= 5
        assert ask(reader.read_kept.remote()) == seen[-1], "a reader keeps what it has"


@contextmanager
def serve_redis(server: str) -> Iterator[None]:
    """A Redis server, which Ray's head that starts in the body uses."""
    port = str(free_port())
    command = [server, "--port", port, "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        os.environ["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{port}"
        try:
            yield
        finally:
            process.kill()


def run(restart: Any) -> None:
    cluster = RayCluster.start(3)
    try:
        flag = {"hoplite": {"arena_bytes": ARENA_BYTES}}
        ray.init(address=cluster.cluster.address, log_to_driver=False, runtime_env=flag)
        publisher = Publisher.options(**cluster.on(1)).remote()
        readers = [Reader.options(**cluster.on(node)).remote() for node in (0, 2)]
        go_on(publisher, readers, range(1, 4))
        restart(cluster, publisher, readers)
        sys.stdout.write("all is as it must be\n")
        sys.stdout.flush()
    finally:
        ray.shutdown()
        cluster.cluster.shutdown()


if __name__ == "__main__":  # the actors' processes import it, too
    if len(sys.argv) > 1:
        with serve_redis(sys.argv[1]):
            run(restart_with_redis)
    else:
        run(restart_without_redis)
