"""How soon a parked replica answers once it is released, and what its start costs a running one.

    python benchmarks/parked.py

release   ten replicas are released one after the other, by a notice in Ray's key-value store as an
          autoscaling policy writes it: the time to the first answer of each, and the CPU time of
          idle replicas, parked and active.
starting  one replica answers 40 queries a second, which come at random: alone, while another one
          starts that imports torch if it is there, and beside that one when it is parked. The three
          take turns. The ingress asks, so that a client takes none of the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import threading
import time
from typing import Any

import ray
from meters import machine
from promised_systems import LIGHT, Asks, Sleeps
from ray import serve as ray_serve
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from serving_driver import cpu_of, replica_pids

from hoplite_ray import serve
from hoplite_ray.serve.graph.ingress import Ingress
from hoplite_ray.serve.seams import NAMESPACE
from hoplite_ray.serve.slo.queueing import poisson
from hoplite_ray.serve.stages.parking import notice_key

NAME, MARK = "parked", "SERVE_REPLICA::parked#only#"
RATE_PER_S = 40.0
IDLE_S = 10.0
WAYS = {"alone": 1, "while another one starts": 2, "beside a parked one": 2}  # and the replicas


class Model(Sleeps):
    """Answers each query with its replica's id; its start takes a core for some time."""

    def __init__(self) -> None:
        super().__init__(0.020, 0.002)
        self._replica = ray_serve.get_replica_context().replica_tag
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401

    def __call__(self, queries: list[Any]) -> list[str]:
        return [self._replica] * len(super().__call__(queries))


class Load(Ingress, Asks):
    """An ingress that asks queries itself."""

    async def find_first(self, known: set[str]) -> tuple[str, float]:
        """Ask all replicas until an unknown one answers; returns its id, and the time."""
        found: set[str] = set()
        while not found:
            asked = (self.ask(0) for _ in range(2 * len(known) or 1))
            found = {*await asyncio.gather(*asked)} - known
        return found.pop(), time.time()


def follow_target(context: Any) -> tuple[int, dict[str, Any]]:
    """Want as many replicas as the benchmark has written: Serve's controller calls it."""
    return int(_internal_kv_get("parked_target", namespace=b"hoplite") or 1), {}


class Policy:
    """Releases replicas, and writes each second, so that no replica takes it for dead."""

    def __init__(self) -> None:
        self._released: set[str] = set()
        threading.Thread(target=self._write_on, daemon=True).start()

    def release(self, replicas: set[str]) -> None:
        self._released = replicas
        notice = json.dumps({"at": time.monotonic_ns(), "replicas": sorted(replicas)})
        _internal_kv_put(notice_key(NAME, "only"), notice, namespace=NAMESPACE)

    def _write_on(self) -> None:
        while ray.is_initialized():
            self.release(self._released)
            time.sleep(1.0)


def start(replicas: int) -> Any:
    """Start a pipeline of one stage with so many replicas; returns the handle of its ingress."""
    _internal_kv_put("parked_target", str(replicas), namespace=NAMESPACE)
    policy = AutoscalingPolicy(policy_function=follow_target)
    limits = {"initial_replicas": replicas, "min_replicas": 1, "max_replicas": 100}
    delays = {"upscale_delay_s": 0, "downscale_delay_s": 0}
    scaling = AutoscalingConfig(**limits, **delays, policy=policy)
    stage = serve.stage(starts_parked=True, autoscaling_config=scaling, **LIGHT)(Model)
    application = serve.pipeline(only=stage, replicas=1).spec.build(Load)
    return ray_serve.run(application, name=NAME, route_prefix=None)


def scale(replicas: int) -> None:
    """Have so many replicas; those that are added may still be starting on return."""
    _internal_kv_put("parked_target", str(replicas), namespace=NAMESPACE)
    while len(find_replicas()) != replicas:
        time.sleep(0.1)


def find_replicas() -> set[str]:
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    return {each.removeprefix(MARK) for each in names if each.startswith(MARK)}


def release(policy: Policy, replicas: int) -> None:
    """Release all replicas but the first, one after the other."""
    handle = start(replicas)
    took_s: list[float] = []
    cpu_s = measure_idle()
    known = {handle.find_first.remote(set()).result()[0]}  # its query makes it active
    for replica in sorted(find_replicas() - known):
        asking = handle.find_first.remote(known)
        time.sleep(0.3 + 0.01 * (len(took_s) % 10))  # at all places between two looks
        began_s = time.time()
        policy.release(known | {replica})
        found, at_s = asking.result()
        assert found == replica, "only what is released answers"
        known.add(replica)
        took_s.append(at_s - began_s)
    print(f"a release to the first answer: {describe(took_s)}")
    print(f"CPU of an idle replica: {cpu_s:.4f} s/s parked, {measure_idle():.4f} active")


def measure_idle() -> float:
    """Return the CPU seconds that a replica uses in a second without queries."""
    pids = replica_pids(NAME, "only")
    before_s = cpu_of(pids)
    time.sleep(IDLE_S)
    return (cpu_of(pids) - before_s) / IDLE_S / len(pids)


def starting(seconds: float, rounds: int) -> None:
    """Compare the latencies of a running replica without and with another one."""
    handle = start(1)
    arrivals = poisson(RATE_PER_S, int(RATE_PER_S * seconds), seed=1)
    took_s: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        scale(1)
        handle.run.remote(poisson(20.0, 40, seed=9)).result()  # warm, and all edges are open
        for way, replicas in WAYS.items():
            running = handle.run.remote(arrivals)
            scale(replicas)
            took_s[way].append(sorted(running.result()[1]))
    for way, each in took_s.items():
        for share in (0.5, 0.99):
            quantiles = [times[int(share * (len(times) - 1))] for times in each]
            print(f"{way}: p{100 * share:.0f} {describe(quantiles)}")


def describe(values: list[float]) -> str:
    median, least, most = (1000 * f(values) for f in (statistics.median, min, max))
    return f"{median:.1f} ms ({least:.1f} to {most:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--toy", action="store_true", help="proves only that it runs, in seconds")
    is_toy = parser.parse_args().toy
    print(", ".join(f"{what} {value}" for what, value in machine().items()))
    ray.init("local", num_cpus=4, log_to_driver=False, include_dashboard=False)
    try:
        ray_serve.start(proxy_location="Disabled")
        policy = Policy()
        release(policy, 2 if is_toy else 11)
        ray_serve.delete(NAME)
        starting(*((1.0, 1) if is_toy else (12.0, 5)))
    finally:
        ray_serve.shutdown()
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
