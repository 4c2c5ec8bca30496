"""Kills a worker every few seconds, as `kill -9` does, for `async_sgd.py --kill`."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import ray

import hoplite_ray as hop

KILL_EVERY_S = 5.0


@ray.remote(num_cpus=0)
class Roll:
    """Which process is which worker's, as they say themselves when they start."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}

    def enter(self, rank: int, pid: int) -> None:
        self.pids[rank] = pid

    def read(self) -> dict[int, int]:
        return self.pids


def start_of_worker(roll: ray.actor.ActorHandle, rank: int) -> None:
    """Say which process this worker is, and attach to the node, also after each restart."""
    hop.array(np.zeros(1))
    ray.get(roll.enter.remote(rank, os.getpid()))


@contextmanager
def killing(roll: ray.actor.ActorHandle, kill: bool, *, seed: int) -> Iterator[None]:
    """Kill one worker's process every five seconds, if that is asked for."""
    over = threading.Event()
    killed = 0

    def run() -> None:
        nonlocal killed
        choose = random.Random(seed).choice
        while not over.wait(KILL_EVERY_S):
            rank, pid = choose(sorted(ray.get(roll.read.remote()).items()))
            with suppress(ProcessLookupError):  # it is being restarted
                os.kill(pid, signal.SIGKILL)
                killed += 1
                print(f"killed worker {rank}, process {pid}", flush=True)

    killer = threading.Thread(target=run)
    if kill:
        killer.start()
    try:
        yield
    finally:
        over.set()
        if kill:
            killer.join()
            print(f"{killed} workers were killed with SIGKILL", flush=True)
