"""Kills a worker every few seconds, as `kill -9` does, for `async_sgd.py --kill`.

Victims alternate: a worker that fetches the parameters, then a worker that puts its gradient while
the server's reduce waits for it. If no worker is in that state in time, a random worker is killed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray

import hoplite_ray as hop

KILL_EVERY_S = 5.0
HUNT_S, LOOK_EVERY_S = 5.0, 0.0005  # for how long a moment is waited for, and how often looked for

_NOTE = os.memfd_create("note")  # what this process is doing; others read it through /proc
_doing = ""  # the same, for this process


def noted(doing: str, call: Callable, *args: Any) -> Any:
    """Return the call's result; until it returns, other processes read `doing` in our note."""
    _note(doing)
    try:
        return call(*args)
    finally:
        _note("")


def _note(doing: str) -> None:
    global _doing
    _doing = doing
    os.pwrite(_NOTE, doing.ljust(8).encode(), 0)


@ray.remote(num_cpus=0)
class Roll:
    """Each worker's process id and the descriptor of its note, as the workers report them."""

    def __init__(self) -> None:
        self.workers: dict[int, tuple[int, int]] = {}

    def enter(self, rank: int, pid: int, note: int) -> None:
        self.workers[rank] = pid, note

    def read(self) -> dict[int, tuple[int, int]]:
        return self.workers


def start_of_worker(roll: ray.actor.ActorHandle, rank: int) -> None:
    """Say which process this worker is, and attach to the node, also after each restart."""
    hop.array(np.zeros(1))
    ray.get(roll.enter.remote(rank, os.getpid(), _NOTE))


class _Killer:
    def __init__(self, roll: ray.actor.ActorHandle, seed: int) -> None:
        self.roll = roll
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.hits: Counter[str] = Counter()  # what the killed were doing while a reduce waited

    def run(self) -> None:
        for wanted in itertools.cycle(("get", "put")):
            if self.over.wait(KILL_EVERY_S):
                return
            self._hunt(wanted)

    def _hunt(self, wanted: str) -> None:
        workers = list(ray.get(self.roll.read.remote()).items())
        self.random.shuffle(workers)
        until_s = time.monotonic() + HUNT_S
        while not self.over.is_set():
            for rank, (pid, note) in workers:
                with suppress(OSError):  # it is being restarted
                    if (is_late := time.monotonic() > until_s) or self._is_at(wanted, pid, note):
                        if self._kill(rank, pid, note, "" if is_late else wanted):
                            return
            if time.monotonic() > until_s + HUNT_S:
                return  # all are being restarted
            time.sleep(LOOK_EVERY_S)

    def _is_at(self, wanted: str, pid: int, note: int) -> bool:
        return _doing == "reduce" and _read(pid, note) == wanted

    def _kill(self, rank: int, pid: int, note: int, wanted: str) -> bool:
        """Stop it, so that it does what it is seen to do, and kill it unless that has passed."""
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "TZX":
            pass
        doing = _read(pid, note) if _doing == "reduce" else "something else"
        if wanted not in ("", doing):
            os.kill(pid, signal.SIGCONT)
            return False
        os.kill(pid, signal.SIGKILL)
        self.hits[doing or "its sums"] += 1
        print(f"killed worker {rank}, process {pid}, at {doing or 'its sums'}", flush=True)
        return True


def _read(pid: int, note: int) -> str:
    return Path(f"/proc/{pid}/fd/{note}").read_text().strip()


@contextmanager
def killing(roll: ray.actor.ActorHandle, kill: bool, *, seed: int) -> Iterator[None]:
    """Kill one worker's process every five seconds, if that is asked for."""
    killer = _Killer(roll, seed)
    thread = threading.Thread(target=killer.run)
    if kill:
        thread.start()
    try:
        yield
    finally:
        killer.over.set()
        if kill:
            thread.join()
            hits = killer.hits
            print(
                f"{hits.total()} workers were killed with SIGKILL: {hits['put']} at putting the "
                f"gradient that a reduce waited for, {hits['get']} at getting its parameters",
                flush=True,
            )
