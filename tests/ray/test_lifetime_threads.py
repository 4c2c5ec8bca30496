"""Threads and descriptors: what work has opened is closed after it, in every kind of process."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite_ray as hop
from hoplite_ray.plugin.attachment import attachment
from tests.ray.raycluster import LARGE, RayCluster, eventually

ROUNDS = 5


def opened() -> tuple[int, int]:
    """Threads of this process, and descriptors of all of them: a thread may have its own."""
    gc.collect()
    descriptors = set()
    threads = os.listdir("/proc/self/task")
    for thread in threads:
        for each in os.scandir(f"/proc/self/task/{thread}/fd"):
            try:
                descriptors.add((each.name, os.readlink(each.path)))
            except FileNotFoundError:
                pass  # the listing's own
    return len(threads), len(descriptors)


def work() -> None:
    """One of everything, at the same time from several threads."""
    source = hop.put(np.ones(LARGE, np.float32))
    total = hop.reduce([source, ray.put(hop.array(np.ones(LARGE, np.float32)))])
    threads = [threading.Thread(target=lambda: hop.get([total, source])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hop.get(total)[0] == 2
    abandoned = hop.reduce([source, total], count=1)
    del abandoned


@ray.remote(num_cpus=0)
class Worker:
    def work(self) -> None:
        work()

    def opened(self) -> tuple[int, int]:
        return opened()


@pytest.mark.timeout(120)  # one round of a busy machine takes seconds
def test_work_leaves_no_thread_and_no_descriptor(cluster: RayCluster) -> None:
    worker = Worker.options(**cluster.on(1)).remote()
    steward = attachment().steward

    def all_opened() -> dict[str, tuple[int, int]]:
        asked: dict[str, Any] = {
            "worker": worker.opened.remote(),
            "steward": steward.__ray_call__.remote(lambda self: opened()),
        }
        return {"driver": opened()} | {name: ray.get(ref) for name, ref in asked.items()}

    def do(rounds: int) -> None:
        for _ in range(rounds):
            ref = worker.work.remote()
            work()
            ray.get(ref)

    do(2)  # pools of threads and connections to peers are made once
    before = all_opened()
    do(ROUNDS)

    def is_back() -> bool:
        now = all_opened()
        return all(now[name][kind] <= before[name][kind] for name in before for kind in (0, 1))

    assert eventually(is_back, within_s=30), (before, all_opened())
